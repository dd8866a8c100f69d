"""Previews: when, of which latents, and how close to the pictures that come of them."""

from __future__ import annotations

import copy
import itertools
import logging

import diffusers
import pytest
import torch
import torch.nn.functional as F

from sidestream.workers import previews
from sidestream.workers.latent_layout import LatentLayout
from sidestream.workers.latent_map import fit_latent_map
from sidestream.workers.latent_space import LatentSpace
from sidestream.workers.models import load_pipeline
from sidestream.workers.previews import PreviewTap, find_previewer, is_preview_step, previewer_of

FAMILIES = ("sd15", "sdxl", "sd3", "flux", "wan")
PROMPTS = (
    "a large red heart on a black background",
    "a large blue diamond on a purple background",
    "a small green circle above a large yellow square",
    "a large black circle on an orange background",
)


def load(model):
    return load_pipeline(model, {}, device="cpu", dtype=None)


@pytest.fixture(scope="module")
def shapes():
    return load("shapes")


def correlation(one, other):
    return torch.corrcoef(torch.stack([one.float().flatten(), other.float().flatten()]))[0, 1]


def call_of(pipeline):
    defaults = {"height": 64, "width": 64, "num_frames": 9}
    return {**defaults, **pipeline.sidestream_defaults}


# --------------------------------------------------------------------------- when


@pytest.mark.parametrize(
    ("total", "how", "steps"),
    [
        (12, {"steps": 1}, [6]),
        (12, {"steps": 3}, [3, 6, 9]),
        (10, {"steps": 4}, [2, 4, 6, 8]),
        (7, {"steps": 2}, [3, 5]),
        (4, {"steps": 3}, [1, 2, 3]),
        (4, {"steps": 99}, [1, 2, 3]),
        (1, {"steps": 5}, []),
        (12, {"every": 5}, [5, 10]),
        (10, {"every": 5}, [5]),
        (3, {"every": 1}, [1, 2]),
        (4, {}, []),
        (None, {"every": 2}, [2, 4, 6, 8, 10, 12]),
        (None, {"steps": 3}, []),
    ],
)
def test_which_steps_have_previews(total, how, steps):
    wanted = [step for step in range(1, 13) if is_preview_step(step, total, **how)]
    assert [step for step in wanted if total is None or step <= total] == steps


def test_as_many_previews_as_were_asked_for_if_there_are_steps():
    for total, count in itertools.product(range(1, 30), range(1, 30)):
        steps = [step for step in range(1, total + 1) if is_preview_step(step, total, steps=count)]
        assert len(steps) == min(count, total - 1)
        assert total not in steps
        gaps = [after - before for before, after in itertools.pairwise([0, *steps, total])]
        assert count >= total or max(gaps) - min(gaps) <= 1, "evenly spaced"


# --------------------------------------------------------------------------- of which latents


def test_latents_of_flux_are_unpacked_as_the_pipeline_does():
    pipeline = load("random:flux")
    latents = torch.arange(4 * 32 * 16.0).reshape(1, 4, 32, 16)
    packed = pipeline._pack_latents(latents, 1, 4, 32, 16)
    layout = LatentLayout(pipeline, 4)
    assert torch.equal(layout.picture(packed, {"height": 64, "width": 32}), latents)


def test_latents_of_ltx_are_unpacked_and_the_middle_frame_taken():
    class Video:
        vae_spatial_compression_ratio = 32
        vae_temporal_compression_ratio = 8
        _pack_latents = staticmethod(diffusers.LTXPipeline._pack_latents)
        _unpack_latents = staticmethod(diffusers.LTXPipeline._unpack_latents)

    latents = torch.arange(8 * 3 * 2 * 4.0).reshape(1, 8, 3, 2, 4)
    packed = Video._pack_latents(latents)
    call = {"height": 64, "width": 128, "num_frames": 17}
    assert torch.equal(LatentLayout(Video(), 8).picture(packed, call), latents[:, :, 1])


