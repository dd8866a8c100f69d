"""What is remembered about offloading is what diffusers would find."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from diffusers.hooks import HookRegistry, apply_group_offloading, group_offloading
from diffusers.utils.torch_utils import get_module_execution_device
from torch import nn

from sidestream.workers.lanes.changes import ModuleChanges
from sidestream.workers.lanes.offloading import Parts, remember_offloading
from sidestream.workers.models import load_pipeline

from .lane_helpers import call_of, picture, rows, run_wave, runner_of


class Counting(nn.Sequential):
    """Counts how often somebody goes through its parts."""

    walks = 0

    def modules(self):
        self.walks += 1
        return super().modules()


def module():
    return Counting(nn.Linear(4, 4), nn.Linear(4, 4))


def test_a_module_is_gone_through_once():
    remember_offloading()
    one = module()
    assert not group_offloading._is_group_offload_enabled(one)
    walks = one.walks
    assert not group_offloading._is_group_offload_enabled(one)
    assert one.walks == walks > 0
    Parts().forget()
    assert not group_offloading._is_group_offload_enabled(one)
    assert one.walks > walks


def test_hooks_that_come_and_go_are_seen():
    remember_offloading()
    one = module()
    assert not group_offloading._is_group_offload_enabled(one)
    apply_group_offloading(one, torch.device("cpu"), offload_type="leaf_level")
    assert group_offloading._is_group_offload_enabled(one)
    for part in one.modules():
        if hasattr(part, "_diffusers_hook"):
            HookRegistry.check_if_exists_or_initialize(part).remove_hook("group_offloading")
    assert not group_offloading._is_group_offload_enabled(one)


def test_to_remember_twice_changes_nothing():
    remember_offloading()
    found = group_offloading._get_top_level_group_offload_hook
    remember_offloading()
    assert group_offloading._get_top_level_group_offload_hook is found


def test_requests_do_not_have_every_part_looked_at(monkeypatch):
    pipeline = load_pipeline("random:sdxl", {}, device="cpu", dtype=None)
    runner = runner_of(pipeline)
    run_wave(runner, [call_of(pipeline, 0)])
    walked, suspects = [], []
    modules = nn.Module.modules
    monkeypatch.setattr(nn.Module, "modules", lambda self: walked.append(self) or modules(self))
    monkeypatch.setattr(ModuleChanges, "suspect", lambda _, module: suspects.append(module))
    run_wave(runner, [call_of(pipeline, 0)])
    assert walked == []
    assert suspects == []


def test_the_device_that_a_hook_names_is_found():
    class Asking:
        def __init__(self, unet):
            self.unet = unet
            self.components = {"unet": unet}

        def __call__(self, sample):
            self.unet(sample)
            return torch.ones(1) * (get_module_execution_device(self.unet).type == "meta")

    unet = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    runner = runner_of(Asking(unet))
    assert picture(run_wave(runner, [{"sample": rows(0)}])[0]) == 0
    unet[1]._hf_hook = SimpleNamespace(execution_device="meta")
    assert picture(run_wave(runner, [{"sample": rows(0)}])[0]) == 1
