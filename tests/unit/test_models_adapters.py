"""Loading adapters: from where, what is refused, and that errors name the adapter."""

import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from sidestream.workers.models import load_pipeline
from sidestream.workers.models.adapters import load_adapters

from ..harness.adapters import load, save_adapters


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The directory of an adapter for `random:sd15`."""
    directory = tmp_path_factory.mktemp("adapters")
    save_adapters("sd15", directory, ["style"])
    return directory / "style"


def scales(pipeline):
    return [dict(part.scaling) for part in pipeline.unet.modules() if hasattr(part, "scaling")]


@pytest.mark.parametrize("place", ["directory", "file", "renamed"])
def test_an_adapter_is_loaded_from_a_directory_or_a_file(saved, tmp_path, place):
    path = saved if place == "directory" else saved / "pytorch_lora_weights.safetensors"
    if place == "renamed":
        path = tmp_path / "style.safetensors"
        path.write_bytes((saved / "pytorch_lora_weights.safetensors").read_bytes())
        path = tmp_path
    pipeline = load("sd15", lora={"style": str(path)})
    assert pipeline.sidestream_lora == ("style",)
    assert scales(pipeline)[0] == {"style": 2.5}
    for component in (pipeline.unet, pipeline.text_encoder):
        assert not any(weight.requires_grad for weight in component.parameters())


def test_nothing_is_written_while_adapters_are_loaded(saved, capsys):
    load("sd15")  # transformers gives its advice when it is imported
    capsys.readouterr()
    load("sd15", lora={"one": str(saved), "two": str(saved)})
    assert capsys.readouterr() == ("", "")


def test_adapters_get_the_dtype_of_the_model(saved):
    pipeline = load_pipeline(
        "random:sd15", {}, device="cpu", dtype="bf16", lora={"style": str(saved)}
    )
    assert {weight.dtype for weight in pipeline.unet.parameters()} == {torch.bfloat16}


def write_pickle(directory):
    torch.save({"unet.x.lora_A.weight": torch.ones(1)}, directory / "pytorch_lora_weights.bin")
    return directory


def write_pickle_file(directory):
    return write_pickle(directory) / "pytorch_lora_weights.bin"


def write_disguised_pickle(directory):
    return write_pickle_file(directory).rename(directory / "style.safetensors")


def write_garbage(directory):
    (directory / "style.safetensors").write_bytes(b"\xff" * 100)
    return directory


def write_two(directory):
    for name in "ab":
        (directory / f"{name}.safetensors").touch()
    return directory


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda directory: directory, "the directory has 0 .safetensors files"),
        (write_pickle, "the directory has 0 .safetensors files"),
        (write_pickle_file, "only .safetensors files are loaded"),
        (write_disguised_pickle, "SafetensorError"),
        (write_garbage, "SafetensorError"),
        (write_two, "the directory has 2 .safetensors files; name one of them"),
        (lambda directory: directory / "no.safetensors", "there is no such file or directory"),
        (lambda directory: "./no", "there is no such file or directory"),
        (lambda directory: "style", "there is no such file or directory"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(tmp_path, write, reason):
    source = str(write(tmp_path))
    with pytest.raises(ValueError, match=r"^lora 'style' cannot be loaded from '.*': ") as refusal:
        load("sd15", lora={"style": source})
    assert source in str(refusal.value)
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("family", "model", "reason"),
    [
        ("sd15", "sdxl", r"where 8 of 72 weights \((\S+, ){3}\.\.\.\) have other shapes"),
        ("sd15", "flux", r"which has nothing for 64 of 72 weights \((unet\.\S+, ){3}\.\.\.\)"),
        (
            "wan",
            "sd15",
            r"which has nothing for 24 of 24 weights \((transformer\.\S+, ){3}\.\.\.\)",
        ),
        (
            "wan",
            "flux",
            r"which has nothing for 24 of 24 weights \((transformer\.\S+, ){3}\.\.\.\)",
        ),
    ],
)
def test_an_adapter_for_another_model_is_refused_in_one_line(
    tmp_path, capsys, family, model, reason
):
    source = save_adapters(family, tmp_path, ["style"])["style"]
    load(model)  # transformers gives its advice when it is imported
    capsys.readouterr()
    with pytest.raises(ValueError, match=f"it is not for this model, {reason}$") as refusal:
        load(model, lora={"style": source})
    assert str(refusal.value).startswith(f"lora 'style' cannot be loaded from {source!r}: ")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("place", ["unet.nowhere.to_q", "text_encoder_2.layers.0.q_proj"])
def test_an_adapter_that_fits_only_in_part_is_refused_with_counts(saved, tmp_path, place):
    weights = load_file(saved / "pytorch_lora_weights.safetensors")
    extra = [f"{place}.lora_{matrix}.weight" for matrix in "AB"]
    path = tmp_path / "more.safetensors"
    save_file(weights | {key: torch.ones(2, 2) for key in extra}, path)
    with pytest.raises(ValueError, match="fits this model only in part") as refusal:
        load("sd15", lora={"style": str(path)})
    assert f"nothing for 2 of {len(weights) + 2} weights ({', '.join(extra)})" in str(refusal.value)


@pytest.mark.parametrize("family", ["sd15", "sd15-img2img", "sdxl", "flux", "wan"])
def test_an_adapter_that_fits_is_not_said_to_fit_in_part(tmp_path, family):
    adapters = save_adapters(family, tmp_path, ["style", "to_q"])
    assert load(family, lora=adapters).sidestream_lora == ("style", "to_q")


def test_an_adapter_that_has_nothing_that_is_known_is_refused(tmp_path):
    save_file({"some.thing.lora_A.weight": torch.ones(2, 2)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"^lora 'style' cannot be loaded from .*1 weights"):
        load("sd15", lora={"style": str(tmp_path / "a.safetensors")})


def test_a_model_that_takes_none_is_refused(saved):
    with pytest.raises(ValueError, match=r"^lora: a SyntheticPipeline takes no adapters$"):
        load_pipeline("synthetic", {}, device="cpu", dtype=None, lora={"style": str(saved)})


def test_without_peft_it_is_said_what_to_install(saved, monkeypatch):
    pipeline = load("sd15")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"pip install 'sidestream\[lora\]'"):
        load_adapters(pipeline, {"style": str(saved)}, {})


def test_the_hub_is_not_asked_when_it_must_not(tmp_path):
    options = {"local_files_only": True, "cache_dir": str(tmp_path)}
    with pytest.raises(
        ValueError,
        match=r"^lora 'style' cannot be loaded from 'owner/name.*: it is not in the hub's cache$",
    ):
        load_adapters(load("sd15"), {"style": "owner/name/style.safetensors"}, options)
