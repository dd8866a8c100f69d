"""A Quart-Trio app with an engine around it: a client that goes away cancels its request.

python examples/quart_app.py 8000

then open http://127.0.0.1:8000/a%20large%20red%20circle
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response
from quart_trio import QuartTrio

from sidestream.engine import DiffusionEngine, EngineBusyError, open_engine


def make_app(engine: DiffusionEngine) -> QuartTrio:
    """Make an app whose routes use an engine."""
    app = QuartTrio(__name__)

    @app.get("/<prompt>")
    async def picture(prompt: str) -> Response:
        """Answer with a picture; Quart-Trio cancels this call when the client disconnects."""
        try:
            result = await engine.generate(prompt, output_type="png")
        except EngineBusyError as error:
            return Response(str(error), 429)
        return Response(result.output, mimetype="image/png")

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
