"""The command line's words: sizes, settings, prompts, errors in one line, exit codes."""

import click
import pytest
from PIL import Image

from sidestream.engine import ConfigError, EngineConfig, RequestError
from sidestream.engine.cli import cli, main
from sidestream.engine.cli.arguments import (
    CONFIG_OPTIONS,
    PREVIEWS,
    SHAPES_SIDE,
    Adapter,
    Assignment,
    Size,
    advice,
    engine_config,
    read_prompts,
    requests_of,
)
from sidestream.engine.cli.outcome import one_line
from sidestream.engine.places import FAMILIES
from sidestream.workers.models import families_full, families_tiny, shapes

NOTHING = {
    "settings": (),
    "config": None,
    "arguments": (),
    "lora": (),
    "scales": (),
    "image": None,
    "size": None,
    "negative_prompt": None,
    "steps": None,
    "guidance": None,
    "seed": None,
    "count": 1,
    "file_format": "png",
    "quality": 90,
    "fps": 16,
    "preview": False,
    "preview_every": None,
    **dict.fromkeys(CONFIG_OPTIONS),
}


def run(capsys, *arguments):
    """Run a command line here; return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return stopped.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "size"), [("512x768", (512, 768)), ("64X32", (64, 32)), ("512", (512, 512))]
)
def test_sizes(text, size):
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "x", "12x", "x12", "1x2x3", "-1x2", "1.5x2", "123456x1"])
def test_what_is_no_size(text):
    with pytest.raises(click.BadParameter, match="is no size"):
        Size().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("a=1", ("a", 1)),
        ("a=1.5", ("a", 1.5)),
        ("a=true", ("a", True)),
        ("a=[1, 2]", ("a", [1, 2])),
        ('a="1"', ("a", "1")),
        ("a=bf16", ("a", "bf16")),
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", "")),
        ("a.b=c", ("a.b", "c")),
    ],
)
def test_assignments(text, pair):
    assert Assignment().convert(text, None, None) == pair


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_what_is_no_assignment(text):
    with pytest.raises(click.BadParameter, match="is not KEY=VALUE"):
        Assignment().convert(text, None, None)


def test_options_win_over_settings_and_settings_over_the_file(tmp_path):
    file = tmp_path / "engine.toml"
    file.write_text(
        'model = "synthetic"\nexecutor = "mp"\ndtype = "fp32"\n'
        '[model_options]\nsteps = 3\ndtype = "bf16"\n'
    )
    settings = (("executor", "uni"), ("dtype", "fp16"), ("model_options.steps", 5))
    config = engine_config(NOTHING | {"config": file, "settings": settings, "dtype": "bf16"})
    assert (config.model, config.executor, config.dtype) == ("synthetic", "uni", "bf16")
    assert config.model_options == {"steps": 5, "dtype": "bf16"}


def test_adapters_come_from_the_file_from_settings_and_from_options(tmp_path):
    file = tmp_path / "engine.toml"
    file.write_text('[lora]\nink = "a"\npixel = "owner/name"\n')
    options = {
        "config": file,
        "settings": (("lora.ink", "b"), ("lora.gold", "c")),
        "lora": (("gold", "d=e"),),
    }
    config = engine_config(NOTHING | options)
    assert config.lora == {"ink": "b", "pixel": "owner/name", "gold": "d=e"}
    scales = (("pixel", 0.5), ("gold", 2))
    (request,) = requests_of(["a"], NOTHING | options | {"scales": scales})
    assert request.sampling.lora == {"gold": 2.0, "pixel": 0.5}
    (request,) = requests_of(["a"], NOTHING | options)
    assert request.sampling.lora == {"gold": 1.0}


def test_adapters_are_given_as_name_and_place():
    assert Adapter().convert("ink=a=b.safetensors", None, None) == ("ink", "a=b.safetensors")
    for wrong in ("ink", "ink=", "=a", ""):
        with pytest.raises(click.BadParameter, match="is not NAME=PATH"):
            Adapter().convert(wrong, None, None)


def test_an_unknown_setting_is_refused_and_the_nearest_named():
    with pytest.raises(ConfigError, match="'max_num_seq': did you mean 'max_num_seqs'"):
        engine_config(NOTHING | {"settings": (("max_num_seq", 2),)})


@pytest.mark.parametrize("previews", [{"preview": True}, {"preview_every": 3}])
def test_previews_need_step_mode(previews):
    with pytest.raises(click.UsageError, match="--preview needs --mode step"):
        engine_config(NOTHING | previews)
    assert engine_config(NOTHING | previews | {"mode": "step"}).mode == "step"


@pytest.mark.parametrize(
    ("previews", "steps", "every"),
    [
        ({}, 0, 0),
        ({"preview": True}, PREVIEWS, 0),
        ({"preview_every": 3}, 0, 3),
        ({"preview": True, "preview_every": 3}, 0, 3),
    ],
)
def test_how_many_previews_are_asked_for(previews, steps, every):
    sampling = requests_of(["a"], NOTHING | previews)[0].sampling
    assert (sampling.preview_steps, sampling.preview_every) == (steps, every)


def test_prompts_are_lines_that_are_not_blank():
    assert read_prompts(["a cat\n", "\n", "  a dog \n", "\t\n", "last"]) == [
        "a cat",
        "a dog",
        "last",
    ]


def test_each_output_is_a_request_and_seeds_count_up():
    options = NOTHING | {"seed": 7, "count": 2, "size": (64, 32), "steps": 3}
    requests = requests_of(["a", "b"], options)
    assert [(r.prompt, r.sampling.seed) for r in requests] == [
        ("a", 7),
        ("a", 8),
        ("b", 7),
        ("b", 8),
    ]
    for request in requests:
        sampling = request.sampling
        assert (sampling.width, sampling.height, sampling.num_inference_steps) == (64, 32, 3)
        assert (sampling.num_outputs, sampling.output_type) == (1, "uint8")


def test_a_blank_prompt_is_none():
    requests = requests_of(["", " ", "a "], NOTHING)
    assert [request.prompt for request in requests] == [None, None, "a "]


@pytest.mark.parametrize(
    ("model", "size", "told"),
    [
        ("shapes", None, False),
        ("shapes", (128, 256), False),
        ("shapes", (1024, 128), True),
        ("shapes", (128, 32), True),
        ("random:sd15", (1024, 1024), False),
    ],
)
def test_the_size_that_shapes_was_trained_at_is_told(model, size, told):
    assert shapes.DEFAULTS["width"] == shapes.DEFAULTS["height"] == SHAPES_SIDE
    line = advice(EngineConfig(model=model), size)
    assert (line is not None and "trained at 128x128" in line) is told


def test_only_videos_are_encoded_by_the_engine():
    encoded = {"file_format": "mp4", "quality": 70, "fps": 8}
    sampling = requests_of(["a"], NOTHING | encoded)[0].sampling
    assert sampling.output_type == "mp4"
    assert sampling.output_options == {"quality": 70, "fps": 8}


def test_without_a_seed_every_prompt_draws_its_own():
    seeds = [r.sampling.seed for r in requests_of(["a"] * 20, NOTHING)]
    assert len(set(seeds)) > 1


def test_further_arguments_and_an_image_go_to_the_pipeline(tmp_path):
    Image.new("RGBA", (3, 2), (1, 2, 3, 4)).save(tmp_path / "in.png")
    options = NOTHING | {"arguments": (("strength", 0.5),), "image": tmp_path / "in.png"}
    extra = requests_of(["a"], options)[0].sampling.extra_args
    assert extra["strength"] == 0.5
    assert (extra["image"].mode, extra["image"].size) == ("RGB", (3, 2))
    (tmp_path / "in.png").write_bytes(b"nothing")
    with pytest.raises(RequestError, match="--image"):
        requests_of(["a"], options)


def test_a_traceback_in_a_message_is_cut_to_its_end():
    assert one_line("it broke\n  badly") == "sidestream: it broke badly"
    text = "worker 0: Traceback (most recent call last):\n  File x\n    y()\nValueError: no\n"
    assert one_line(text) == "sidestream: worker 0: ValueError: no"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "a", "--size", "4by4"], "'4by4' is no size"),
        (["generate", "a", "--set", "modle=x"], "unknown setting 'modle'"),
        (["generate", "a", "--executor", "gpu"], "executor must be 'uni', 'mp'"),
        (["generate", "a", "--format", "tiff"], "'tiff' is not one of 'png', 'jpeg', 'webp'"),
        (["generate", "a", "--quality", "101"], "101 is not in the range"),
        (["generate", "a", "-f", "/no/such/file"], "No such file"),
        (["generate", "a", "--config", "/no/such/file"], "does not exist"),
        (["generate", "a", "-o", "/dev/null/out"], "-o"),
        (["generate", "a", "--lora-scale", "ink=1"], "load it with --lora ink=PATH"),
        (["generate", "a", "--preview"], "--preview needs --mode step"),
        (["generate", "a", "--mode", "request", "--preview-every", "2"], "needs --mode step"),
        (["generate", "a", "--mode", "step", "--preview-every", "0"], "0 is not in the range"),
        (["generate", "a", "--mode", "steps"], "'steps' is not one of 'request', 'step'"),
        (["generate", "a", "--bogus"], "No such option '--bogus'"),
        (["generate", "-q"], "there is no prompt"),
        (["generate", "a", "--arg", "x"], "is not KEY=VALUE"),
        (["generate", "a" * 30_000], "prompt must be"),
        (["paint"], "No such command 'paint'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, error = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert error.startswith("sidestream: ")
    assert error.count("\n") == 1
    assert message in error


def test_prompts_that_are_no_text_are_bad_input(capsys, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"\xff\xfe a cat")
    code, _, error = run(capsys, "generate", "-f", str(file))
    assert code == 2
    assert "not UTF-8" in error
    assert error.count("\n") == 1


def test_the_version_and_the_help_are_for_people(capsys):
    code, out, error = run(capsys, "--version")
    assert (code, error) == (0, "")
    assert out.startswith("sidestream ")
    code, out, _ = run(capsys, "generate", "--help")
    assert code == 0
    for option in cli.commands["generate"].params:
        assert isinstance(option, click.Argument) or option.opts[0] in out
    assert "Examples:\n  sidestream generate" in out.replace("  Examples:\n  ", "Examples:\n")


def test_the_help_names_the_families_of_random_models(capsys):
    assert set(FAMILIES) == {*families_tiny.FAMILIES, *families_full.FAMILIES}
    assert ",".join(FAMILIES) in "".join(run(capsys, "generate", "--help")[1].split())


def test_a_bare_command_explains_itself(capsys):
    code, out, error = run(capsys, "generate")
    assert code == 2
    assert "Usage: sidestream generate" in out + error