def test_tokens_that_are_pixels_are_laid_out_by_rows():
    latents = torch.arange(6 * 4 * 2.0).reshape(1, 6, 4, 2)
    packed = diffusers.Flux2Pipeline._pack_latents(latents)
    layout = LatentLayout(object(), 6)
    assert torch.equal(layout.picture(packed, {"height": 512, "width": 256}), latents)
    assert layout.picture(packed, {}) is None


@pytest.mark.parametrize("axis", [1, 2])
def test_the_middle_frame_of_a_video_is_shown(axis):
    latents = torch.arange(5 * 4 * 2 * 3.0).reshape(1, 4, 5, 2, 3)
    given = latents if axis == 1 else latents.transpose(1, 2)
    assert torch.equal(LatentLayout(object(), 4).picture(given, {}), latents[:, :, 2])


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 7), (1, 5, 9), (1, 2, 2, 2, 2, 2)])
def test_what_is_no_picture_has_no_preview(shape):
    assert LatentLayout(object(), 4).picture(torch.zeros(shape), {}) is None


def test_latents_of_flux_2_are_normalised_and_unpatched():
    class Pipeline:
        _unpatchify_latents = staticmethod(diffusers.Flux2Pipeline._unpatchify_latents)
        _patchify_latents = staticmethod(diffusers.Flux2Pipeline._patchify_latents)

    generator = torch.Generator().manual_seed(0)
    vae = diffusers.AutoencoderKLFlux2(
        block_out_channels=(4,),
        down_block_types=("DownEncoderBlock2D",),
        up_block_types=("UpDecoderBlock2D",),
        latent_channels=4,
        norm_num_groups=1,
        layers_per_block=1,
    )
    vae.bn.running_mean.copy_(torch.randn(16, generator=generator))
    vae.bn.running_var.copy_(torch.rand(16, generator=generator))
    latents = torch.randn(1, 4, 8, 6, generator=generator)
    patches = Pipeline._patchify_latents(latents)
    scale = (vae.bn.running_var + vae.config.batch_norm_eps).sqrt().view(1, -1, 1, 1)
    normal = (patches - vae.bn.running_mean.view(1, -1, 1, 1)) / scale
    space = LatentSpace(Pipeline(), vae)
    assert space.channels == 16
    torch.testing.assert_close(space.to_decoder(normal), latents)


# --------------------------------------------------------------------------- how close


@pytest.mark.parametrize("family", FAMILIES)
def test_the_preview_of_final_latents_is_the_picture(family):
    pipeline = load(f"random:{family}")
    call = call_of(pipeline)
    pictures = []
    for output_type in ("latent", "pt"):
        given = dict(pipeline.sidestream_defaults, generator=torch.Generator().manual_seed(3))
        pictures.append(pipeline("a cat", output_type=output_type, **given)[0])
    latents, picture = pictures
    drawn = previewer_of(pipeline).draw(latents[:1], call)
    if family == "wan":
        # a video decoder makes the middle latent into frames of its own when it comes alone
        assert drawn.shape == (32, 32, 3)
        return
    assert drawn.dtype == torch.uint8
    expected = (picture[0].float() * 255).round().movedim(0, -1)
    assert (drawn.float() - expected).abs().max() <= 1


def test_previews_are_as_large_as_allowed_and_keep_their_shape(shapes):
    previewer = previewer_of(shapes)
    latents = torch.randn(1, 8, 16, 32, generator=torch.Generator().manual_seed(0))
    sizes = [tuple(previewer.draw(latents, {}, longest).shape) for longest in (512, 128, 50)]
    assert sizes == [(128, 256, 3), (64, 128, 3), (25, 50, 3)]
    assert tuple(previewer.draw(torch.zeros(1, 8, 70, 90), {}).shape) == (398, 512, 3)


