"""``sidestream bench serve``: its plan, its clock, and its counts, against real servers."""

from __future__ import annotations

import itertools
import json
import math
import signal
import socket
from collections import Counter
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import click
import pytest
import trio

from sidestream.engine import open_engine
from sidestream.engine.cli import main
from sidestream.server.bench import events
from sidestream.server.bench.cli import serve, settings_of, write
from sidestream.server.bench.client import Answer, open_client
from sidestream.server.bench.load import Load, Record
from sidestream.server.bench.mix import Kind, parse_field, parse_mix
from sidestream.server.bench.plan import Plan
from sidestream.server.bench.report import Report
from sidestream.server.bench.running import run

from ..harness.engines import LONG, offer_pipelines, painting
from ..harness.http import served
from ..harness.programs import run_program
from ..harness.surroundings import PATIENCE, assert_idle, settled

DEEP = "[" * 100 + "]" * 100
NUMBERS = ("--rate", "--duration", "--timeout", "--cancel", "--cancel-within")
SLOW = {"forward_ms": 60_000, "steps": LONG}


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


def settings_context(url, *arguments):
    return serve.make_context("serve", ["--url", url, "-q", *map(str, arguments)])


def settings(url, *arguments):
    """Read a command line."""
    with settings_context(url, *arguments) as context:
        return settings_of(context.params)


def plan(**more):
    return Plan(**{"kinds": [Kind()], "prompts": ["x"], "fields": {}, **more})


def first(count, of):
    return list(itertools.islice(of.visits(), count))


# -- what is asked for


def test_a_mix_is_kinds_with_weights():
    few, many = parse_mix("steps=4 format=jpeg:7, n=2 size=64x64 stream=true guidance=1.5")
    assert few.name == "steps=4 format=jpeg"
    assert few.fields == {"num_inference_steps": 4, "output_format": "jpeg"}
    assert few.weight == 7
    assert many.fields == {"n": 2, "size": "64x64", "stream": True, "guidance_scale": 1.5}
    assert many.weight == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "steps", "steps=4:0", "steps=4:x", "=4", "n=1,n=1", ":3", "n=1:inf"),
        "n=1:1e308,n=2:1e308",
    ],
)
def test_what_is_no_mix_is_refused(text):
    with pytest.raises(ValueError, match=r"is no|is not|twice"):
        parse_mix(text)


@pytest.mark.parametrize("value", ["1e999", "[1e999]", '"\\ud800"', "\udcff", "[" * 20_000, DEEP])
def test_what_cannot_be_sent_is_no_field(value):
    with pytest.raises(ValueError, match=r"cannot be sent|nested") as refused:
        parse_field(f"x={value}")
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


def test_a_plan_is_the_same_again():
    kinds = parse_mix("n=1:7,n=2:3")
    whole = {"kinds": kinds, "prompts": ["a", "b"], "rate": 5.0, "cancel": 0.25, "seed": 3}
    visits = first(4000, plan(**whole))
    assert first(4000, plan(**whole)) == visits
    assert first(4000, plan(**whole | {"seed": 4})) != visits
    assert 750 < visits[-1].at < 850
    assert Counter(visit.kind.name for visit in visits)["n=1"] == pytest.approx(2800, rel=0.1)
    leaving = [visit.patience for visit in visits if visit.patience < math.inf]
    assert len(leaving) == pytest.approx(1000, rel=0.1)
    assert 0 <= min(leaving) <= max(leaving) <= 1
    others = first(4000, plan(rate=5.0, seed=3))
    assert [visit.at for visit in others] == [visit.at for visit in visits]
    assert not any(visit.at for visit in first(10, plan()))


def test_a_kind_wins_over_what_all_have():
    (visit,) = first(1, plan(kinds=[Kind("k", {"n": 2})], fields={"n": 1, "user": "me"}))
    assert visit.body == {"prompt": "x", "n": 2, "user": "me"}


# -- time


class OneAtATime:
    """Answers in a second, one request after the other."""

    def __init__(self):
        self._turn = trio.Semaphore(1)

    async def generate(self, _body, on_partial):
        async with self._turn:
            await trio.sleep(0.5)
            on_partial()
            await trio.sleep(0.5)
        return Answer(200)


