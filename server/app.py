"""`create_app`: the ASGI app, from middleware to routes.

The app owns no engine: it is given one that somebody holds open around the server. In an ASGI
lifespan, an engine that dies would leave a server that answers as if nothing had been.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from ..engine import ConfigError, DiffusionEngine
from .access_log import AccessLog
from .bodies import BodyLimit, DiscardUnread
from .config import ServerConfig
from .description import DescribedApp
from .disconnect import CancelOnDisconnect
from .errors import add_handlers
from .gate import Gate
from .health import health_routes
from .images import image_routes
from .page_files import page_routes
from .requests import request_routes
from .service import Service
from .timeline import timeline_routes
from .video_jobs import VideoJobs
from .videos import video_routes

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from .telemetry import Telemetry

OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPOSED_HEADERS = ("X-Request-Id", "Retry-After", "Content-Range")
"""What pages of other origins may see of an answer, besides what they always may."""


def create_app(
    engine: DiffusionEngine | None = None,
    config: ServerConfig | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
) -> FastAPI:
    """Make an app; for any ASGI server that runs on Trio.

    Args:
      engine: what runs requests; None if it is still to start. Until ``app.state.service.engine``
        is set, the app answers 503.
      config: of the server.
      tracer_provider: makes the spans of requests, as OpenTelemetry calls it. None: if a collector
        is configured, `serve` sends them there.

    Raises:
      ConfigError: a collector is configured, but what it takes to send to it is not installed.
    """
    config = config or ServerConfig()
    telemetry = _telemetry(config, tracer_provider)
    service = Service(config, engine, telemetry)
    app = DescribedApp(
        keys_needed=bool(config.api_keys),
        title="sidestream",
        version=version("sidestream"),
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        telemetry={"tracing": telemetry is None},  # its own spans, since 0.165; one is enough
    )
    app.state.service = service
    app.state.videos = VideoJobs(service)
    for routes in (image_routes, request_routes, timeline_routes, health_routes):
        app.include_router(routes(service))
    app.include_router(video_routes(service, app.state.videos))
    app.include_router(page_routes())
    add_handlers(app)
    # The last one is the outermost.
    app.add_middleware(
        BodyLimit,
        inputs=service.inputs,
        max_bytes=config.max_body_bytes,
        seconds=config.body_timeout_s,
    )
    app.add_middleware(CancelOnDisconnect)
    app.add_middleware(Gate, service=service)
    if config.cors_origins:  # outside of the gate: browsers ask first, without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(AccessLog, service=service)
    app.add_middleware(DiscardUnread)
    return app


def _telemetry(config: ServerConfig, provider: TracerProvider | None) -> Telemetry | None:
    """Make what makes spans, if anybody wants them."""
    source = "server.otlp_endpoint" if config.otlp_endpoint else _variable_with_endpoint()
    if provider is None and source is None:
        return None
    try:
        from .telemetry import Telemetry
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{source} needs {error.name}, which the extra brings: pip install 'sidestream[otel]'"
        ) from error
    return Telemetry(config.otlp_endpoint, provider)


def _variable_with_endpoint() -> str | None:
    """Return which environment variable names a collector, if spans are wanted at all."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp":
        return None
    return next((name for name in OTLP_VARIABLES if os.environ.get(name)), None)
