"""`ServerConfig`: every setting of the server, its default, and what it accepts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ..engine import ConfigError
from ..engine.request import PROMPT_LIMIT
from ..engine.strict import Strict, flag, number, option, text, whole

MEBIBYTE = 1 << 20


def _keys(value: Any) -> Any:
    """Accept any number of keys that can stand in a header."""
    keys = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for key in keys:
        if type(key) is not str or not re.fullmatch("[!-~]+", key):
            raise ValueError("a list of non-empty strings of visible ASCII characters")
    return keys


def _origins(value: Any) -> Any:
    """Accept origins of web pages, and ``*``."""
    origins = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for origin in origins:
        parts = urlsplit(origin) if type(origin) is str else None
        if origin != "*" and (
            parts is None or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"
        ):
            raise ValueError("a list of origins such as 'https://example.org', or '*'")
    return origins


def _url(value: Any) -> Any:
    """Accept the URL of something on the web, or nothing."""
    if value is None:
        return None
    try:
        parts = urlsplit(text(2048)(value))
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return value
    except ValueError:
        pass
    raise ValueError("a URL such as 'http://localhost:4318', or None")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(Strict):
    """The settings of the server.

    Raises:
      ConfigError: a name is unknown (the message suggests the nearest) or a value is not valid.
    """

    error: ClassVar[type[ValueError]] = ConfigError
    noun: ClassVar[str] = "setting of the server"
    belongs: ClassVar[str] = "the server: its table [server] in a file, or --set server.{}=..."

    host: str = option("127.0.0.1", text(256), "address to listen at; '0.0.0.0': everybody's")
    port: int = option(8000, whole(0, 65_535), "port to listen at; 0: any free one")
    api_keys: tuple[str, ...] = option((), _keys, "keys of clients; none: no key is needed")
    cors_origins: tuple[str, ...] = option(
        (), _origins, "web pages of these origins may call the server from browsers; '*': all"
    )
    served_model_name: str | None = option(
        None,
        text(256, optional=True),
        "what clients call the model; None: as the engine does",
    )

    max_n: int = option(10, whole(1, 64), "pictures for one request")
    max_side: int = option(4096, whole(1, 16_384), "width or height of a picture, pixels")
    max_pixels: int = option(1 << 24, whole(1), "width x height x n of one request")
    max_steps: int = option(200, whole(1, 10_000), "denoising steps")
    max_prompt_chars: int = option(4000, whole(1, PROMPT_LIMIT), "characters of a prompt")
    max_priority: int = option(0, whole(0, 1_000_000), "priority that a client may ask for")
    request_timeout_s: float | None = option(
        None, number(0.001, optional=True), "deadline of requests without an earlier one, s"
    )

    max_body_bytes: int = option(32 * MEBIBYTE, whole(1), "bytes of a request's body")
    max_image_pixels: int = option(1 << 24, whole(1), "pixels of a picture that is sent here")
    max_images: int = option(4, whole(1, 16), "pictures that one request may send")
    max_input_bytes: int = option(
        1024 * MEBIBYTE, whole(1), "bytes of all bodies and pictures that are kept for requests"
    )

    max_frames: int = option(257, whole(1, 10_000), "frames of a video")
    max_video_pixels: int = option(1 << 27, whole(1), "width x height x frames of a video")
    video_fps: int = option(
        16, whole(1, 120), "frames per second, unless a client or the pipeline says"
    )
    max_videos: int = option(64, whole(1), "videos that are made or kept, and jobs that failed")
    max_video_bytes: int = option(512 * MEBIBYTE, whole(1), "bytes of all videos that are kept")
    video_ttl_s: float = option(3600.0, number(0.001), "a video is kept for so long, s")

    max_connections: int = option(1000, whole(1), "open connections; further ones wait")
    idle_timeout_s: float = option(
        30.0, number(0.001), "a connection that brings no complete request head is closed, s"
    )
    body_timeout_s: float = option(60.0, number(0.001), "for a client to send a body, s")
    stalled_client_s: float = option(
        30.0, number(0.001, 2_000_000), "a client that takes no bytes for so long is cut off, s"
    )
    shutdown_grace_s: float = option(
        30.0, number(0), "for requests under way when the server is told to stop, s"
    )

    png_compress_level: int = option(
        1, whole(0, 9), "level of PNG: 1 is the fastest, 9 makes the smallest files"
    )
    json_logs: bool = option(False, flag(), "log lines as JSON objects")
    otlp_endpoint: str | None = option(
        None,
        _url,
        "URL of an OpenTelemetry collector (OTLP over HTTP) for traces; needs sidestream[otel];"
        " None: what OTEL_EXPORTER_OTLP_ENDPOINT says, if anything",
    )
    max_engine_restarts: int = option(
        3,
        whole(0, 1000),
        "how often in a row an engine that has died is started again before the server ends",
    )
