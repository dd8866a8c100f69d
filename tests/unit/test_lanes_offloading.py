"""What is remembered about offloading is what diffusers would find."""

from __future__ import annotations

import torch
from diffusers.hooks import HookRegistry, apply_group_offloading, group_offloading
from torch import nn

from sidestream.workers.lanes.changes import ModuleChanges
from sidestream.workers.lanes.offloading import forget_offloading, remember_offloading
from sidestream.workers.models import load_pipeline

from .lane_helpers import call_of, run_wave, runner_of


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
    forget_offloading()
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
    assert pipeline.unet not in walked
    assert suspects == []