@pytest.mark.parametrize("concurrency", [1, 3, 1000])
async def test_waiting_counts_wherever_it_happens(autojump_clock, concurrency):
    load_plan = plan(rate=3.0)
    load = Load(OneAtATime(), load_plan, duration=20, concurrency=concurrency, timeout=math.inf)
    await load.run()
    free, expected = 0.0, []
    for visit in itertools.takewhile(lambda visit: visit.at < 20, load_plan.visits()):
        free = max(free, visit.at) + 1
        expected.append(free - visit.at)
    assert len(expected) > 40
    assert [record.latency for record in load.records] == pytest.approx(expected)
    partial = [latency - 0.5 for latency in expected]
    assert [record.first_partial for record in load.records] == pytest.approx(partial)
    assert load.elapsed == pytest.approx(free)


async def test_a_closed_loop_asks_when_it_has_an_answer(autojump_clock):
    load = Load(OneAtATime(), plan(), duration=9.5, concurrency=2, timeout=math.inf)
    await load.run()
    assert load.elapsed == pytest.approx(11)
    assert sorted(record.latency for record in load.records) == pytest.approx([1, *[2] * 10])


async def test_patience_and_the_limit_of_time(autojump_clock):
    leaving = plan(rate=1.0, cancel=1.0, cancel_within=0.4)
    load = Load(OneAtATime(), leaving, duration=20, concurrency=9, timeout=math.inf)
    await load.run()
    assert {record.outcome for record in load.records} == {"cancelled"}
    load = Load(OneAtATime(), plan(), duration=2, concurrency=1, timeout=0.75)
    await load.run()
    report = Report.of(load.records, ["requests"], load.elapsed)
    assert report.errors == {"- timeout": 3}
    assert report.all.first_partial is not None
    assert report.all.latency is None


# -- counts


def test_a_report_counts():
    records = [Record("a", "completed", Answer(200), latency=n / 100) for n in range(1, 101)]
    records += [Record("b", "failed", Answer(429, "busy"))] * 3
    records += [Record("b", "failed", Answer(None, "ConnectError")), Record("b", "cancelled")]
    report = Report.of(records, ["a", "b", "c"], 50.0)
    assert (report.all.requests, report.all.failed, report.all.cancelled) == (105, 4, 1)
    assert report.all.per_second == 2
    assert report.errors == {"429 busy": 3, "- ConnectError": 1}
    assert report.kinds["a"].latency == pytest.approx(
        {"mean": 0.505, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    )
    assert report.kinds["c"].requests == 0
    lines = report.table().splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["a", "b", "c", "all"]
    assert " ".join(lines[1].split()) == "a 100 100 0 0 2.00 0.500 0.900 0.990 1.000"
    assert lines[5:] == ["3 x 429 busy", "1 x - ConnectError"]
    json.dumps(report.as_dict(), allow_nan=False)


async def test_what_it_counts_is_what_the_engine_counts():
    config = painting("uni", warmup=False, max_num_seqs=4)
    with trio.fail_after(PATIENCE):
        async with open_engine(config) as engine, served(engine) as server:
            for options in (("--concurrency", 3), ("--rate", 40)):
                before = engine.statistics().completed
                report, number = await run(settings(server.url, "--duration", 0.5, *options))
                await assert_idle(engine)
                assert number is None
                assert report.all.requests == report.all.completed > 0
                assert engine.statistics().completed - before == report.all.completed
                assert not report.errors


async def test_errors_are_counted_by_status_and_code():
    config = painting("uni", options={"fail_at_step": 0}, warmup=False)
    mix = "n=1, n=0, size=64x63, prompt=fail, prompt=fail stream=true, n=1 stream=true"
    with trio.fail_after(PATIENCE):
        async with open_engine(config) as engine, served(engine) as server:
            options = ("--mix", mix, "--rate", 40, "--duration", 1, "--cancel", 0)
            report, _ = await run(settings(server.url + "/v1/", *options))
            assert report.all.failed == sum(report.errors.values())
            assert report.all.completed + report.all.failed == report.all.requests
            by_kind = {name: row for name, row in report.kinds.items() if row.failed}
            assert report.errors == {
                "400 invalid_value": by_kind.pop("n=0").requests,
                "422 unsupported": by_kind.pop("size=64x63").requests,
                "500 failed": by_kind.pop("prompt=fail").requests,
                "200 failed": by_kind.pop("prompt=fail stream=true").requests,
            }
            assert not by_kind
            assert engine.statistics().completed == report.all.completed


async def test_partial_images_are_seen():
    config = {"model": "shapes", "device": "cpu", "mode": "step", "warmup": False}
    fields = ("--param", "stream=true", "--param", "partial_images=2", "--param", "steps=4")
    async with open_engine(config) as engine, served(engine) as server:
        with trio.fail_after(PATIENCE):
            report, _ = await run(settings(server.url, "--duration", 0.1, *fields))
    assert report.all.completed == report.all.requests
    assert report.all.first_partial is not None
    assert report.all.latency is not None
    assert 0 < report.all.first_partial["p50"] < report.all.latency["p50"]


async def test_those_who_leave_are_cancelled_on_the_engine():
    leaving = plan(cancel=1.0, cancel_within=0.1)
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options=SLOW)) as engine,
            served(engine) as server,
            open_client(server.url) as client,
        ):
            load = Load(client, leaving, duration=math.inf, concurrency=2, timeout=math.inf)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run)
                await settled(lambda: engine.statistics().aborted >= 5)
                nursery.cancel_scope.cancel("it is enough")
            await assert_idle(engine)
            counts = Counter(record.outcome for record in load.records)
            assert counts.keys() == {"cancelled", "unfinished"}
            assert counts["unfinished"] <= 2
            assert 5 <= engine.statistics().aborted <= len(load.records)


