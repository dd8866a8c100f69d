"""What clients send is bounded for all requests together, before anything of it is decoded."""

from __future__ import annotations

import httpx2
import pytest
import trio

from sidestream.engine import open_engine
from sidestream.server.uploads import kept_bytes

from ..harness.engines import LONG, filming, offer_pipelines, painting
from ..harness.http import EDITS, GENERATIONS, client_of, png, served
from ..harness.surroundings import PATIENCE, assert_idle, settled
from ..harness.videos import VIDEOS, assert_error, told
from .test_refusals import bomb

SIDE = 256
PICTURE = kept_bytes(SIDE * SIDE)
ROOM = 2 * PICTURE + 10_000
"""For two pictures, and for what else there is in the bodies."""
SLOW = {"forward_ms": 60_000, "steps": LONG}


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


def gauge_of(service):
    return service.metrics.registry.get_sample_value("sidestream_input_bytes")


async def test_queued_pictures_have_so_many_bytes_together():
    async with (
        open_engine(painting("uni", options=SLOW)) as engine,
        served(engine, max_input_bytes=ROOM) as server,
        client_of(server.app) as client,
    ):
        inputs = server.app.state.service.inputs

        async def edit(picture):
            return await client.post(
                EDITS, data={"prompt": "x"}, files={"image": ("a.png", picture)}
            )

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for count in (1, 2):
                    nursery.start_soon(edit, png((SIDE, SIDE)))
                    await settled(lambda count=count: engine.statistics().claims == count)
                assert 2 * PICTURE < inputs.held == gauge_of(server.app.state.service) <= ROOM
                # There is nothing in it that could be decoded.
                refused = await edit(bomb(SIDE, SIDE))
                assert_error(refused, 429, code="busy", word="max_input_bytes")
                assert 1 <= int(refused.headers["retry-after"]) <= 60
                assert engine.statistics().claims == 2
                nursery.start_soon(lambda: client.post(GENERATIONS, json={"prompt": "x"}))
                await settled(lambda: engine.statistics().claims == 3)
                nursery.cancel_scope.cancel()
        assert inputs.held == 0
        assert_error(await edit(bomb(SIDE, SIDE)), 400, param="image", code="invalid_image")
        assert_error(await edit(bomb(3 * SIDE, SIDE)), 413, code="too_large")
        assert inputs.held == 0
        await assert_idle(engine)


async def test_a_video_that_is_being_made_keeps_its_picture():
    async with (
        open_engine(filming("uni", options=SLOW)) as engine,
        served(engine, max_input_bytes=ROOM) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
    ):
        inputs = server.app.state.service.inputs

        async def create(picture):
            files = {"input_reference": ("a.png", picture)}
            return await client.post(VIDEOS, data={"prompt": "x"}, files=files)

        with trio.fail_after(PATIENCE):
            jobs = [(await create(png((SIDE, SIDE)))).json() for _ in range(2)]
            await settled(lambda: inputs.held == 2 * PICTURE)  # the bodies have gone
            assert_error(await create(bomb(SIDE, SIDE)), 429, code="busy")
            assert (await client.delete(f"{VIDEOS}/{jobs[0]['id']}")).status_code == 200
            await settled(lambda: inputs.held == PICTURE)
            await client.post(f"/v1/requests/{jobs[1]['request_id']}/cancel")
            await told(client, jobs[1], "failed")
            await settled(lambda: inputs.held == 0)
        await assert_idle(engine)
