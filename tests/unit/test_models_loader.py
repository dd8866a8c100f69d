"""Names of models, strict options, and what state a loaded pipeline is in."""

import sys
import textwrap

import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionPipeline

from sidestream.workers.models import load_pipeline


def load(model, dtype=None, **options):
    return load_pipeline(model, options, device="cpu", dtype=dtype)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that users' code could be, and return its name."""

    def write(source):
        (tmp_path / "users_models.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "users_models", raising=False)
        return "users_models"

    yield write
    sys.modules.pop("users_models", None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save a tiny pipeline in diffusers' layout."""
    directory = tmp_path_factory.mktemp("saved")
    load("random:sd15").save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    "model", ["shpes", "", "/no/such/directory", "./no", "~/no", "a/b/c", "no.such", "random"]
)
def test_an_unknown_model_is_refused_and_the_valid_ones_named(model):
    with pytest.raises(ValueError, match=r"unknown model.*shapes, synthetic"):
        load(model)


def test_the_nearest_model_is_suggested():
    with pytest.raises(ValueError, match="did you mean 'synthetic'"):
        load("syntetic")


def test_an_unknown_family_is_refused_and_the_valid_ones_named():
    with pytest.raises(ValueError, match=r"random family: 'sdxll'; did you mean 'sdxl'.*flux-full"):
        load("random:sdxll")


def test_an_unknown_option_is_refused_and_the_nearest_named(saved):
    with pytest.raises(ValueError, match=r"'random:sd15'.*'sed'; did you mean 'seed'"):
        load("random:sd15", sed=1)
    with pytest.raises(ValueError, match="'varaint'; did you mean 'variant'"):
        load(str(saved), varaint="fp16")


def test_an_option_of_the_wrong_type_is_refused():
    with pytest.raises(ValueError, match=r"'random:sd15'.*Expected `int`.*seed"):
        load("random:sd15", seed="one")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float"])
def test_a_dtype_that_weights_cannot_have_is_refused(dtype):
    with pytest.raises(ValueError, match=r"bf16, fp16|bfloat16"):
        load("random:sd15", dtype=dtype)


@pytest.mark.parametrize(("dtype", "expected"), [("bf16", "bfloat16"), ("float16", "float16")])
def test_short_and_long_dtype_names(dtype, expected):
    pipeline = load("random:sd15", dtype=dtype)
    assert pipeline.unet.dtype == pipeline.vae.dtype == getattr(torch, expected)


def test_a_saved_pipeline_loads_with_its_weights(saved):
    original, pipeline = load("random:sd15"), load(str(saved), local_files_only=True)
    assert isinstance(pipeline, StableDiffusionPipeline)
    for name, weight in original.unet.state_dict().items():
        assert torch.equal(pipeline.unet.state_dict()[name], weight)


def test_a_directory_may_be_named_from_the_users_home(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert isinstance(load(f"~/{saved.name}"), StableDiffusionPipeline)


def test_a_loaded_pipeline_is_quiet_frozen_and_in_evaluation_mode(saved, capsys):
    capsys.readouterr()
    pipeline = load(str(saved), dtype="bf16")
    assert capsys.readouterr().err == ""
    assert pipeline._progress_bar_config["disable"]
    for component in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        assert not component.training
        assert component.dtype == torch.bfloat16
        assert not any(weight.requires_grad for weight in component.parameters())


def test_a_saved_pipeline_loads_as_another_class(saved):
    pipeline = load(str(saved), pipeline_class="StableDiffusionImg2ImgPipeline")
    assert isinstance(pipeline, StableDiffusionImg2ImgPipeline)
    with pytest.raises(ValueError, match="did you mean 'StableDiffusionImg2ImgPipeline'"):
        load(str(saved), pipeline_class="StableDifusionImg2ImgPipeline")


def test_weights_that_are_pickles_are_refused_by_default(tmp_path):
    load("random:sd15").save_pretrained(tmp_path, safe_serialization=False)
    with pytest.raises(OSError, match="safetensors"):
        load(str(tmp_path))


def test_code_beside_the_weights_is_not_run(saved, tmp_path, monkeypatch):
    (saved / "pipeline.py").write_text("raise SystemExit('this ran')\n")
    assert isinstance(load(str(saved)), StableDiffusionPipeline)


def test_a_function_by_import_path_is_called_with_its_options(module):
    name = module(
        """
        class Made:
            def __init__(self, **given): self.given = given
            def __call__(self, prompt): return prompt

        def factory(size, colour="red", *, device):
            return Made(size=size, colour=colour, device=device)
        """
    )
    assert load(f"{name}:factory", size=3).given == {"size": 3, "colour": "red", "device": "cpu"}
    with pytest.raises(ValueError, match=r"'colur'; did you mean 'colour'.*size"):
        load(f"{name}:factory", size=3, colur="blue")


def test_a_class_by_import_path_is_moved_and_cast_like_a_pipeline(module):
    name = module(
        """
        import torch

        class Mine:
            def __init__(self): self.net = torch.nn.Linear(2, 2)
            @property
            def components(self): return {"net": self.net}
            def to(self, device): self.net.to(device)
            def __call__(self, prompt): return prompt
        """
    )
    assert load(f"{name}:Mine").net.weight.dtype == torch.float32
    pipeline = load(f"{name}:Mine", dtype="fp16")
    assert pipeline.net.weight.dtype == torch.float16
    assert not pipeline.net.training


def test_wrong_import_paths_say_what_is_wrong(module):
    name = module("def factory(): return 3\nnumber = 3\n")
    with pytest.raises(ValueError, match="no module 'no_such_module'"):
        load("no_such_module.part:factory")
    with pytest.raises(ValueError, match="did you mean 'factory'"):
        load(f"{name}:factroy")
    with pytest.raises(ValueError, match="no class or function"):
        load(f"{name}:number")
    with pytest.raises(ValueError, match="made a int, not a pipeline"):
        load(f"{name}:factory")


def test_a_module_missing_inside_an_import_path_is_not_blamed_on_the_path(module):
    name = module("import something_not_installed\n")
    with pytest.raises(ModuleNotFoundError, match="something_not_installed"):
        load(f"{name}:factory")


def test_the_embedded_model_loads_with_its_defaults_and_takes_no_options():
    pipeline = load("shapes")
    assert pipeline.unet.dtype == torch.float32
    assert not pipeline.unet.training
    defaults = pipeline.sidestream_defaults
    assert {"height": 128, "width": 128}.items() <= defaults.items()
    assert load("shapes", dtype="bf16").unet.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="option of model 'shapes': 'seed'; valid: none"):
        load("shapes", seed=1)
