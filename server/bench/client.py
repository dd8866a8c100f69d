"""`ImagesClient`: asks a server for pictures, and drops them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import trio

GENERATIONS = "/v1/images/generations"
MODELS = "/v1/models"

CHECK_PATIENCE = 10.0
"""Seconds for a server to say that it is there."""
LONGEST_ERROR = 1 << 16
"""Bytes of an error that are looked at."""
LONGEST_CODE = 60


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
                answer = await self._http.get(MODELS)
        except trio.TooSlowError:
            raise ConnectionError(f"{self.url}: no answer in {CHECK_PATIENCE:g} s") from None
        except httpx2.HTTPError as error:
            raise ConnectionError(f"{self.url}: no server there ({error})") from error
        if answer.status_code in (401, 403) or answer.is_server_error:
            told = _told(answer.content[:LONGEST_ERROR]).get("message", answer.reason_phrase)
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
                    return Answer(response.status_code, _code(await _beginning(response)))
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    return await _read_events(response.aiter_lines(), on_partial)
                async for _ in response.aiter_raw():
                    pass
        except httpx2.HTTPError as error:
            return Answer(None, type(error).__name__)
        return Answer(200)


async def _read_events(lines: AsyncIterator[str], on_partial: Callable[[], object]) -> Answer:
    """Read to the end: httpx leaves iterators that are not exhausted to the garbage collector."""
    event, partial = "", False
    code: str | None = "incomplete"
    async for line in lines:
        if line.startswith("event:"):
            event = line.removeprefix("event:").strip()
            if event.endswith(".completed"):
                code = None
            elif event.endswith(".partial_image") and not partial:
                partial = True
                on_partial()
        elif event == "error" and line.startswith("data:"):
            code = _code(line.removeprefix("data:").encode())
    return Answer(200, code)


async def _beginning(response: httpx2.Response) -> bytes:
    """Read to the end, and return what can be an error."""
    data = b""
    async for chunk in response.aiter_bytes():
        data += chunk[: LONGEST_ERROR - len(data)]
    return data


def _told(body: bytes) -> dict[str, Any]:
    """Return the object of an error in the shape of the OpenAI API; else an empty one."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _code(body: bytes) -> str:
    error = _told(body)
    return str(error.get("code") or error.get("type") or "unknown")[:LONGEST_CODE]
