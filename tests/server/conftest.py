"""Fixtures of the tests of the server."""

import pytest


@pytest.fixture(scope="module")
def chromium():
    from ..harness.browser import Chromium  # which needs playwright

    browser = Chromium()
    yield browser
    browser.close()
