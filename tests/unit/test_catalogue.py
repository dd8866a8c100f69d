"""Stock pipelines of different kinds run in lanes as they run plainly.

A selection of the catalogue; `python -m tests.harness.catalogue` runs all of it.
"""

import pytest

from ..harness.catalogue.__main__ import PAGE
from ..harness.catalogue.examine import Report, examine
from ..harness.catalogue.families import ENTRIES
from ..harness.catalogue.page import render

BY_NAME = {entry.name: entry for entry in ENTRIES}

# What is special about each: a class that others are not like, and how many of its calls in a wave
# of two requests, after the probes, are merged.
SELECTION = {
    "StableDiffusionSAGPipeline": 2,  # hooks, and a processor that keeps its attention map
    "StableDiffusionGLIGENPipeline": 8,  # walks through modules and switches some of them
    "StableDiffusionAdapterPipeline": 8,  # the UNet empties a list that it is given
    "StableDiffusion3PAGPipeline": 11,  # chunks of a batch, processors replaced meanwhile
    "PaintByExamplePipeline": 7,  # an encoder returns one of its parameters
    "PNDMPipeline": 13,  # no prompt
    "LDMPipeline": 4,  # the result of the decoder cannot be split
    "HunyuanDiTPipeline": 9,  # an index that must not be varied
    "SanaPipeline": 7,  # the language model returns a cache with settings
    "WuerstchenPriorPipeline": 5,  # conditions from an older design
    "AllegroPipeline": 5,  # tables as long as the batch
    "WanVACEPipeline": 11,  # conditions that are nearly equal
    "ZImagePipeline": 6,  # lists with an entry for each sample
    "JoyImageEditPlusPipeline": 1,  # hooks a layer of its language model for the length of a call
    "Ideogram4Pipeline": 45,  # calls the layers of its language model itself
    "BriaPipeline": 4,  # asks for the exact class of its scheduler
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SELECTION)
def test_a_stock_pipeline_runs_in_lanes_as_it_runs_plainly(name):
    report = examine(BY_NAME[name], requests=2)
    assert (report.broken, report.faults) == ("", [])
    assert report.merged == SELECTION[name]


def test_names_are_unique_and_on_the_page():
    assert len(BY_NAME) == len(ENTRIES)
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in BY_NAME if f"| {name} |" not in page] == []


def test_the_page_says_what_came_of_each():
    reports = [
        Report("FluxPipeline", calls=7, merged=7, distance=1e-6),
        Report("LDMPipeline", calls=7, merged=4, unmerged={"vqvae": "it cannot be split"}),
        Report("DDPMPipeline", faults=["alone: request 0 differs by 1.0e+00"]),
        Report("I2VGenXLPipeline", broken="AttributeError"),
    ]
    page = render(reports)
    assert (
        "**2 of 3 classes are right in all of these ways; 1 of them with every call\nmerged" in page
    )
    assert "| FluxPipeline | 7 | 1e-06 |" in page
    assert "| LDMPipeline | 7 | 4 | 0e+00 | `vqvae`: it cannot be split |" in page
    assert "| DDPMPipeline | alone: request 0 differs by 1.0e+00 |" in page
    assert "| I2VGenXLPipeline | it does not run with this version of transformers" in page
