"""Files of outputs: their names, their contents, and that they never replace another."""

import errno

import numpy as np
import pytest
from PIL import Image

from sidestream.engine.cli.picture_files import PictureFiles, slug


def picture(value=120, channels=3):
    return np.full((4, 6, channels), value, np.uint8)


def video(frames=3):
    return np.stack([picture(60 * index) for index in range(frames)])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A red circle, above: a square!", "a-red-circle-above-a-square"),
        ("Café über ../../etc/passwd", "cafe-uber-etc-passwd"),
        ("  --  ", "picture"),
        ("猫", "picture"),
        ("", "picture"),
        ("a" * 59 + " bcd", "a" * 59),
        ("x\0y\nz", "x-y-z"),
    ],
)
def test_a_prompt_becomes_a_safe_name(text, name):
    assert slug(text) == name


@pytest.mark.parametrize("file_format", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures_are_written_in_the_format(tmp_path, file_format, channels):
    path = PictureFiles(tmp_path, file_format).save(picture(channels=channels), "a-1")
    assert path == tmp_path / f"a-1.{file_format}"
    with Image.open(path) as image:
        assert image.format == file_format.upper()
        assert image.size == (6, 4)
        assert abs(int(np.asarray(image.convert("L"))[0, 0]) - 120) <= 2


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    files = PictureFiles(tmp_path)
    (tmp_path / "a-1-2.png").write_text("mine")
    paths = [files.save(picture(), "a-1") for _ in range(3)]
    assert [path.name for path in paths] == ["a-1.png", "a-1-3.png", "a-1-4.png"]
    assert (tmp_path / "a-1-2.png").read_text() == "mine"


@pytest.mark.parametrize("file_format", ["png", "webp"])
def test_a_video_is_one_animated_file(tmp_path, file_format):
    path = PictureFiles(tmp_path, file_format, fps=10).save(video(), "a-1")
    with Image.open(path) as image:
        assert image.n_frames == 3
        for index in range(3):
            image.seek(index)
            image.load()
            assert abs(int(np.asarray(image.convert("L"))[0, 0]) - 60 * index) <= 2
            assert image.info["duration"] == 100


def test_a_video_as_jpeg_is_a_folder_of_frames(tmp_path):
    files = PictureFiles(tmp_path, "jpeg")
    first, second = files.save(video(), "a-1"), files.save(video(), "a-1")
    assert [first.name, second.name] == ["a-1", "a-1-2"]
    names = sorted(path.name for path in second.iterdir())
    assert names == ["00000.jpeg", "00001.jpeg", "00002.jpeg"]


def test_quality_matters(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    low, high = (
        PictureFiles(tmp_path, "jpeg", quality=quality).save(noise, "a").stat().st_size
        for quality in (20, 95)
    )
    assert low < high


@pytest.mark.parametrize("shape", [(16,), (4, 6), (4, 6, 2), (0, 6, 3), (2, 2, 4, 6, 3)])
def test_what_is_no_picture_is_refused(tmp_path, shape):
    with pytest.raises(ValueError, match="no picture"):
        PictureFiles(tmp_path).save(np.zeros(shape, np.uint8), "a")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_could_not_be_written_whole_does_not_stay(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        PictureFiles(tmp_path).save(picture(), "a")
    assert list(tmp_path.iterdir()) == []


def test_previews_take_turns_in_one_file_until_the_output_is_there(tmp_path):
    preview = PictureFiles(tmp_path, "jpeg").preview("a-cat-1")
    assert list(tmp_path.iterdir()) == []
    for value in (10, 20):
        preview.show(np.full((4, 6, 3), value, np.uint8))
        (path,) = tmp_path.iterdir()
        assert path.name == "a-cat-1.preview.png"
        with Image.open(path) as image:
            assert image.size == (6, 4)
            assert image.getextrema() == ((value, value),) * 3
    preview.remove()
    preview.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_preview_takes_no_other_file_s_place(tmp_path):
    (tmp_path / "a.preview.png").write_text("mine")
    previews = [PictureFiles(tmp_path).preview("a") for _ in range(2)]
    for preview in previews:
        preview.show(np.zeros((2, 2, 3), np.uint8))
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.preview.png",
        "a-2.preview.png",
        "a-3.preview.png",
    }
    for preview in previews:
        preview.remove()
    assert (tmp_path / "a.preview.png").read_text() == "mine"


def test_a_preview_that_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch):
    preview = PictureFiles(tmp_path).preview("a")
    preview.show(np.zeros((2, 2, 3), np.uint8))
    before = (tmp_path / "a.preview.png").read_bytes()
    (tmp_path / "a.preview.new").mkdir()
    with pytest.raises(OSError, match=r"a\.preview\.new"):
        preview.show(np.ones((2, 2, 3), np.uint8))
    assert (tmp_path / "a.preview.png").read_bytes() == before
