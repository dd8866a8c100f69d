"""`create_app`: the ASGI app, from middleware to routes.

The app owns no engine: it is given one that somebody holds open around the server. In an ASGI
lifespan, an engine that dies would leave a server that answers as if nothing had been.
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from ..engine import DiffusionEngine
from .access_log import AccessLog
from .bodies import BodyLimit, DiscardUnread
from .config import ServerConfig
from .disconnect import CancelOnDisconnect
from .errors import add_handlers
from .gate import Gate
from .health import health_routes
from .images import image_routes
from .page_files import page_routes
from .requests import request_routes
from .service import Service
from .timeline import timeline_routes


def create_app(
    engine: DiffusionEngine | None = None, config: ServerConfig | None = None
) -> FastAPI:
    """Make an app; for any ASGI server that runs on Trio.

    Args:
      engine: what runs requests; None if it is still to start. Until ``app.state.service.engine``
        is set, the app answers 503.
      config: of the server.
    """
    config = config or ServerConfig()
    service = Service(config, engine)
    app = FastAPI(
        title="sidestream",
        version=version("sidestream"),
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    for routes in (image_routes, request_routes, timeline_routes, health_routes):
        app.include_router(routes(service))
    app.include_router(page_routes())
    add_handlers(app)
    # The last one is the outermost.
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes, seconds=config.body_timeout_s)
    app.add_middleware(CancelOnDisconnect)
    app.add_middleware(Gate, service=service)
    app.add_middleware(AccessLog, service=service)
    app.add_middleware(DiscardUnread)
    return app
