"""Probes and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from .service import Service


class Health(BaseModel):
    """State of the server."""

    status: str
    """``"ready"``, ``"starting"``, ``"stopping"`` or ``"dead"``; of ``/livez``: ``"alive"``."""


def health_routes(service: Service) -> APIRouter:
    """Make the probes and ``/metrics``."""
    router = APIRouter(tags=["health"])
    not_ready: dict[int | str, dict[str, Any]] = {
        503: {"model": Health, "description": "It is starting, stopping, or dead."}
    }

    @router.get("/livez")
    async def livez() -> Health:
        """Tell that the event loop turns."""
        return Health(status="alive")

    @router.get("/health", response_model=Health, responses=not_ready)
    @router.get("/readyz", response_model=Health, responses=not_ready)
    async def readyz() -> Response:
        """Tell whether requests can be taken."""
        state = service.state
        return JSONResponse({"status": state}, 200 if state == "ready" else 503)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Tell all metrics, in Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
