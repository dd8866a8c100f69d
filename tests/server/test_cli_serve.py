"""``sidestream serve`` as a process: what it prints, how it stops, what it says of mistakes."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading

import click
import httpx2
import psutil
import pytest
import trio
from click.testing import CliRunner
from PIL import Image

from sidestream.engine import ConfigError, open_engine
from sidestream.engine.cli import cli, main
from sidestream.server.cli import announce, read_settings, serve

from ..harness.http import GENERATIONS, png, served
from ..harness.serve_process import serving, url_told_by
from ..harness.surroundings import PATIENCE

MODEL = ["painters:painter", "--set", "model_options.steps=1000", "--device", "cpu"]
LONG = ["--set", "model_options.forward_ms=60000", "--set", "warmup=false"]
QUICK = ["--set", "model_options.forward_ms=1"]


def run(code):
    """Run a program to its end."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def refuses(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) != 0


def in_background(url, answers):
    """Ask for a picture; what comes of it is appended to `answers`."""

    def ask():
        try:
            answers.append(
                httpx2.post(url + GENERATIONS, json={"prompt": "x"}, timeout=PATIENCE).status_code
            )
        except httpx2.TransportError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    with httpx2.Client(base_url=url) as client:
        while "sidestream_running 1.0" not in client.get("/metrics").text:
            pass
    return thread


