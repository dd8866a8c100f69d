"""The OpenAPI description of the app: FastAPI's, and where a key is needed."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from .gate import OPEN_PATHS
from .schemas import ERRORS

SCHEME = "key"


class DescribedApp(FastAPI):
    """A FastAPI app whose description tells of keys, which middleware checks.

    Args:
      keys_needed: whether clients have to have one.
      settings: of `FastAPI`.
    """

    def __init__(self, *, keys_needed: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self._keys_needed = keys_needed

    def openapi(self) -> dict[str, Any]:
        """Return the description; it is made once."""
        if self.openapi_schema is None:
            schema = get_openapi(title=self.title, version=self.version, routes=self.routes)
            self.openapi_schema = schema
            if self._keys_needed:
                _describe_keys(schema)
        return self.openapi_schema


def _describe_keys(schema: dict[str, Any]) -> None:
    schema["components"]["securitySchemes"] = {
        SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "One of the keys that the server was started with.",
        }
    }
    refusal = {
        "description": ERRORS[401]["description"],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}},
    }
    for path, operations in schema["paths"].items():
        if path not in OPEN_PATHS:
            for operation in operations.values():
                operation["security"] = [{SCHEME: []}]
                operation["responses"].setdefault("401", refusal)