@pytest.fixture(scope="module")
def drawn(shapes):
    """Latents of some outputs of the shapes model, and their pictures."""
    generators = [torch.Generator().manual_seed(1) for _ in PROMPTS]
    call = {**shapes.sidestream_defaults, "generator": generators, "output_type": "latent"}
    latents = shapes(list(PROMPTS), **call).images
    space = LatentSpace(shapes, shapes.vae)
    with torch.no_grad():
        return latents, space.decode(space.to_decoder(latents))


def test_a_linear_map_shows_what_the_decoder_does(shapes, drawn):
    latents, pictures = drawn
    space = LatentSpace(shapes, shapes.vae)
    colours = fit_latent_map(space)
    assert colours.scale == 8
    shown = colours(space.to_decoder(latents))
    small = F.adaptive_avg_pool2d(pictures, (16, 16))
    table = torch.tensor([[correlation(a, b) for b in small] for a in shown])
    # This decoder is small and far from linear; a large one is much closer.
    assert table.diagonal().mean() > 0.4
    assert table.diagonal().mean() > (table.sum() - table.trace()) / 12 + 0.3


def test_a_map_of_a_linear_decoder_is_exact():
    class Linear(torch.nn.Module):
        """Each latent is a block of 4 x 4 pixels of one colour."""

        def __init__(self):
            super().__init__()
            self.config = {"latent_channels": 4, "scaling_factor": 0.5, "shift_factor": 0.25}
            self.mix = torch.nn.Parameter(
                torch.tensor([[0.2, 0, 0.1, 0], [0, 0.3, 0, 0], [0.1] * 4])
            )

        def decode(self, z, return_dict=True):
            return (
                F.interpolate(torch.einsum("nchw,rc->nrhw", z, self.mix) - 0.1, scale_factor=4),
            )

    class Pipeline:
        vae = Linear()

    space = LatentSpace(Pipeline(), Pipeline.vae)
    colours = fit_latent_map(space)
    latents = torch.rand(1, 4, 5, 6, generator=torch.Generator().manual_seed(0)) - 0.5
    encoded = space.to_decoder(latents)
    torch.testing.assert_close(encoded, latents / 0.5 + 0.25)
    with torch.no_grad():
        expected = space.decode(encoded)[..., ::4, ::4]
    torch.testing.assert_close(colours(encoded), expected, atol=2e-3, rtol=0)
    assert colours.scale == 4


def test_a_fit_is_the_same_every_time_and_draws_nothing_from_the_global_generator(shapes):
    space = LatentSpace(shapes, shapes.vae)
    state = torch.get_rng_state()
    one, other = fit_latent_map(space), fit_latent_map(space)
    assert torch.equal(one.matrix, other.matrix)
    assert torch.equal(torch.get_rng_state(), state)


def test_large_decoders_are_mapped(shapes, monkeypatch):
    monkeypatch.setattr(previews, "SMALL", 1000)
    previewer = previewer_of(shapes)
    latents = torch.randn(1, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    smooth = previewer.draw(latents, {}).float()
    assert smooth.shape == (128, 128, 3)
    assert smooth.diff(dim=0).abs().max() < 100, "blown up from 16 x 16"


def test_a_vae_that_overflows_in_half_precision_is_fitted_in_single(shapes):
    pipeline = copy.copy(shapes)
    vae = copy.deepcopy(shapes.vae).half()
    vae.register_to_config(force_upcast=True)
    space = LatentSpace(pipeline, vae)
    with space.precise():
        assert vae.dtype == torch.float32
    assert vae.dtype == torch.float16
    full = fit_latent_map(LatentSpace(shapes, shapes.vae))
    torch.testing.assert_close(fit_latent_map(space).matrix, full.matrix, atol=0.01, rtol=0.1)


@pytest.fixture(scope="module")
def tiny_vae():
    blocks = {"encoder_block_out_channels": (4, 4), "decoder_block_out_channels": (4, 4)}
    layers = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
    return diffusers.AutoencoderTiny(**blocks, **layers, latent_channels=4).eval()


def shown_by(vae, latents):
    with torch.no_grad():
        decoded = vae.decode(latents, return_dict=False)[0][0] * 0.5 + 0.5
    return (decoded.clamp(0, 1) * 255).round().movedim(0, -1)


LATENTS = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["preview_vae", "taesd"])
def test_a_pipeline_may_bring_a_tiny_vae(tiny_vae, name):
    pipeline = load("random:sd15")
    setattr(pipeline, name, tiny_vae)
    drawn = previewer_of(pipeline).draw(LATENTS, {})
    assert (drawn.float() - shown_by(tiny_vae, LATENTS)).abs().max() <= 1


