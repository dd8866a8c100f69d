"""Servers and clients of HTTP, in this process."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio
from fastapi import FastAPI
from PIL import Image

from sidestream.engine import DiffusionEngine
from sidestream.server import ServerConfig, create_app, serve
from sidestream.server.serving import open_listener, url_of

GENERATIONS = "/v1/images/generations"
EDITS = "/v1/images/edits"


@asynccontextmanager
async def asgi_client(
    engine: DiffusionEngine | None, **settings: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """Offer a client that calls an app without a socket between them."""
    async with client_of(create_app(engine, ServerConfig(**settings))) as client:
        yield client


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """Offer a client of an app."""
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@asynccontextmanager
async def served(
    engine: DiffusionEngine | None, *, tracer_provider: Any = None, **settings: Any
) -> AsyncIterator[Served]:
    """Serve an engine on a free port, and stop in order at the end."""
    config = ServerConfig(**{"port": 0, "shutdown_grace_s": 0.0, **settings})
    listener = open_listener(config)
    app = create_app(engine, config, tracer_provider=tracer_provider)
    server = Served(app, url_of(listener))

    async def run() -> None:
        await serve(server.app, stop=server.stop, listener=listener)
        server.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield server
        finally:
            server.stop.set()


class Served:
    """A server that runs."""

    def __init__(self, app: FastAPI, url: str) -> None:
        self.app = app
        self.url = url
        self.stop = trio.Event()
        self.ended = trio.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    async def connect(self) -> trio.SocketStream:
        """Open a connection to it."""
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def post(self, path: str, body: Any) -> trio.SocketStream:
        """Send a request on a connection of its own, and do not wait for the answer."""
        stream = await self.connect()
        await stream.send_all(post_bytes(path, body))
        return stream


def post_bytes(path: str, body: Any) -> bytes:
    """Return a request of HTTP/1.1."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def picture_of(b64: str) -> Image.Image:
    """Decode a picture of an answer."""
    image = Image.open(io.BytesIO(base64.b64decode(b64, validate=True)))
    image.load()
    return image


def png(size: tuple[int, int] = (64, 64), color: Any = (10, 20, 30), mode: str = "RGB") -> bytes:
    """Make a file."""
    file = io.BytesIO()
    Image.new(mode, size, color).save(file, "png")
    return file.getvalue()


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Read server-sent events: names and data."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events
