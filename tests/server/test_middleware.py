"""The middleware by itself, between an app and a server that the tests play."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import trio
from PIL import Image

from sidestream.postprocess import check_output_options, encode
from sidestream.server.bodies import BodyLimit, DiscardUnread
from sidestream.server.disconnect import DISCONNECTED, CancelOnDisconnect
from sidestream.server.encoding import PIECE, answer_pieces, event_pieces
from sidestream.server.errors import ApiError
from sidestream.server.input_bytes import InputBytes

from ..harness.http import events_of, picture_of

ROOMY = InputBytes(1 << 30, lambda: 1)
ANSWER = (
    {"type": "http.response.start", "status": 200, "headers": []},
    {"type": "http.response.body", "body": b"yes", "more_body": False},
)


def scope(**headers):
    return {
        "type": "http",
        "headers": [(name.replace("_", "-").encode(), v.encode()) for name, v in headers.items()],
    }


async def answers(_scope, _receive, send):
    """Answer without a look at the body."""
    for message in ANSWER:
        await send(message)


class Client:
    """Sends a body in pieces and goes when it has the answer, or as soon as it is told to."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)
        self.gone = trio.Event()
        self.received = []
        self.finished = False

    @property
    def unread(self):
        return len(self._pieces)

    async def receive(self):
        await trio.lowlevel.checkpoint()
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.received.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.gone.set()  # hypercorn tells the end of an exchange as a disconnect
            await trio.testing.wait_all_tasks_blocked()
            self.finished = True


NESTED = pytest.mark.parametrize("wrapped", [lambda app: app, CancelOnDisconnect])
"""An app that is mounted into another one has the same middleware twice."""


@NESTED
async def test_a_disconnect_cancels(wrapped):
    client, cancelled = Client(b""), False

    async def app(_scope, receive, _send):
        nonlocal cancelled
        await receive()
        client.gone.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled = True

    exchange = scope()
    await CancelOnDisconnect(wrapped(app))(exchange, client.receive, client.send)
    assert cancelled
    assert exchange[DISCONNECTED]
    assert client.received == []


@NESTED
async def test_the_end_of_an_answer_is_no_disconnect(wrapped):
    client, exchange = Client(b""), scope()
    await CancelOnDisconnect(wrapped(answers))(exchange, client.receive, client.send)
    assert client.finished
    assert client.received == list(ANSWER)
    assert DISCONNECTED not in exchange


@NESTED
async def test_an_app_may_see_the_end_of_its_answer(wrapped):
    seen = []

    async def app(_scope, receive, send):
        await receive()
        await answers(_scope, receive, send)
        seen.append(await receive())

    client = Client(b"")
    await CancelOnDisconnect(wrapped(app))(scope(), client.receive, client.send)
    assert seen == [{"type": "http.disconnect"}]


async def test_a_body_is_not_read_ahead():
    client = Client(*[b"x"] * 10)

    async def app(_scope, receive, send):
        await trio.testing.wait_all_tasks_blocked()
        assert client.unread >= 8
        assert b"".join([(await receive())["body"] for _ in range(10)]) == b"x" * 10
        await answers(_scope, receive, send)

    await CancelOnDisconnect(app)(scope(), client.receive, client.send)
    assert client.finished


async def test_what_is_left_of_a_body_is_dropped_before_the_answer_ends():
    client = Client(*[b"x"] * 10)
    await DiscardUnread(answers)(scope(), client.receive, client.send)
    assert client.unread == 0
    assert b"".join(message.get("body", b"") for message in client.received) == b"yes"
    assert [message.get("more_body") for message in client.received] == [None, True, False]


async def test_a_client_that_goes_on_for_ever_is_not_listened_to_for_ever(autojump_clock):
    class Endless(Client):
        async def receive(self):
            await trio.sleep(0.01)
            return {"type": "http.request", "body": b"x", "more_body": True}

    client = Endless()
    with trio.fail_after(5):
        await DiscardUnread(answers)(scope(), client.receive, client.send)
    assert client.finished


