"""Settings: what is accepted, what is refused, and what the refusal says."""

import dataclasses
import enum
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sidestream.engine import ConfigError, DiffusionRequest, EngineConfig, SamplingParams
from sidestream.engine.strict import Strict, choice, flag, nearest, number, option, table, text

NOTHING = object()
"""No field takes it."""

REFUSED = {
    "model": ["", "x" * 4097, 7, None],
    "model_options": [None, [], {1: 2}, {"dtype": NOTHING}],
    "executor": ["threads", 7, None],
    "num_workers": [0, 65, 1.0, True, "1"],
    "device": ["", 0, "gpu", "CUDA", "cuda:", "cuda:x", "cpu:0", ["cpu"]],
    "dtype": ["float8", 16],
    "lora": [
        "style",
        ["a"],
        {"a.b": "x"},
        {"": "x"},
        {"a": ""},
        {"a": 5},
        {1: "x"},
        {"a": "\ud800"},
    ],
    "mode": ["stream", None],
    "scheduler": ["fifo", 7],
    "max_batch_pixels": [0, 1.5],
    "streaming_output": [1, None],
    "max_num_seqs": [0, 257, 2.5],
    "dispatch_depth": [0, 9],
    "request_batch_max_wait_ms": [-1, 60_001, math.nan, "5"],
    "max_queued_requests": [0, None],
    "max_pending_outputs": [0, 1025],
    "look_ahead": [0, -1],
    "ageing_s": [0, math.inf],
    "output_ring_bytes": [1024, 1 << 37],
    "input_ring_bytes": [1024, 1 << 37],
    "max_input_bytes": [-1, 1e6],
    "merge": [1, "yes", None],
    "device_stage": [0],
    "postprocess_threads": [0, 257],
    "trace_requests": [-1, 1 << 21],
    "compile": ["on", True],
    "cuda_graphs": ["on", True],
    "cuda_graph_bytes": [0, 1.5],
    "warmup": ["on"],
    "warmup_sizes": ["512x512", [512, 512], [[512]], [[512, 0]], [[512, 512.0]], [[1 << 17, 8]]],
    "on_worker_death": ["ignore"],
    "startup_timeout": [-1, math.inf, 10**400],
    "worker_stall_timeout": [0, -1],
    "shutdown_grace": [-0.1, math.nan],
}


def test_every_setting_has_a_default_that_it_accepts():
    config = EngineConfig()
    assert EngineConfig(**dataclasses.asdict(config)) == config


def test_every_setting_is_tested_here():
    assert set(REFUSED) == {field.name for field in dataclasses.fields(EngineConfig)}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n in REFUSED for v in [*REFUSED[n], NOTHING]]
)
def test_a_wrong_value_is_refused_with_the_setting_and_what_it_accepts(name, value):
    with pytest.raises(ConfigError, match=rf"^{name} must be \S.*, not .") as refusal:
        EngineConfig(**{name: value})
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("field", dataclasses.fields(EngineConfig), ids=lambda field: field.name)
def test_every_setting_is_described(field):
    assert field.metadata["doc"]


def test_adapters_may_be_given_as_paths():
    config = EngineConfig(lora={"style": Path("a/b.safetensors"), "hub_1-x": "owner/name"})
    assert config.lora == {"style": "a/b.safetensors", "hub_1-x": "owner/name"}


def test_an_unknown_setting_is_refused_with_the_nearest():
    with pytest.raises(
        ConfigError, match="unknown setting 'max_num_seq': did you mean 'max_num_seqs'"
    ):
        EngineConfig(max_num_seq=4)
    with pytest.raises(ConfigError, match=r"unknown setting 'zzz': valid names: .*warmup"):
        EngineConfig(zzz=4)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("modle", "did you mean 'model'?"),  # not 'mode', which only has fewer letters
        ("devise", "did you mean 'device'?"),
        ("seed", "it belongs to a request: engine.generate(..., seed=...)"),
        ("prompt", "it belongs to a request: engine.generate(..., prompt=...)"),
        ("num_inference_steps", "it belongs to a request: engine.generate(..., num_inference_st"),
        (
            "sied",
            "did you mean 'seed'? That belongs to a request: engine.generate(..., seed=...)",
        ),
    ],
)
def test_an_unknown_setting_may_belong_to_a_request(name, hint):
    with pytest.raises(ConfigError, match=f"^unknown setting '{name}': {re.escape(hint)}"):
        EngineConfig(**{name: 1})


@pytest.mark.parametrize("device", ["auto", "auto:1", "cpu", "cuda", "cuda:12"])
def test_devices(device):
    assert EngineConfig(device=device).device == device


def test_one_process_has_one_worker():
    assert EngineConfig(executor="mp", num_workers=4).num_workers == 4
    with pytest.raises(ConfigError, match="num_workers must be 1 with executor 'uni', not 2"):
        EngineConfig(executor="uni", num_workers=2)


@pytest.mark.parametrize("executor", ["uni", "mp", "package.module:Class", dict])
def test_executors(executor):
    assert EngineConfig(executor=executor).executor is executor


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().model = "synthetic"


