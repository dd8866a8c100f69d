"""What stands in the log: one line for each request, as words or as a JSON object."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from .exchange import Exchange
from .tracking import RequestRecord


def exchange_fields(exchange: Exchange) -> dict[str, Any]:
    """Return what the line of a request of HTTP tells: times in seconds or, of phases, ms."""
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "path": exchange.path,
        "status": exchange.status,
        "seconds": round((exchange.ended - exchange.began) / 1e9, 4),
        "bytes": exchange.sent,
        "client": exchange.client,
    }
    if exchange.record is not None and exchange.record.ended:
        fields |= record_fields(exchange.record)
    if exchange.encoding:
        fields["encode_ms"] = _milliseconds(exchange.encoding)
    if exchange.trace_id is not None:
        fields["trace_id"] = exchange.trace_id
    return fields


def record_fields(record: RequestRecord) -> dict[str, Any]:
    """Return what a line tells of what the engine ran: phases that it has not come to are left
    out."""
    fields: dict[str, Any] = {"outcome": record.state}
    if record.error is not None:
        fields["error"] = record.error
    if record.trace is not None and record.trace.worker >= 0:
        fields["worker"] = record.trace.worker
    if record.step is not None:
        fields["steps"] = record.step
    for name, (begin, end) in record.phases.items():
        fields[f"{name}_ms"] = _milliseconds(end - begin)
    if record.abort_seconds is not None:
        fields["abort_ms"] = round(record.abort_seconds * 1e3, 3)
    return fields


def _milliseconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)


def line_of(fields: Mapping[str, object], *, as_json: bool) -> str:
    """Format a line of the log: a JSON object, or ``key=value`` words."""
    if as_json:
        return json.dumps(fields)
    return " ".join(f"{name}={_word(value)}" for name, value in fields.items())


def _word(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "=')
    return text if plain else json.dumps(text)


class JsonFormatter(logging.Formatter):
    """Makes a JSON object of every record: its time, level and logger, then its fields (``extra``)
    or its message."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **(getattr(record, "fields", None) or {"message": record.getMessage()}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
