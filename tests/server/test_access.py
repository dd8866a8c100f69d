"""Who may come in: keys, wherever the app is mounted, and pages of other origins."""

from __future__ import annotations

import pytest
import trio
from fastapi import FastAPI

from sidestream.engine import open_engine
from sidestream.server import ServerConfig, create_app

from ..harness.engines import LONG, offer_pipelines, painting
from ..harness.http import GENERATIONS, asgi_client, client_of
from ..harness.surroundings import assert_idle, settled
from ..harness.videos import assert_error


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


async def test_a_key_is_asked_for_everywhere_but_at_probes():
    keys = ("first-key", "second-key")
    async with open_engine(painting("uni")) as engine, asgi_client(engine, api_keys=keys) as client:
        for header in (
            None,
            "",
            "first-key",
            "Basic first-key",
            "Bearer",
            "Bearer x",
            "Bearer \xff",
        ):
            headers = {} if header is None else {"Authorization": header.encode("latin-1")}
            for path in ("/v1/models", "/v1/nothing", "/metrics", "/openapi.json"):
                answer = await client.get(path, headers=headers)
                assert_error(answer, 401, code="invalid_api_key")
            assert_error(await client.post(GENERATIONS, json={}, headers=headers), 401)
            for path in ("/livez", "/readyz", "/health"):
                assert (await client.get(path, headers=headers)).status_code == 200
        for key in keys:
            headers = {"Authorization": f"Bearer {key}"}
            assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("place", ["/", "/deep/below"])
async def test_keys_and_room_are_the_same_wherever_the_app_is_mounted(place, caplog):
    caplog.set_level("INFO", "sidestream.server.access")
    config = painting("uni", options={"forward_ms": 60_000, "steps": LONG}, max_queued_requests=1)
    prefix = place.rstrip("/")
    key = {"Authorization": "Bearer key"}
    async with open_engine(config) as engine:
        outer = FastAPI(openapi_url=None)
        outer.mount(place, create_app(engine, ServerConfig(api_keys=("key",))))
        async with client_of(outer) as client, trio.open_nursery() as nursery:
            for path in ("/livez", "/readyz", "/health", "/", "/page/main.js"):
                assert (await client.get(prefix + path)).status_code == 200, path
            assert not caplog.messages, "probes have no lines"
            for path in ("/v1/models", "/metrics", "/livez/", "/openapi.json", "/x/livez"):
                assert_error(await client.get(prefix + path), 401, code="invalid_api_key")
            assert (await client.get(f"{prefix}/v1/models", headers=key)).status_code == 200
            path, body = prefix + GENERATIONS, {"prompt": "x"}
            for count in (1, 2, 3):
                nursery.start_soon(lambda: client.post(path, json=body, headers=key))
                await settled(lambda count=count: engine.statistics().claims == count)
                await settled(lambda count=count: engine.statistics().waiting == max(0, count - 2))
            answer = await client.post(path, content=b"not looked at", headers=key)
            assert_error(answer, 429, code="busy")
            nursery.cancel_scope.cancel()
        await assert_idle(engine)


async def test_the_description_says_where_a_key_is_needed():
    described = {}
    for keys in ((), ("first-key",)):
        app = create_app(config=ServerConfig(api_keys=keys))
        async with client_of(app) as client:
            headers = {"Authorization": "Bearer first-key"}
            described[keys] = (await client.get("/openapi.json", headers=headers)).json()
            for path, operations in described[keys]["paths"].items():
                if "get" in operations and "{" not in path:
                    answer = await client.get(path)
                    needed = "security" in operations["get"]
                    assert needed == (answer.status_code == 401), path
    without, keyed = described.values()
    assert "securitySchemes" not in without["components"]
    (scheme,) = keyed["components"]["securitySchemes"]
    assert keyed["components"]["securitySchemes"][scheme]["scheme"] == "bearer"
    open_paths = set()
    for path, operations in keyed["paths"].items():
        for operation in operations.values():
            if "security" in operation:
                assert operation["security"] == [{scheme: []}]
                content = operation["responses"]["401"]["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}
            else:
                open_paths.add(path)
    assert open_paths == {"/livez", "/readyz", "/health"}


async def test_pages_of_other_origins_may_call_only_where_they_are_named():
    origin, other = "https://a.example", "https://b.example"
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-any"}
    async with open_engine(painting("uni")) as engine:
        async with asgi_client(engine) as client:
            assert_error(
                await client.options(GENERATIONS, headers=asking | {"Origin": origin}), 405
            )
            answer = await client.get("/v1/models", headers={"Origin": origin})
            assert not any(name.startswith("access-control") for name in answer.headers)
        settings = {"cors_origins": [origin, "http://localhost:3000"], "api_keys": ["key"]}
        async with asgi_client(engine, **settings) as client:
            asked = await client.options(GENERATIONS, headers=asking | {"Origin": origin})
            assert asked.status_code == 200, "browsers ask without a key"
            assert asked.headers["access-control-allow-origin"] == origin
            assert "access-control-allow-credentials" not in asked.headers
            refused = await client.options(GENERATIONS, headers=asking | {"Origin": other})
            assert "access-control-allow-origin" not in refused.headers
            headers = {"Origin": origin, "Authorization": "Bearer key"}
            answer = await client.get("/v1/models", headers=headers)
            assert answer.headers["access-control-allow-origin"] == origin
            assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
            assert_error(await client.get("/v1/models", headers={"Origin": origin}), 401)