async def test_a_server_that_goes_is_counted():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with open_client(f"http://127.0.0.1:{port}") as client:
        load = Load(client, plan(rate=50.0), duration=0.2, concurrency=9, timeout=PATIENCE)
        await load.run()
    assert load.records
    assert {record.answer for record in load.records} == {Answer(None, "ConnectError")}


@asynccontextmanager
async def hostile(head, piece, times=None):
    """Serve an answer to everybody: pieces after a head, without end unless it is told how many."""

    async def answer(stream):
        with suppress(trio.BrokenResourceError):
            asked = bytearray()
            while not asked.endswith(b"{}"):  # the body; what is not read would reset the answer
                asked += await stream.receive_some() or b"{}"
            await stream.send_all(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode())
            for _ in itertools.count() if times is None else range(times):
                await stream.send_all(piece)
            await stream.aclose()

    async with trio.open_nursery() as nursery:
        serve_it = partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve_it)
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel("it was asked")


EVENTS = "200 OK\r\nContent-Type: text/event-stream"
COMPLETED = b"event: image_generation.completed\r\n"


@pytest.mark.parametrize(
    ("head", "piece", "times", "expected"),
    [
        ("500 No", b"[" * 60_000, 1, Answer(500, "unknown")),
        ("500 No", b'{"error":{"code":{"a":1},"type":7}}', 1, Answer(500, "7")),
        ("500 No", b'{"error":{"code":"\x1b[2J\xc3\xa4"}}', 1, Answer(500, "unknown")),
        ("500 No", rb'{"error":{"code":"\u001b[2J\u00e4"}}', 1, Answer(500, r"\x1b[2J\xe4")),
        ("500 No", b'{"error":{"code":"%s"}}' % (b"x" * 99), 1, Answer(500, "x" * 57 + "...")),
        (EVENTS, b"x" * 65_536, None, Answer(200, "too_long")),
        (EVENTS, b"event: error\ndata: " + b"[" * 60_000 + b"\n", 1, Answer(200, "unknown")),
        (EVENTS, COMPLETED + b"data: " + b"x" * 300_000 + b"\r\n\r\n", 1, Answer(200)),
        (EVENTS, b"data: " + b"x" * 300_000 + b"\n" + COMPLETED, 9, Answer(200)),
        (EVENTS, COMPLETED[:-2], 1, Answer(200, "incomplete")),
    ],
)
async def test_a_server_may_say_anything(monkeypatch, head, piece, times, expected):
    monkeypatch.setattr(events, "LONGEST_LINE", 1 << 20)
    with trio.fail_after(PATIENCE):
        async with hostile(head, piece, times) as url, open_client(url) as client:
            assert await client.generate({}, lambda: None) == expected


