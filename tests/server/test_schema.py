"""Property-based requests, made by schemathesis from the server's own description of its API."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import schemathesis
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sidestream.engine import open_engine

from ..harness.engines import filming, offer_pipelines, painting
from ..harness.http import served
from ..harness.surroundings import assert_idle

EXAMPLES = 20


def no_server_error(context, response, case):
    """Check the status; a deadline that a request sets itself may pass."""
    deadline = isinstance(case.body, dict) and case.body.get("timeout_s")
    if response.status_code != 504 or not deadline:
        not_a_server_error(context, response, case)


CHECKS = (
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


def call_operations(url: str, paths: str) -> int:
    """Call every operation with requests that suit its description, and with some that do not.

    Args:
      url: of the server.
      paths: a pattern of the paths of operations to call.
    """
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json").include(path_regex=paths)
    calls = 0
    for result, mode in itertools.product(schema.get_all_operations(), GenerationMode):
        operation = result.ok()

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            nonlocal calls
            calls += 1
            case.call_and_validate(checks=CHECKS)

        with contextlib.suppress(Unsatisfiable):  # there is nothing to get wrong
            check()
    return calls


@pytest.mark.parametrize(("model", "paths"), [(painting, ""), (filming, "/videos")])
async def test_no_request_is_too_much(model, paths):
    limits = {"max_side": 64, "max_steps": 4, "max_n": 2, "request_timeout_s": 30}
    limits |= {"max_frames": 10, "max_videos": 5}
    # In processes of their own, lanes do not put back the generators that hypothesis watches.
    async with open_engine(model("mp")) as engine, served(engine, **limits) as server:
        calls = await trio.to_thread.run_sync(call_operations, server.url, paths)
        assert calls >= 100
        await assert_idle(engine)
        assert engine.statistics().completed > 1
