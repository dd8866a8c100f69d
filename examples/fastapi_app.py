"""A FastAPI app of one's own on hypercorn's Trio worker, with an engine around it.

python examples/fastapi_app.py 8000

It has a route of its own, http://127.0.0.1:8000/pictures/a%20large%20red%20circle, and all routes
of ``sidestream serve``.

The engine is opened around the server, not in the app's lifespan: there, an engine that dies would
leave a server that goes on answering.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

import trio
from fastapi import FastAPI
from fastapi.responses import Response
from hypercorn.config import Config
from hypercorn.trio import serve

from sidestream.engine import DiffusionEngine, open_engine
from sidestream.server import create_app
from sidestream.server.disconnect import CancelOnDisconnect
from sidestream.server.errors import add_handlers


def make_app(engine: DiffusionEngine) -> FastAPI:
    """Make an app whose routes use an engine."""
    app = FastAPI()
    app.add_middleware(CancelOnDisconnect)  # FastAPI by itself would finish what nobody waits for
    add_handlers(app)  # of the engine's errors: 429 for a full queue, 503 for a dead engine, ...

    @app.get("/pictures/{prompt}")
    async def picture(prompt: str) -> Response:
        """Answer with a picture."""
        result = await engine.generate(prompt, output_type="png")
        return Response(result.output, media_type="image/png")

    app.mount("/", create_app(engine))  # after the routes, which win
    return app


async def main(port: int) -> None:
    """Serve until Ctrl-C or SIGTERM, or until the engine has died."""
    config = Config.from_mapping(bind=f"127.0.0.1:{port}")
    async with (
        open_engine(model="shapes", executor="mp") as engine,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(end_with, engine)
        await serve(make_app(engine), config, shutdown_trigger=told_to_stop)
        nursery.cancel_scope.cancel("told to stop")


async def end_with(engine: DiffusionEngine) -> NoReturn:
    """Raise what an engine has died of."""
    raise await engine.wait_dead()


async def told_to_stop() -> None:
    """Wait for a signal."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