def test_a_picture_of_4096_pixels_fits_in_a_line():
    assert events.LONGEST_LINE > 4 * (3 * 4096**2) / 3 + (1 << 20)


# -- the command


async def test_a_key_is_needed_where_it_is_wanted():
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni")) as engine,
            served(engine, api_keys=("secret",)) as server,
        ):
            with pytest.raises(ConnectionError, match="401, a valid key is needed"):
                await run(settings(server.url, "--duration", 0.1))
            keyed = settings(server.url, "--duration", 0.1, "--api-key", "secret")
            report, _ = await run(keyed)
            assert report.all.completed == report.all.requests > 0


async def test_an_engine_that_is_not_ready_is_told():
    with trio.fail_after(PATIENCE):
        async with served(None) as server:
            with pytest.raises(ConnectionError, match="503, the engine is starting"):
                await run(settings(server.url))


def test_mistakes_are_one_line(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "empty.txt").touch()
    for arguments, code, word in (
        (["--url", nobody], 1, "no server there"),
        (["--url", "127.0.0.1:8000"], 2, "http://HOST:PORT"),
        (["--url", nobody, "--mix", "steps"], 2, "NAME=VALUE"),
        (["--url", nobody, "--param", "steps"], 2, "NAME=VALUE"),
        (["--url", nobody, "--rate", "0"], 2, "--rate"),
        (["--url", nobody, "-f", str(tmp_path / "empty.txt")], 2, "no prompt"),
        *((["--url", nobody, name, "nan"], 2, "in the range") for name in NUMBERS),
        *((["--url", nobody, name, "inf"], 2, "in the range") for name in NUMBERS),
        (["--url", "http://127.0.0.1:abc"], 2, "is no URL"),
        (["--url", "http://127.0.0.1:80\n\x1b[1m"], 2, "is no URL"),
        (["--url", "http://a\udcff"], 2, "is no URL"),
        (["--url", nobody, "--api-key", "schl\u00fcssel"], 2, "printable ASCII"),
        (["--url", nobody, "--json", str(tmp_path / "no/folder")], 2, "no/folder"),
        ([], 2, "--url"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["bench", "serve", *arguments])
        (line,) = capsys.readouterr().err.splitlines()
        assert ended.value.code == code, line
        assert word in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_results_that_cannot_be_written_are_told():
    with settings_context("http://127.0.0.1:9", "--json", "/dev/full") as context:
        report = Report.of([], ["requests"], 1.0)
        with pytest.raises(click.ClickException, match="/dev/full: No space left") as told:
            write(report, settings_of(context.params), context.params["json_file"])
    assert told.value.exit_code == 1


async def test_an_interrupt_prints_what_there_is(tmp_path):
    results = tmp_path / "results.json"
    options = ["--rate", "100", "--duration", "600", "--mix", "n=1, n=0", "--json", str(results)]
    with trio.fail_after(PATIENCE):
        async with open_engine(painting("uni", options=SLOW)) as engine, served(engine) as server:
            command = ["sidestream.engine", "bench", "serve", "--url", server.url, *options]
            async with run_program(Path("-m"), *command) as program:
                await settled(lambda: engine.statistics().claims >= 3)
                program.process.send_signal(signal.SIGINT)
                while await program.next_line() is not None:
                    pass
                errors = await program.stderr()
                code = await program.process.wait()
            await assert_idle(engine)
    assert code == 128 + signal.SIGINT, errors
    found = json.loads(results.read_text())
    assert found["all"]["completed"] == 0
    assert found["all"]["unfinished"] >= 3
    assert found["all"]["failed"] == sum(found["errors"].values())
    assert found["errors"].keys() <= {"400 invalid_value", "429 busy"}
    assert program.lines[-1].startswith(f"{found['all']['unfinished']} were under way")
    assert "asking" in errors
