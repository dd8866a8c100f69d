"""``sidestream trace``: runs, the files and figures that they leave, and what is refused."""

import json
import os
import sys

import pytest
from PIL import Image

from sidestream.engine import RequestTrace
from sidestream.engine.cli import main
from sidestream.engine.cli.run_summary import merged, summarize
from sidestream.engine.cli.timeline_figure import DRAWN, draw_timeline

from ..harness.trace_events import tracks_of

MS = 1_000_000
SMALL = ("--model", "synthetic", "--set", "model_options.forward_ms=1", "--device", "cpu")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *arguments):
    """Run the command here; return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["trace", *map(str, arguments)])
    return stopped.value.code, *capsys.readouterr()


def slices(path, title):
    """Return the names of a track's slices, over all rows."""
    rows = tracks_of(json.loads(path.read_text())).get(title, [])
    return [name for row in rows for name, *_ in row]


def ran(worker=0, outcome="completed", **times):
    """Make a trace; times in ms."""
    return RequestTrace(
        "a", worker=worker, outcome=outcome, **{name: time * MS for name, time in times.items()}
    )


# -- runs


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_a_run_leaves_a_file_and_its_figures(capsys, tmp_path, executor):
    code, out, error = run(capsys, *SMALL, "-n", 3, "--executor", executor)
    assert (code, out) == (0, "trace.json\n")
    last = error.splitlines()[-1].rpartition("\r")[2].strip()
    assert last.startswith("traced: ")
    for word in ("requests/s", "busy", "bubble", "forward to engine"):
        assert word in last
    expected = [f"{number}: a large red circle" for number in (1, 2, 3)]
    for track in ("worker 0/forwards", "worker 0/copies"):
        assert sorted(slices(tmp_path / "trace.json", track)) == expected


def test_prompts_sampling_and_settings_are_those_of_generate(capsys, tmp_path):
    (tmp_path / "prompts.txt").write_text("a dog\n")
    code, out, error = run(
        *(capsys, *SMALL, "a cat", "-f", "prompts.txt", "-n", 2, "-o", "here.json", "-q"),
        *("--mode", "step", "--batch", 4, "--steps", 2, "--size", "8x8", "--output-type", "png"),
    )
    assert (code, out, error) == (0, "here.json\n", "")
    assert sorted(slices(tmp_path / "here.json", "worker 0/forwards")) == [
        *("1: a cat", "2: a cat", "3: a dog", "4: a dog"),
    ]
    assert slices(tmp_path / "here.json", "requests/requests").count("postprocess") == 4


def test_quiet_is_what_the_help_says(capsys):
    assert "names of files and errors only" in " ".join(run(capsys, "--help")[1].split())
    assert run(capsys, *SMALL, "-n", 1, "--compare", "-q") == (0, "trace.json\n", "")


def test_a_comparison_runs_three_times_and_draws_them(capsys, tmp_path):
    code, out, error = run(
        capsys, *SMALL, "--compare", "--png", "a.png", "-o", "a.json", "-n", 5, "--overwrite"
    )
    assert code == 0, error
    assert set(out.split()) == {"a.png", "a.json"}
    for name in ("sync", "async, depth 1", "async, depth 2"):
        assert f"{name}: " in error
        assert len(slices(tmp_path / "a.json", f"{name}: worker 0/forwards")) == 5
    tracks = tracks_of(json.loads((tmp_path / "a.json").read_text()))
    assert len(tracks["sync: requests/requests"]) == 1  # none was there while another one was
    assert len(tracks["async, depth 2: requests/requests"]) > 1
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        assert image.width > image.height


def test_there_is_no_json_file_if_only_a_figure_is_wanted(capsys, tmp_path):
    code, out, _ = run(capsys, *SMALL, "--png", "only.png", "-n", 1, "-q")
    assert (code, out) == (0, "only.png\n")
    assert [path.name for path in tmp_path.iterdir()] == ["only.png"]


def test_requests_that_fail_are_told_and_traced(capsys, tmp_path):
    failing = ("--set", "model_options.fail_at_step=0")
    code, out, error = run(capsys, *SMALL, *failing, "fail", "go", "-n", 1, "-q")
    assert (code, out) == (1, "trace.json\n")
    assert error == "sidestream: 1: fail: RuntimeError: synthetic failure at step 0\n"
    names = slices(tmp_path / "trace.json", "worker 0/forwards")
    assert sorted(names) == ["1: fail (failed)", "2: go"]


def test_callers_may_be_more_than_the_queue_usually_takes(capsys):
    room = ("--set", "max_queued_requests=1", "--concurrency", 8)
    code, _, error = run(capsys, *SMALL, *room, "-n", 16, "-q")
    assert (code, error) == (0, "")


