"""The timeline: when forwards and copies took place, and nothing of whose they were."""

from __future__ import annotations

import pytest
import trio

from sidestream.engine import RequestTrace, open_engine
from sidestream.server.timeline import timeline

from ..harness.engines import LONG, offer_pipelines, painting
from ..harness.http import GENERATIONS, asgi_client, events_of, served
from ..harness.surroundings import PATIENCE, assert_idle, settled

TIMELINE = "/v1/timeline"
PHASES = (
    "submitted",
    "dispatched",
    "forward_start",
    "forward_end",
    "copy_start",
    "copy_end",
    "arrived",
    "ended",
)


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


async def test_what_has_ended_is_told_once():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        first = (await client.get(TIMELINE)).json()
        for _ in range(3):
            await client.post(GENERATIONS, json={"prompt": "x"})
        answer = (await client.get(TIMELINE, params={"after": first["last"]})).json()
        numbers = [request["number"] for request in answer["requests"]]
        assert numbers == [first["last"] + 1 + index for index in range(3)]
        assert answer["last"] == numbers[-1]
        for request in answer["requests"]:
            assert (request["worker"], request["outcome"]) == (0, "completed")
            moments = [request[phase] for phase in PHASES]
            assert moments == sorted(moments)
            assert moments[-1] <= 0
        (worker,) = answer["workers"]
        assert worker["busy_seconds"] > 0
        again = (await client.get(TIMELINE, params={"after": answer["last"]})).json()
        assert (again["requests"], again["last"]) == ([], answer["last"])


async def test_it_tells_what_waits_and_runs_but_not_whose_it_is():
    config = painting("uni", options={"forward_ms": 60_000, "steps": LONG}, dispatch_depth=1)
    secrets = ("name-of-a-request", "words of a prompt")
    body = {"request_id": secrets[0], "prompt": secrets[1]}
    with trio.fail_after(PATIENCE):
        async with open_engine(config) as engine, served(engine) as server:
            first = await server.post(GENERATIONS, body)
            await settled(lambda: engine.statistics().running == 1)
            second = await server.post(GENERATIONS, {"prompt": "x"})
            await settled(lambda: engine.statistics().waiting == 1)
            async with asgi_client(engine) as client:
                answer = (await client.get(TIMELINE)).json()
                assert (answer["running"], answer["waiting"]) == (1, 1)
                assert answer["workers"][0]["running"] == 1
                await second.aclose()
                await first.aclose()
                await assert_idle(engine)
                answer = await client.get(TIMELINE, params={"after": answer["last"]})
    assert not any(secret in answer.text for secret in secrets)
    waited, ran = sorted(answer.json()["requests"], key=lambda request: request["worker"])
    assert waited["outcome"] == ran["outcome"] == "aborted"
    assert waited["worker"] == -1
    assert waited["dispatched"] is waited["forward_start"] is None
    assert ran["forward_start"] < ran["forward_end"] < 0
    assert ran["copy_start"] is None


async def test_a_new_engine_counts_anew():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        await client.post(GENERATIONS, json={"prompt": "x"})
        known = (await client.get(TIMELINE)).json()
        answer = (await client.get(TIMELINE, params={"after": 1000})).json()
        numbers = [request["number"] for request in answer["requests"]]
        assert numbers == [request["number"] for request in known["requests"]]
        assert answer["last"] == known["last"] == numbers[-1]


async def test_times_are_milliseconds_from_now():
    times = {"submitted": 1_000_000, "forward_start": 2_500_000, "ended": 4_000_000}
    trace = RequestTrace("secret", number=7, outcome="completed", **times)
    async with open_engine(painting("uni")) as engine:
        answer = timeline([trace], engine.statistics(), 0, now=5_000_000)
    (request,) = answer.requests
    assert answer.last == 7
    assert (request.submitted, request.forward_start, request.ended) == (-4.0, -2.5, -1.0)
    assert request.dispatched is None
    assert "secret" not in answer.model_dump_json()


@pytest.mark.parametrize("after", ["-1", "x", "1.5", str(2**63)])
async def test_a_bad_number_is_refused(after):
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        answer = await client.get(TIMELINE, params={"after": after})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "after"


async def test_without_an_engine_there_is_none():
    async with asgi_client(None) as client:
        assert (await client.get(TIMELINE)).status_code == 503


# -- progress in streams


@pytest.mark.parametrize("mode", ["request", "step"])
async def test_a_stream_tells_progress_if_asked_to(mode):
    config = painting("uni", options={"forward_ms": 50, "steps": 5}, mode=mode)
    async with open_engine(config) as engine, asgi_client(engine) as client:
        body = {"prompt": "x", "stream": True}
        plain = events_of((await client.post(GENERATIONS, json=body)).text)
        assert [name for name, _ in plain] == ["image_generation.completed"]
        assert set(plain[0][1]["timings"]) >= {"queued", "forward", "output", "postprocess"}
        answer = await client.post(GENERATIONS, json={**body, "stream_progress": True})
        *told, (last, _) = events_of(answer.text)
        assert last == "image_generation.completed"
        assert {name for name, _ in told} == {"image_generation.progress"}
        states = [data["state"] for _, data in told]
        assert states[0] == "queued"
        assert set(states[1:]) == {"running"}
        assert told[0][1]["queue_position"] == 0
        steps = [data["step"] for _, data in told if "step" in data]
        assert steps == sorted(set(steps))
        assert set(steps) <= set(range(6))
        assert all(data["total"] == 5 for _, data in told if "step" in data)


async def test_progress_needs_a_stream():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        answer = await client.post(GENERATIONS, json={"prompt": "x", "stream_progress": True})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "stream_progress"
