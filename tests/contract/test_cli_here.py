"""The command line, run in this process: formats, previews, errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from PIL import Image

from sidestream.engine.cli import main
from sidestream.postprocess import read_video_info


@pytest.fixture
def generate(capsys, monkeypatch):
    """Run ``sidestream generate`` to its end."""
    for library in ("TRANSFORMERS", "DIFFUSERS"):  # the command sets these for its process
        monkeypatch.setenv(f"{library}_VERBOSITY", "error")

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["generate", *map(str, arguments)])
        stdout, stderr = capsys.readouterr()
        return SimpleNamespace(returncode=end.value.code, stdout=stdout, stderr=stderr)

    return run


def test_prompts_become_files_whose_names_are_printed(generate, tmp_path):
    done = generate(
        *("A bird", "-o", tmp_path, "--model", "synthetic", "--seed", 200, "-n", 2, "-q"),
        *("--size", "12x8"),
    )
    assert done.returncode == 0, done.stderr
    expected = {str(tmp_path / f"a-bird-{seed}.png") for seed in (200, 201)}
    assert set(done.stdout.splitlines()) == expected
    assert done.stderr == ""


def test_a_video_is_one_file(generate, tmp_path):
    done = generate(
        *("waves", "-o", tmp_path, "--model", "random:wan", "--seed", 1, "-q"),
        *("--format", "webp", "--arg", "num_frames=5", "--size", 32, "--steps", 1),
    )
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "waves-1.webp") as image:
        assert image.n_frames == 5


def test_a_video_can_be_an_mp4(generate, tmp_path):
    done = generate(
        *("waves", "-o", tmp_path, "--model", "random:wan", "--seed", 1, "-q", "--format", "mp4"),
        *("--fps", 8, "--arg", "num_frames=5", "--size", 32, "--steps", 1),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/waves-1.mp4\n"
    info = read_video_info((tmp_path / "waves-1.mp4").read_bytes())
    assert info == (32, 32, 5, 8)


def test_a_picture_is_no_mp4(generate, tmp_path):
    done = generate("a cat", "-o", tmp_path, "-q", "--format", "mp4")
    assert done.returncode == 2
    assert "which is for videos: StableDiffusionPipeline makes image" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_previews_are_gone_when_their_outputs_are_there(generate, tmp_path):
    done = generate(
        *("a red circle", "a blue square", "-o", tmp_path, "--seed", 1, "-q", "--steps", 6),
        *("--mode", "step", "--batch", 2, "--preview-every", 1),
    )
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a-blue-square-1.png", "a-red-circle-1.png"]


def test_a_model_without_previews_says_so_before_any_work(generate, tmp_path):
    done = generate(
        *("a", "-o", tmp_path, "--model", "synthetic", "--mode", "step", "--preview", "-q")
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "SyntheticPipeline" in done.stderr


def test_a_size_far_from_what_shapes_was_trained_at_is_warned_of(generate, tmp_path):
    size = ("--size", "32", "--steps", 1, "--seed", 1)
    warned, quiet = (generate("a", "-o", tmp_path, *size, *more) for more in ((), ("-q",)))
    assert warned.stderr.startswith("sidestream: shapes was trained at 128x128")
    assert (warned.returncode, quiet.returncode, quiet.stderr) == (0, 0, "")


def test_a_request_that_fails_does_not_end_the_others(generate, tmp_path):
    done = generate(
        *("good one", "fail here", "good two", "-o", tmp_path, "--seed", 1, "-q"),
        *("--model", "synthetic", "--set", "model_options.fail_at_step=0"),
    )
    assert done.returncode == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good-one-1.png", "good-two-1.png"]
    assert done.stderr.splitlines() == [
        "sidestream: 'fail here': RuntimeError: synthetic failure at step 0"
    ]


def test_verbose_tells_the_traceback(generate, tmp_path):
    done = generate(
        *("fail", "-o", tmp_path, "-q", "-v", "--model", "synthetic"),
        *("--set", "model_options.fail_at_step=0"),
    )
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "_fail_if_told" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "shpes"], 2, "did you mean 'shapes'"),
        (["--model", "shpes", "--executor", "mp"], 2, "did you mean 'shapes'"),
        (["--model", "synthetic", "--arg", "nope=1"], 2, "takes no 'nope'"),
        (["--arg", "strength=1"], 2, "'strength': that is an argument of image-to-image pipelines"),
        (["--size", "128x65"], 2, "height must be a multiple of 8, not 65: the nearest 64 and 72"),
        (["--model", "./no/such/model"], 2, "model: no such file or directory"),
        (["--lora", "ink=no.safetensors"], 2, "lora.ink: no such file or directory"),
        (["--device", "gpu"], 2, "device must be 'auto', 'cpu', 'cuda' or 'cuda:N', not 'gpu'"),
        (["--model", "synthetic", "--set", "model_options.shape=[1,16]"], 1, "no picture"),
    ],
)
def test_errors_are_one_line(generate, tmp_path, arguments, code, message):
    done = generate("a", "-o", tmp_path, "-q", *arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_blank_prompt_is_none_which_some_models_do_not_do_without(generate, tmp_path):
    done = generate(" ", "-o", tmp_path, "-q")
    assert done.returncode == 2
    assert done.stderr == "sidestream: StableDiffusionPipeline needs prompt\n"
