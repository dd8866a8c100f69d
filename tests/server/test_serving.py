"""The server on a real socket: clients that go, stall, or send too much; stopping; probes."""

from __future__ import annotations

import re
import socket

import httpx2
import pytest
import trio

from sidestream.engine import open_engine
from sidestream.server import ServerConfig
from sidestream.server.serving import open_listener, url_of

from ..harness.engines import LONG, offer_pipelines, painting
from ..harness.http import EDITS, GENERATIONS, png, post_bytes, served
from ..harness.surroundings import PATIENCE, assert_idle, nothing_left, settled

SLOW = {"forward_ms": 60_000, "steps": LONG}
STEPS = 1 / 6
"""Steps of `SLOW` that take a millisecond."""


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


async def head_of(stream) -> bytes:
    """Read up to the end of an answer's head."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = await stream.receive_some()
        assert chunk, f"the connection ended: {data!r}"
        data += chunk
    return data


async def rest_of(stream) -> bytes:
    """Read up to the end of a connection."""
    data = b""
    try:
        async for chunk in stream:
            data += chunk
    except trio.BrokenResourceError:
        pass
    return data


async def running(engine, count):
    await settled(lambda: engine.statistics().running == count)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["request", "step"])
async def test_a_client_that_goes_is_a_request_that_ends(mode, stream):
    with trio.fail_after(PATIENCE):
        config = painting("uni", options=SLOW, mode=mode)
        async with open_engine(config) as engine, served(engine) as server:
            service = server.app.state.service
            for _ in range(3):
                body = {"prompt": "x", "stream": stream, "request_id": "a"}
                connection = await server.post(GENERATIONS, body)
                await running(engine, 1)
                if stream:
                    assert b"200" in await head_of(connection)
                await connection.aclose()
                await assert_idle(engine)
                await settled(lambda: not service.requests.is_live("a"))
            assert service.requests.find("a").state == "cancelled"
            text = service.metrics.text().decode()
            assert 'sidestream_requests_total{outcome="cancelled"} 3.0' in text
            assert "sidestream_abort_seconds_count 3.0" in text
            assert engine.statistics().aborted == 3


async def test_an_edit_ends_with_its_client():
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options=SLOW)) as engine,
            served(engine) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            async with trio.open_nursery() as nursery:
                files = {"image": ("a.png", png())}
                nursery.start_soon(lambda: client.post(EDITS, data={"prompt": "x"}, files=files))
                await running(engine, 1)
                nursery.cancel_scope.cancel()
            await assert_idle(engine)


async def test_many_clients_of_which_half_go_leave_nothing():
    config = painting("uni", options={"forward_ms": 20, "steps": 20}, max_num_seqs=4)
    with trio.fail_after(PATIENCE):
        async with open_engine(config) as engine, nothing_left(at_once=False):
            async with served(engine) as server, trio.open_nursery() as nursery:

                async def stay():
                    connection = await server.post(GENERATIONS, {"prompt": "x"})
                    assert b"200" in await head_of(connection)
                    await connection.aclose()

                async def go(after):
                    connection = await server.post(GENERATIONS, {"prompt": "x"})
                    for _ in range(after):
                        await trio.lowlevel.checkpoint()
                    await connection.aclose()

                for index in range(20):
                    nursery.start_soon(stay)
                    nursery.start_soon(go, 20 * index)
            await assert_idle(engine)


# -- bodies


class InPieces(httpx2.AsyncByteStream):
    """A body of zeros without a declared length."""

    def __init__(self):
        self._left = 48

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return bytes(1 << 16)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", [GENERATIONS, EDITS, "/v1/nothing", "/livez"])
async def test_a_client_that_sends_too_much_sees_the_answer(path, chunked):
    expected = {GENERATIONS: 413, EDITS: 413, "/v1/nothing": 404 if chunked else 413}
    body = bytes(3 << 20)

    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni")) as engine,
            served(engine, max_body_bytes=1 << 20) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            kind = "multipart/form-data; boundary=a" if path == EDITS else "application/json"
            for _ in range(3):
                answer = await client.post(
                    path,
                    content=InPieces() if chunked else body,
                    headers={"Content-Type": kind},
                )
                if path == EDITS and chunked:
                    assert answer.status_code in (400, 413)  # zeros are no multipart body
                else:
                    assert answer.status_code == expected.get(path, 405 if chunked else 413)
            assert (await client.get("/livez")).status_code == 200


async def test_a_refusal_does_not_wait_for_the_body():
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni")) as engine,
            served(engine, api_keys=("key",)) as server,
            await server.connect() as connection,
        ):
            head = f"POST {GENERATIONS} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
            await connection.send_all(head.encode())
            assert b" 401 " in await head_of(connection)


async def test_a_body_has_its_time():
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni")) as engine,
            served(engine, body_timeout_s=0.05) as server,
            await server.connect() as connection,
        ):
            await connection.send_all(post_bytes(GENERATIONS, {"prompt": "x"})[:-3])
            assert b" 408 " in await head_of(connection)


# -- connections


async def test_a_connection_without_a_request_is_closed():
    with trio.fail_after(PATIENCE):
        async with served(None, idle_timeout_s=0.05) as server:
            for sent in (b"", b"GET /livez HTTP/1.1\r\nX-Slow: "):
                async with await server.connect() as connection:
                    await connection.send_all(sent)
                    assert await rest_of(connection) == b""


async def test_a_head_has_a_limit():
    with trio.fail_after(PATIENCE):
        async with served(None) as server, await server.connect() as connection:
            await connection.send_all(b"GET /livez HTTP/1.1\r\nX: " + b"x" * (1 << 17))
            assert b" 431 " in await rest_of(connection)


async def test_what_is_no_http_is_refused():
    with trio.fail_after(PATIENCE):
        async with served(None) as server:
            for head in (
                b"no http at all\r\n\r\n",
                b"GET /livez HTTP/1.1\r\n\r\n",
                b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
                b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            ):
                async with await server.connect() as connection:
                    await connection.send_all(head)
                    assert b" 400 " in await rest_of(connection)
            async with await server.connect() as connection:
                await connection.send_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
                assert b" 200 " in await head_of(connection)


async def test_connections_beyond_the_limit_wait():
    with trio.fail_after(PATIENCE):
        async with served(None, max_connections=2) as server:
            connections = [await server.connect() for _ in range(3)]
            for connection in connections:
                await connection.send_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await head_of(connections[0])
            assert b" 200 " in await head_of(connections[1])
            with trio.move_on_after(0.05) as waited:
                await head_of(connections[2])
            assert waited.cancelled_caught
            await connections[0].aclose()
            assert b" 200 " in await head_of(connections[2])
            for connection in connections:
                await connection.aclose()


async def test_a_client_that_does_not_read_cannot_hold_the_server():
    options = {"shape": (1, 3, 1024, 1024)}
    config = painting("uni", options=options, output_ring_bytes=64 << 20)
    with trio.fail_after(PATIENCE):
        async with open_engine(config) as engine:
            server_settings = {"png_compress_level": 0, "shutdown_grace_s": 0.05}
            async with served(engine, **server_settings) as server:
                connection = await server.connect()
                body = {"prompt": "x", "n": 8}
                await connection.send_all(post_bytes(GENERATIONS, body))
                assert b" 200 " in await head_of(connection)
                await assert_idle(engine)
            await connection.aclose()


def test_the_kernel_cuts_a_stalled_client_off():
    with open_listener(ServerConfig(port=0, stalled_client_s=1.5)) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with socket.create_connection((host, port)), listener.accept()[0] as connection:
            option = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert option == 1500
    with open_listener(ServerConfig(host="::1", port=0)) as listener:
        assert re.fullmatch(r"http://\[::1\]:\d+", url_of(listener))


# -- stopping


async def test_stopping_waits_for_requests_under_way():
    with trio.fail_after(PATIENCE):
        config = painting("uni", options={"forward_ms": 200, "steps": 20})
        async with (
            open_engine(config) as engine,
            served(engine, shutdown_grace_s=PATIENCE) as server,
            await server.connect() as idle,
        ):
            connection = await server.post(GENERATIONS, {"prompt": "x"})
            await running(engine, 1)
            server.stop.set()
            assert await rest_of(idle) == b""
            assert b" 200 " in await head_of(connection)
            await server.ended.wait()
            with pytest.raises(OSError, match="connect"):
                await server.connect()
            await connection.aclose()


async def test_stopping_has_a_deadline():
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options=SLOW)) as engine,
            served(engine, shutdown_grace_s=0.05) as server,
        ):
            connection = await server.post(GENERATIONS, {"prompt": "x"})
            await running(engine, 1)
            server.stop.set()
            await server.ended.wait()
            await assert_idle(engine)
            await connection.aclose()


async def test_a_cancelled_server_is_gone_at_once():
    with trio.fail_after(PATIENCE):
        async with open_engine(painting("uni", options=SLOW)) as engine:
            async with trio.open_nursery() as nursery, served(engine) as server:
                connection = await server.post(GENERATIONS, {"prompt": "x"})
                await running(engine, 1)
                nursery.cancel_scope.cancel()
            await assert_idle(engine)
            await connection.aclose()


# -- what it tells


async def test_metrics_tell_what_happened():
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni")) as engine,
            served(engine) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            await client.post(GENERATIONS, json={"prompt": "x", "n": 3})
            await client.post(GENERATIONS, json={"prompt": "x", "n": 0})
            await client.get("/v1/hunt/for/routes")
            service = server.app.state.service
            await settled(lambda: 'route="other"' in service.metrics.text().decode())
            answer = await client.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain")
            lines = set(answer.text.splitlines())
            assert {
                f'sidestream_http_requests_total{{route="{GENERATIONS}",status="200"}} 1.0',
                f'sidestream_http_requests_total{{route="{GENERATIONS}",status="400"}} 1.0',
                'sidestream_http_requests_total{route="other",status="404"} 1.0',
                'sidestream_requests_total{outcome="completed"} 1.0',
                'sidestream_phase_seconds_count{phase="forward"} 1.0',
                "sidestream_images_total 3.0",
                "sidestream_encode_seconds_count 1.0",
                "sidestream_waiting 0.0",
                "sidestream_waves_dispatched_total 2.0",
            } <= lines
            assert any(line.startswith("sidestream_worker_heartbeat_age") for line in lines)


@pytest.mark.parametrize("json_logs", [False, True])
async def test_each_request_is_one_line_of_the_log(json_logs, caplog):
    caplog.set_level("INFO", "sidestream.server.access")
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options=SLOW)) as engine,
            served(engine, json_logs=json_logs) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            await client.get("/v1/a%20%22quoted%22%0Apath", headers={"X-Request-Id": "b"})
            connection = await server.post(GENERATIONS, {"prompt": "x"})
            await running(engine, 1)
            await connection.aclose()
            await settled(lambda: len(caplog.messages) == 2)
    first, second = caplog.messages
    assert len((first + second).splitlines()) == 1
    if json_logs:
        assert '"request_id": "b"' in first
        assert '"status": 499' in second
    else:
        assert first.startswith(
            'request_id=b method=GET path="/v1/a \\"quoted\\"\\npath" status=404'
        )
        assert " status=499 " in second