def test_a_tiny_vae_may_be_an_option_of_the_model(tiny_vae, tmp_path):
    load("random:sd15").save_pretrained(tmp_path / "model")
    tiny_vae.save_pretrained(tmp_path / "tiny")
    options = {"preview_vae": str(tmp_path / "tiny"), "local_files_only": True}
    pipeline = load_pipeline(str(tmp_path / "model"), options, device="cpu", dtype=None)
    drawn = previewer_of(pipeline).draw(LATENTS, {})
    assert (drawn.float() - shown_by(tiny_vae, LATENTS)).abs().max() <= 1


def test_a_tiny_vae_for_other_latents_is_refused(tiny_vae):
    pipeline = load("random:wan")
    pipeline.taesd = tiny_vae
    with pytest.raises(ValueError, match="4 channels, not 16"):
        previewer_of(pipeline)


def unet_2d(channels):
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    sizes = {"block_out_channels": (8,), "norm_num_groups": 2, "layers_per_block": 1}
    return diffusers.UNet2DModel(
        sample_size=8, in_channels=channels, out_channels=channels, **blocks, **sizes
    )


def test_pipelines_that_denoise_pixels_need_no_vae():
    pipeline = diffusers.DDIMPipeline(unet_2d(3), diffusers.DDIMScheduler())
    picture = torch.rand(1, 3, 6, 4, generator=torch.Generator().manual_seed(0))
    drawn = previewer_of(pipeline).draw(picture * 2 - 1, {})
    assert torch.equal(drawn, (picture[0] * 255).round().byte().movedim(0, -1))


def test_latents_of_three_channels_are_not_taken_for_pixels():
    vqvae = diffusers.VQModel(latent_channels=3, norm_num_groups=2, block_out_channels=(4,))
    pipeline = diffusers.LDMPipeline(vqvae, unet_2d(3), diffusers.DDIMScheduler())
    assert find_previewer(pipeline) is None


# --------------------------------------------------------------------------- where there are none


class Audio(torch.nn.Module):
    """Decodes waveforms."""

    def __init__(self):
        super().__init__()
        self.config = {"latent_channels": 4}
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def decode(self, z, return_dict=True):
        return (z.flatten(2)[:, :1],)


@pytest.mark.parametrize("vae", [None, "text", torch.nn.Linear(1, 1), Audio()])
def test_pipelines_without_pictures_in_their_latents_have_none(vae):
    class Pipeline:
        pass

    pipeline = Pipeline()
    pipeline.vae = vae
    assert find_previewer(pipeline) is None


def test_the_synthetic_pipeline_has_none():
    assert find_previewer(load("synthetic")) is None


# --------------------------------------------------------------------------- at the lane


def test_a_tap_that_fails_is_not_asked_again(caplog):
    class Odd:
        @property
        def config(self):
            raise RuntimeError("none of your business")

        def step(self):
            return (torch.zeros(1),)

    tap = PreviewTap(lambda *_: True, lambda sample: None, lambda *_: None)
    taken = previews.SchedulerStep(Odd(), Odd.step, (), {}, (torch.zeros(1),))
    with caplog.at_level(logging.WARNING, "sidestream"):
        tap(1, 4, taken)
        tap(2, 4, taken)
    assert len(caplog.records) == 1
