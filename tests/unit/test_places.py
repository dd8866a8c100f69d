"""Files and directories that settings name are looked for before anything is started."""

import pytest

from sidestream.engine import ConfigError, EngineConfig, open_engine
from sidestream.engine.places import check_places


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    (tmp_path / "models" / "here").mkdir(parents=True)
    (tmp_path / "ink.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("name", ["model", "lora.ink", "model_options.preview_vae"])
@pytest.mark.parametrize(
    "place",
    [
        "./no",
        "../no",
        "/no",
        "/no/such/place",
        "~/no",
        "a/b/c",
        "no.safetensors",
        "a/no.safetensors",
        "models/no/no.safetensors",
    ],
)
def test_what_can_only_be_a_path_has_to_be_there(name, place):
    setting, _, entry = name.partition(".")
    config = EngineConfig(**{setting: {entry: place} if entry else place})
    with pytest.raises(ConfigError, match=r"^\S+: no such file or directory: ") as refusal:
        check_places(config)
    assert str(refusal.value) == f"{name}: no such file or directory: {place!r}"


@pytest.mark.parametrize("place", ["./models/here", "~/models/here", "models/here", "owner/name"])
def test_what_is_there_or_may_be_on_the_hub_is_left_to_the_worker(place):
    check_places(EngineConfig(model=place, lora={"ink": place}))


@pytest.mark.parametrize(
    "model", ["shapes", "models", "synthetic", "random:sd15", "package.module:factory"]
)
def test_models_that_are_no_places(model):
    check_places(EngineConfig(model=model))


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("shpes", "unknown model 'shpes': did you mean 'shapes'"),
        ("stable-diffusion", "unknown model 'stable-diffusion': valid names: shapes, synthetic"),
        ("random:flx", "there is no 'random:flx': did you mean 'flux'"),
        ("random:", "there is no 'random:': valid names: flux, flux-full"),
    ],
)
async def test_a_name_that_no_model_can_have_is_refused(model, hint):
    with pytest.raises(ConfigError, match=f"^model: {hint}"):
        async with open_engine(model=model):
            raise AssertionError("it opened")


@pytest.mark.parametrize(
    "place",
    ["ink.safetensors", "./ink.safetensors", "owner/name/ink.safetensors", "o/n/a/b.safetensors"],
)
def test_adapters_may_be_files_here_or_on_the_hub(place):
    check_places(EngineConfig(lora={"ink": place}))


def test_a_model_is_no_file():
    with pytest.raises(ConfigError, match=r"^model: './ink.safetensors' is a file"):
        check_places(EngineConfig(model="./ink.safetensors"))


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_an_engine_is_not_started_without_them(executor):
    with pytest.raises(ConfigError, match=r"^lora\.ink: no such file or directory"):
        async with open_engine(executor=executor, lora={"ink": "./no"}):
            pytest.fail("it was started")
