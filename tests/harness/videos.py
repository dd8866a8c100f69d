"""Video jobs as their clients see them."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import av
import httpx2
import numpy as np
import trio

from sidestream.engine import DiffusionEngine
from sidestream.server import ServerConfig, create_app

from .http import client_of
from .surroundings import PATIENCE

VIDEOS = "/v1/videos"


@asynccontextmanager
async def working(engine: DiffusionEngine, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """Offer a client of an app whose jobs run, without a socket between them."""
    app = create_app(engine, ServerConfig(**settings))
    async with trio.open_nursery() as nursery:
        await nursery.start(app.state.videos.run)
        async with client_of(app) as client:
            yield client
        nursery.cancel_scope.cancel()


async def create(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Start a job, and return what is told of it."""
    answer = await client.post(VIDEOS, json={"prompt": "x", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def told(client: httpx2.AsyncClient, video: dict[str, Any], *statuses: str) -> dict[str, Any]:
    """Wait until a job is at one of some statuses, and return what is told of it."""
    with trio.fail_after(PATIENCE):
        while True:
            answer = await client.get(f"{VIDEOS}/{video['id']}")
            assert answer.status_code == 200, answer.text
            if answer.json()["status"] in statuses:
                return answer.json()  # type: ignore[no-any-return]
            await trio.lowlevel.checkpoint()


async def made(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Make a video, and return what is told of it."""
    video = await told(client, await create(client, **fields), "completed", "failed")
    assert video["error"] is None
    return video


async def ids(client: httpx2.AsyncClient) -> list[str]:
    """Return which videos there are, the latest first."""
    return [video["id"] for video in (await client.get(VIDEOS)).json()["data"]]


def frames_of(data: bytes) -> Any:
    """Decode a file: (F, H, W, 3), uint8."""
    with av.open(io.BytesIO(data)) as mp4:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in mp4.decode(video=0)])


def assert_error(
    answer: httpx2.Response,
    status: int,
    *,
    param: str | None = None,
    code: str | None = None,
    word: str = "",
) -> None:
    """Check that an answer is an error in the right shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert word in error["message"]