@pytest.mark.parametrize("sizes", [(6,), (3, 3), (6, 0)])
async def test_a_body_has_a_limit(sizes):
    async def app(_scope, receive, send):
        while (await receive())["more_body"]:
            pass
        await answers(_scope, receive, send)

    client = Client(*map(bytes, sizes))
    await BodyLimit(app, ROOMY, 6, 1)(scope(content_length="6"), client.receive, client.send)
    assert client.received == list(ANSWER)
    client = Client(*map(bytes, sizes))
    with pytest.raises(ApiError) as refused:
        await BodyLimit(app, ROOMY, 5, 1)(scope(), client.receive, client.send)
    assert refused.value.status_code == 413
    client = Client(*map(bytes, sizes))
    await BodyLimit(app, ROOMY, 5, 1)(scope(content_length="6"), client.receive, client.send)
    assert client.received[0]["status"] == 413
    assert client.unread == len(sizes)
    assert ROOMY.held == 0


async def test_all_bodies_together_have_a_limit():
    inputs = InputBytes(10, lambda: 7)
    held = []

    async def app(_scope, receive, send):
        while (await receive())["more_body"]:
            held.append(inputs.held)
        await answers(_scope, receive, send)

    client = Client(bytes(3), bytes(3), b"")
    await BodyLimit(app, inputs, 100, 1)(scope(), client.receive, client.send)
    assert client.received == list(ANSWER)
    assert (held, inputs.held) == ([3, 6], 0)
    with inputs.keep(5):
        client = Client(bytes(3), bytes(3))
        with pytest.raises(ApiError) as refused:  # in the middle of what did not say how long it is
            await BodyLimit(app, inputs, 100, 1)(scope(), client.receive, client.send)
        assert refused.value.status_code == 429
        assert refused.value.headers["Retry-After"] == "7"
        assert inputs.held == 5
        client = Client(bytes(6))
        await BodyLimit(app, inputs, 100, 1)(scope(content_length="6"), client.receive, client.send)
        assert client.received[0]["status"] == 429
        assert client.unread == 1
    with inputs.keep(50):  # more than there may be: what has no body is let in
        client = Client(b"")
        await BodyLimit(app, inputs, 100, 1)(scope(), client.receive, client.send)
        assert client.received == list(ANSWER)


async def test_the_time_for_a_body_is_not_that_for_an_answer(autojump_clock):
    async def app(_scope, receive, send):
        await receive()
        with trio.move_on_after(100) as waited:
            await receive()  # as frameworks do, to see a disconnect
        assert waited.cancelled_caught
        await answers(_scope, receive, send)

    client = Client(b"x")
    await BodyLimit(app, ROOMY, 5, 1)(scope(), client.receive, client.send)
    assert client.received == list(ANSWER)


def test_pieces_of_large_pictures_join():
    rng = np.random.default_rng(0)
    pictures = [
        encode(rng.integers(0, 256, (side, 700, 3), np.uint8), "png", check_output_options("png"))
        for side in (700, 1, 1500)
    ]
    assert len(pictures[2]) > 2 * PIECE
    pieces = answer_pieces(pictures, 2**63 - 3, {"created": 1})
    body = json.loads(b"".join(pieces))
    assert [base64.b64decode(datum["b64_json"]) for datum in body["data"]] == pictures
    assert [datum["seed"] for datum in body["data"]] == [2**63 - 3 + i for i in range(3)]
    assert (body["size"], body["created"]) == ("700x700", 1)
    ((name, data),) = events_of(b"".join(event_pieces("a.b", pictures[2], {"n": 1})).decode())
    assert (name, data["type"], data["size"], data["n"]) == ("a.b", "a.b", "700x1500", 1)
    assert isinstance(picture_of(data["b64_json"]), Image.Image)
    assert max(map(len, pieces)) <= PIECE // 3 * 4