def test_it_serves_until_it_is_told_to_stop():
    with serving(*MODEL, *QUICK, "--port", "0", "--json-logs") as process:
        url = url_told_by(process)
        answer = httpx2.post(url + GENERATIONS, json={"prompt": "x"}, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        process.send_signal(signal.SIGTERM)
        code, errors = process.end()
    assert code == 0
    loading, request = errors.splitlines()
    assert f'"message": "loading {MODEL[0]}, to serve it at {url}"' in loading
    assert f'"request_id": "{answer.headers["x-request-id"]}"' in request


def test_requests_beyond_the_deadline_are_cancelled_and_no_worker_is_left():
    options = ("--port", "0", "--executor", "mp", "--set", "server.shutdown_grace_s=0.1")
    answers = []
    with serving(*MODEL, *LONG, *options) as process:
        thread = in_background(url_told_by(process), answers)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert workers
        process.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0
    thread.join(PATIENCE)
    (answer,) = answers
    assert isinstance(answer, httpx2.TransportError)
    assert not psutil.wait_procs(workers, PATIENCE)[1]


def test_a_second_signal_does_not_wait():
    answers = []
    with serving(*MODEL, *LONG, "--port", "0") as process:
        url = url_told_by(process)
        thread = in_background(url, answers)
        process.send_signal(signal.SIGTERM)
        port = int(url.rpartition(":")[2])
        while not refuses(port):  # it has seen the first
            pass
        process.send_signal(signal.SIGINT)
        assert process.end()[0] == 0
    thread.join(PATIENCE)


def test_it_answers_probes_while_the_engine_starts():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(*MODEL, *QUICK, "--port", str(port), "--executor", "mp") as process:
        answer = None
        while answer is None:
            try:
                answer = httpx2.get(f"http://127.0.0.1:{port}/readyz")
            except httpx2.ConnectError:
                assert process.poll() is None
        assert (answer.status_code, answer.json()) == (503, {"status": "starting"})
        process.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0


def test_it_ends_with_its_engine_and_those_who_wait_are_told():
    answers = []
    once = ("--set", "server.max_engine_restarts=0")
    with serving(*MODEL, *LONG, "--port", "0", "--executor", "mp", *once) as process:
        thread = in_background(url_told_by(process), answers)
        (worker,) = psutil.Process(process.pid).children()
        worker.kill()
        code, errors = process.end()
    thread.join(PATIENCE)
    assert answers == [503]
    assert code == 1
    assert "the engine is dead" in errors.splitlines()[-1]


def test_mistakes_are_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, code, word in (
            (["--set", "server.max_stepz=3"], 2, "did you mean 'max_steps'"),
            (["--set", "max_num_sexs=3"], 2, "did you mean 'max_num_seqs'"),
            (["--port", port], 1, f"port {port} of 127.0.0.1 is in use"),
            (["--host", "192.0.2.1", "--port", port], 1, f"at port {port} of 192.0.2.1: Cannot"),
            (["--set", "seed=1"], 2, "it belongs to a request"),
            (["--set", "max_steps=9"], 2, "or --set server.max_steps=..."),
            (["no such model", "--port", "0"], 2, "no such model"),
        ):
            with pytest.raises(SystemExit) as ended:
                main(["serve", *arguments])
            (line,) = capsys.readouterr().err.splitlines()
            assert ended.value.code == code
            assert word in line


def test_settings_come_from_the_file_then_set_then_options(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text(
        'model = "synthetic"\nmax_num_seqs = 2\n[model_options]\nsteps = 3\n'
        '[server]\nport = 1\nmax_n = 2\nmax_steps = 3\napi_keys = ["file"]\n'
    )
    arguments = ["--config", str(path), "--set", "server.max_n=4", "--set", "server.port=2"]
    arguments += ["--set", "model_options.forward_ms=5", "--port", "3", "--batch", "8"]
    arguments += ["--lora", "ink=a.safetensors", "--set", "lora.gold=owner/name"]
    with serve.make_context("serve", ["shapes", *arguments]) as context:
        engine, server = read_settings(context.params)
    assert (engine.model, engine.max_num_seqs) == ("shapes", 8)
    assert engine.model_options == {"steps": 3, "forward_ms": 5}
    assert engine.lora == {"ink": "a.safetensors", "gold": "owner/name"}
    assert (server.port, server.max_n, server.max_steps) == (3, 4, 3)
    assert server.api_keys == ("file",)


def test_workers_can_be_told_by_their_devices():
    arguments = ["/models/sdxl", "--executor", "mp", "--num-gpus", "2", "--port", "8000"]
    with serve.make_context("serve", arguments) as context:
        engine, server = read_settings(context.params)
    assert (engine.model, engine.executor, engine.num_workers) == ("/models/sdxl", "mp", 2)
    assert server.port == 8000


def test_the_model_may_be_an_option():
    with serve.make_context("serve", ["--model", "synthetic"]) as context:
        assert read_settings(context.params)[0].model == "synthetic"
    with serve.make_context("serve", ["shapes", "--model", "shapes"]) as context:
        assert read_settings(context.params)[0].model == "shapes"
    with (
        serve.make_context("serve", ["shapes", "--model", "synthetic"]) as context,
        pytest.raises(click.UsageError, match="different models"),
    ):
        read_settings(context.params)


@pytest.mark.parametrize("name", ["model_options", "lora"])
def test_a_table_that_is_none_is_refused_by_name(name):
    with (
        serve.make_context("serve", ["--set", f"{name}=5"]) as context,
        pytest.raises(ConfigError, match=f"{name} must be a table"),
    ):
        read_settings(context.params)


def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("SIDESTREAM_API_KEYS", "one two")
    with serve.make_context("serve", []) as context:
        assert read_settings(context.params)[1].api_keys == ("one", "two")


def test_other_commands_do_not_import_what_serving_needs():
    code = (
        "import sys\nfrom sidestream.engine.cli import main\n"
        "try:\n    main(['generate', '--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('fastapi', 'hypercorn', 'sidestream.server') if m in sys.modules])"
    )
    done = run(code)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_missing_extra_is_one_line():
    without = "import sys\nsys.modules['fastapi'] = None\nfrom sidestream.engine.cli import main\n"
    done = run(f"{without}main(['serve', 'shapes', '--port', '0'])")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "pip install 'sidestream[server]'" in line
    done = run(f"{without}main(['--help'])")
    assert done.returncode == 0
    assert "needs the extra" in done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    ("model", "key"), [("random:sd15", ()), ("random:sd15", ("KEY",)), ("random:sd15-inpaint", ())]
)
async def test_the_example_that_it_prints_makes_a_picture(model, key, capsys, tmp_path):
    for name in ("picture.png", "mask.png"):
        (tmp_path / name).write_bytes(png())
    config = {"model": model, "device": "cpu", "warmup": False}
    with trio.fail_after(PATIENCE):
        async with open_engine(config) as engine, served(engine, api_keys=key) as server:
            announce(server.url, server.app.state.service)
            command = capsys.readouterr().out.splitlines()[2]
            await trio.run_process(["sh", "-c", command], cwd=tmp_path, stderr=None)
    with Image.open(tmp_path / "made.png") as picture:
        assert picture.size == (64, 64)


def test_it_is_among_the_commands():
    result = CliRunner().invoke(cli, ["--help"])
    assert "serve" in result.output
    assert "generate" in result.output
