"""`ImagesClient`: asks a server for pictures, and drops them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import trio

from .errors import LONGEST_ERROR, code_of, message_of
from .events import EventReader
from .printable import printable

GENERATIONS = "/v1/images/generations"
MODELS = "/v1/models"

CHECK_PATIENCE = 10.0
"""Seconds for a server to say that it is there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request was answered."""

    status: int | None
    """Of HTTP; None if there was no answer."""
    code: str | None = None
    """What went wrong, None if nothing did."""


@asynccontextmanager
async def open_client(url: str, api_key: str | None = None) -> AsyncIterator[ImagesClient]:
    """Hold connections to a server.

    Args:
      url: of the server, with or without ``/v1``.
      api_key: None if the server wants none.
    """
    url = url.rstrip("/").removesuffix("/v1")
    async with httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        timeout=None,  # whoever calls has a deadline
        trust_env=False,  # a proxy would be measured too
    ) as http:
        yield ImagesClient(url, http)


class ImagesClient:
    """Asks one server; made by `open_client`."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url = url
        self._http = http

    async def check(self) -> None:
        """Return if the server is there and would take requests.

        Raises:
          ConnectionError: it is not, or would not.
        """
        try:
            with trio.fail_after(CHECK_PATIENCE):
                async with self._http.stream("GET", MODELS) as answer:
                    body = await _beginning(answer)
        except trio.TooSlowError:
            raise ConnectionError(f"{self.url}: no answer in {CHECK_PATIENCE:g} s") from None
        except httpx2.HTTPError as error:
            raise ConnectionError(
                f"{self.url}: no server there ({printable(str(error), 200)})"
            ) from error
        if answer.status_code in (401, 403) or answer.is_server_error:
            told = message_of(body, answer.reason_phrase)
            raise ConnectionError(f"{self.url}: {answer.status_code}, {told}")

    async def generate(self, body: dict[str, Any], on_partial: Callable[[], object]) -> Answer:
        """Ask for pictures and wait for the end of the answer.

        Args:
          body: of the request.
          on_partial: called at the first partial image.
        """
        try:
            async with self._http.stream("POST", GENERATIONS, json=body) as response:
                if response.status_code != 200:
                    return Answer(response.status_code, code_of(await _beginning(response)))
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    return await _read_events(response, on_partial)
                async for _ in response.aiter_raw():
                    pass
        except httpx2.HTTPError as error:
            return Answer(None, type(error).__name__)
        return Answer(200)


async def _read_events(response: httpx2.Response, on_partial: Callable[[], object]) -> Answer:
    """Read to the end, or until it is clear that there are no pictures."""
    events = EventReader(on_partial)
    # Cancelled, httpx's iterators end; to leave the loop would leave them to the garbage collector.
    with trio.CancelScope() as scope:
        async for chunk in response.aiter_bytes():
            events.feed(chunk)
            if events.is_too_long:
                scope.cancel("it would be too much")
    return Answer(200, "too_long" if scope.cancelled_caught else events.code)


async def _beginning(response: httpx2.Response) -> bytes:
    """Read to the end, and return what can be an error."""
    data = b""
    async for chunk in response.aiter_bytes():
        data += chunk[: LONGEST_ERROR - len(data)]
    return data
