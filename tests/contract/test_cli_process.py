"""The command line as a process: files, progress, Ctrl-C, and what it leaves behind; what else it
does is tested in `test_cli_here`."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from PIL import Image

from ..harness.engines import offer_pipelines

COMMAND = [sys.executable, "-m", "sidestream.engine", "generate"]
PATIENCE = 120
SLOW = ("--set", "model_options.forward_ms=60000", "--set", "model_options.steps=300")


def generate(*arguments, stdin=None):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def read_until(stream, text):
    """Read characters until a text has come."""
    seen = ""
    while text not in seen:
        character = stream.read(1)
        assert character, f"{text!r} did not come, but {seen!r}"
        seen += character
    return seen


def test_prompts_become_files_whose_names_are_printed(tmp_path):
    (tmp_path / "prompts.txt").write_text("a cat\n\na dog\n")
    done = generate(
        *("A bird", "-f", tmp_path / "prompts.txt", "-o", tmp_path / "out", "--executor", "mp"),
        *("--model", "synthetic", "--seed", 200, "-n", 2, "--size", "12x8", "--batch", 2),
    )
    assert done.returncode == 0, done.stderr
    names = [f"a-{animal}-{seed}" for animal in ("bird", "cat", "dog") for seed in (200, 201)]
    expected = {str(tmp_path / "out" / f"{name}.png") for name in names}
    assert set(done.stdout.splitlines()) == expected
    for path in expected:
        with Image.open(path) as image:
            assert image.size == (12, 8)
            seed = int(path.removesuffix(".png").rpartition("-")[2])
            assert image.getextrema() == ((seed, seed),) * 3
    assert "painting" in done.stderr
    assert "6 done" in done.stderr


def test_prompts_come_from_standard_input_and_quiet_is_quiet(tmp_path):
    done = generate("-f", "-", "-o", tmp_path, "--steps", 1, "-q", stdin="a red circle\n")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == len(list(tmp_path.iterdir())) == 1
    assert done.stderr == ""


def test_a_preview_is_there_while_its_request_runs_and_stays_if_it_does_not_end(tmp_path):
    command = [*COMMAND, "a red circle", "-o", str(tmp_path), "--seed", "1", "--steps", "900"]
    command += ["--mode", "step", "--preview-every", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        preview = tmp_path / "a-red-circle-1.preview.png"
        while not preview.exists() or not preview.stat().st_size:
            assert process.stderr.read(1), "it ended without a preview"
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (130, b"")
    assert list(tmp_path.iterdir()) == [preview]
    with Image.open(preview) as image:
        assert image.size == (128, 128)
        image.load()


@pytest.mark.parametrize(
    ("executor", "number", "code", "moment"),
    [
        ("uni", signal.SIGINT, 130, "loading"),
        ("uni", signal.SIGINT, 130, " 1%|"),
        ("mp", signal.SIGINT, 130, "loading"),
        ("mp", signal.SIGINT, 130, " 1%|"),
        ("mp", signal.SIGTERM, 143, " 1%|"),
    ],
)
def test_a_signal_stops_it_without_a_traceback(tmp_path, executor, number, code, moment):
    arguments = [*("a", "b", "-o", tmp_path, "--executor", executor, "--model", "synthetic"), *SLOW]
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            read_until(process.stderr, moment)
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            out, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == code
    assert out == ""
    assert error.splitlines()[-1] == "sidestream: interrupted; 0 of 2 outputs are complete"
    assert "Traceback" not in error
    assert not any(child.is_running() for child in family)
    assert list(tmp_path.iterdir()) == []


def test_what_nothing_interrupts_is_told_and_ended_by_the_next_signal(tmp_path, monkeypatch):
    offer_pipelines(monkeypatch)
    command = [*COMMAND, "go on", "hang", "-o", str(tmp_path), "--model"]
    command += ["troubled:TroubledPipeline", "--set", f"shutdown_grace={PATIENCE}"]
    for option in ("error=hang", "when=hang"):
        command += ["--set", f"model_options.{option}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            read_until(process.stderr, "hanging")
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            read_until(process.stderr, "cannot be interrupted")
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert error.splitlines()[-1] == "sidestream: interrupted; 1 of 2 outputs are complete"
    assert "Traceback" not in error


def test_a_load_that_nothing_interrupts_is_not_waited_for(tmp_path, monkeypatch):
    offer_pipelines(monkeypatch)
    command = [*COMMAND, "a", "-o", str(tmp_path), "--model", "troubled:hangs"]
    command += ["--set", f"shutdown_grace={PATIENCE}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            read_until(process.stderr, "hanging")
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert error.splitlines()[-1] == "sidestream: interrupted; 0 of 1 outputs are complete"


def test_pictures_that_are_complete_stay_after_ctrl_c(tmp_path):
    arguments = ["a", "b", "-o", str(tmp_path), "--model", "synthetic", "--seed", "1", *SLOW]
    arguments += ["--executor", "mp", "--steps", "10"]  # 2 s each
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            path = process.stdout.readline().strip()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert error.splitlines()[-1] == "sidestream: interrupted; 1 of 2 outputs are complete"
    assert [str(file) for file in tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("model", "reason"),
    [("troubled:lingers", "LookupError: _Weights are lost"), ("nowhere:model", "no module")],
)
def test_a_start_that_fails_ends_in_order_however_the_worker_lets_go(
    tmp_path, monkeypatch, model, reason
):
    offer_pipelines(monkeypatch)
    patience = ("--set", f"shutdown_grace={PATIENCE}")
    done = generate("a", "-o", tmp_path, "-q", "--executor", "uni", "--model", model, *patience)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert reason in line


def test_the_installed_command_is_the_same():
    command = os.path.join(os.path.dirname(sys.executable), "sidestream")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sidestream ")