# -- what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "old.json"], "old.json exists; choose another name, or --overwrite"),
        (["--png", "old.json", "-o", "new.json"], "old.json exists"),
        (["-o", "no/such/folder.json"], "cannot be written"),
        (["-o", "."], "is a directory"),
        (["-o", "old.json/new.json"], "old.json/new.json cannot be written"),
        (["-o", "same", "--png", "same"], "name the same file"),
        (["-o", "same", "--png", os.path.join(os.curdir, "empty", os.pardir, "same")], "same file"),
        (["-n", "0"], "0 is not in the range"),
        (["--concurrency", "0"], "0 is not in the range"),
        (["--output-type", "tiff"], "'tiff' is not one of"),
        (["-f", "empty"], "no prompt in the file"),
        (["--set", "modle=x"], "unknown setting 'modle'"),
        (["--preview"], "No such option '--preview'"),
        (["--num-workers", "2"], "num_workers must be 1 with executor 'uni'"),
        (["--arg", "nope=1", "--model", "synthetic"], "takes no 'nope'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(capsys, tmp_path, arguments, message):
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "empty").write_text("\n")
    code, out, error = run(capsys, *arguments, "-q")
    assert (code, out) == (2, "")
    assert message in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "old.json"]
    assert (tmp_path / "old.json").read_text() == "old"


def test_overwriting_is_possible(capsys, tmp_path):
    (tmp_path / "trace.json").write_text("old")
    assert run(capsys, *SMALL, "-n", 1, "-q", "--overwrite")[0] == 0
    assert len(slices(tmp_path / "trace.json", "worker 0/forwards")) == 1


def test_a_model_that_is_not_there_leaves_no_file(capsys, tmp_path):
    code, _, error = run(capsys, "--model", "shpes", "-q")
    assert code == 2
    assert "did you mean 'shapes'" in error
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named_before_any_work(capsys, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "sidestream.engine.cli.timeline_figure")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    code, _, error = run(capsys, "--png", "a.png", "--model", "shpes")
    assert code == 1
    assert "--png needs the extra: pip install 'sidestream[trace]'" in error
    assert run(capsys, *SMALL, "-n", 1, "-q")[0] == 0  # the other file does not need it


# -- figures


def test_a_summary_tells_how_devices_spent_their_time():
    traces = [
        ran(submitted=1, forward_start=2, forward_end=12, arrived=13, ended=14),
        ran(submitted=1, forward_start=14, forward_end=24, arrived=27, ended=28),
        ran(submitted=1, ended=90, outcome="aborted", worker=-1),
        ran(submitted=1, worker=1, forward_start=2, forward_end=24, arrived=26, ended=51),
    ]
    summary = summarize(traces)
    assert summary.requests_per_s == pytest.approx(3 / 0.050)
    assert summary.busy == pytest.approx(42 / 44)
    assert summary.bubble_ms == pytest.approx(2)
    assert summary.output_ms == pytest.approx(2)
    assert str(summary) == (
        "60.0 requests/s, busy 95.5 %, bubble 2.00 ms, forward to engine 2.00 ms"
    )


def test_forwards_of_a_wave_have_no_bubble_between_them():
    wave = [ran(submitted=1, forward_start=2, forward_end=end, ended=20) for end in (11, 12)]
    later = ran(submitted=1, forward_start=16, forward_end=18, ended=20)
    assert summarize(wave).bubble_ms is None
    assert summarize(wave).busy == 1
    assert summarize([*wave, later]).bubble_ms == pytest.approx(4)


@pytest.mark.parametrize("traces", [[], [ran(submitted=1, ended=2, outcome="aborted", worker=-1)]])
def test_a_run_in_which_nothing_ran_says_so(traces):
    assert str(summarize(traces)) == "no request was run"


def test_intervals_that_touch_are_one():
    assert merged([(5, 7), (1, 3), (2, 4), (4, 5), (9, 9)]) == [(1, 7), (9, 9)]
    assert merged([]) == []


def test_a_figure_can_be_drawn_of_any_run(tmp_path):
    many = [
        ran(submitted=n, forward_start=n, forward_end=n + 3, copy_start=n, copy_end=n + 4, ended=99)
        for n in range(1, 2 * DRAWN)
    ]
    never = ran(submitted=1, ended=2, outcome="aborted", worker=-1)
    other = ran(submitted=1, worker=1, forward_start=2, forward_end=4, ended=9, outcome="failed")
    heights = []
    for runs in ({"": [never]}, {"a": [other]}, {"a": [other], "b": [*many, other, never]}):
        draw_timeline(runs, tmp_path / "a.png")
        with Image.open(tmp_path / "a.png") as image:
            heights.append(image.height)
            assert image.getpixel((2, 2))[:3] == (255, 255, 255)
    assert heights == sorted(heights)
    assert heights[-1] > heights[0]