def test_a_config_keeps_its_own_copy_of_a_table():
    options = {"steps": 4}
    config = EngineConfig(model_options=options)
    options["steps"] = 5
    assert config.model_options == {"steps": 4}
    assert EngineConfig().model_options is not EngineConfig().model_options


# -- where settings come from


def test_load_from_a_mapping_with_overrides():
    config = EngineConfig.load({"model": "synthetic", "max_num_seqs": 2}, max_num_seqs=3)
    assert (config.model, config.max_num_seqs) == ("synthetic", 3)


def test_load_from_a_config():
    config = EngineConfig(model="synthetic")
    assert EngineConfig.load(config) is config
    changed = EngineConfig.load(config, max_num_seqs=3)
    assert (changed.model, changed.max_num_seqs) == ("synthetic", 3)
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        EngineConfig.load(config, max_num_seq=3)


def test_load_from_toml(tmp_path):
    path = tmp_path / "engine.toml"
    path.write_text('model = "synthetic"\nshutdown_grace = 2\n[model_options]\nshape = [1, 3]\n')
    config = EngineConfig.load(path, device="cpu")
    assert config == EngineConfig.load(str(path), device="cpu")
    assert config == EngineConfig(
        model="synthetic", shutdown_grace=2.0, model_options={"shape": [1, 3]}, device="cpu"
    )


def test_a_file_may_hold_the_settings_of_a_server_beside_those_of_the_engine(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text('model = "synthetic"\n[server]\nport = 80\n')
    assert EngineConfig.load(path) == EngineConfig(model="synthetic")
    path.write_text('model = "synthetic"\n[server]\nprot = 80\n')  # `serve` looks at these
    assert EngineConfig.load(path) == EngineConfig(model="synthetic")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"server = 1", "server must be a table"),
        (b"[serve]\nport = 1", r"engine.toml: unknown table \[serve\]: did you mean \[server\]"),
        (b"[merges]\nport = 1", "did you mean 'merge'"),
        (b"port = 1", r"engine.toml: 'port' belongs to the server: write it below \[server\]"),
        (b"host = 'a'", r"'host' belongs to the server: write it below \[server\]"),
        (b"model = ", "Invalid value"),
        (b"\xff", "utf-8"),
        (b"max_seqs = 1", "did you mean 'max_num_seqs'"),
        (b"warmup = 1", "warmup must be true or false, not 1"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(tmp_path, content, reason):
    path = tmp_path / "engine.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        EngineConfig.load(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        EngineConfig.load(tmp_path / "nowhere.toml")


def test_a_model_given_as_a_file_of_settings_is_told_how_to_be_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    for model in ("shapes", "random:sd15", "owner/name", "weights"):
        hint = re.escape(f"a model is given by name: open_engine(model={model!r})")
        with pytest.raises(ConfigError, match=hint):
            EngineConfig.load(model)
    with pytest.raises(ConfigError) as refusal:
        EngineConfig.load("nowhere.toml")
    assert "open_engine(model=" not in str(refusal.value)


# -- the checks


@given(st.floats() | st.integers() | st.booleans() | st.none() | st.text())
def test_numbers(value):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Scale(Strict):
        factor: float = option(1.0, number(-2, 1e9), "a factor")

    if type(value) in (int, float) and -2 <= value <= 1e9:
        kept = Scale(factor=value).factor
        assert type(kept) is float
        assert kept == value
    else:
        with pytest.raises(ValueError, match="factor must be a number from -2 to 1e\\+09"):
            Scale(factor=value)


@given(st.text(st.characters(), max_size=8))
def test_text_is_what_utf8_can_encode(value):
    try:
        value.encode()
    except UnicodeEncodeError:
        with pytest.raises(ValueError, match="valid Unicode"):
            text(6, empty=True)(value)
        return
    if len(value) <= 6:
        assert text(6, empty=True)(value) == value
    else:
        with pytest.raises(ValueError, match="a string of at most 6 characters"):
            text(6, empty=True)(value)


def test_a_choice_becomes_a_plain_string():
    class Size(enum.StrEnum):
        LARGE = "large"

    assert type(choice("small", "large")(Size.LARGE)) is str


@pytest.mark.parametrize(
    ("check", "valid"),
    [
        (choice("a", "b"), "one of 'a', 'b'"),
        (choice("a", "b", optional=True), "one of 'a', 'b' or None"),
        (flag(), "true or false"),
        (number(0), "a number of at least 0"),
        (number(0, optional=True), "a number of at least 0 or None"),
        (table(), "a table with string keys"),
        (text(5), "a non-empty string of at most 5 characters"),
        (text(5, optional=True, empty=True), "a string of at most 5 characters or None"),
    ],
)
def test_a_check_says_what_is_valid(check, valid):
    with pytest.raises(ValueError, match=f"^{valid}$"):
        check(NOTHING)


def test_nearest_prefers_a_guess_over_the_list():
    assert nearest("widht", ["width", "height"]) == "did you mean 'width'?"
    assert nearest("q", ["width", "height"]) == "valid names: height, width"


@pytest.mark.parametrize("cls", [EngineConfig, SamplingParams, DiffusionRequest])
def test_settings_are_given_by_name(cls):
    with pytest.raises(TypeError):
        cls("a", "b")
