import io

import numpy as np
import pytest
from PIL import Image

from tailshift.data.images import (
    BrokenImageError,
    ImageFiles,
    decode_image,
    is_inside,
    load_image,
)


def _encoded(array, suffix="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, suffix, **options)
    return file.getvalue()


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".gif", ".tif"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_load_image__formats_become_rgb(tmp_path, write_image, suffix, mode):
    write_image(tmp_path / f"a{suffix}", mode=mode)
    image = load_image(ImageFiles(tmp_path, (f"a{suffix}",)), 0)
    assert image.mode == "RGB"
    assert image.size == (40, 32)


def test_decode_image__sixteen_bits_keep_the_upper_eight():
    grey = np.array([[0, 255, 256, 65535]], dtype=np.uint16)
    pixels = np.asarray(decode_image(_encoded(grey)))
    assert pixels[0, :, 0].tolist() == [0, 0, 1, 255]


def test_decode_image__drops_alpha():
    pixels = np.full((2, 2, 4), 7, dtype=np.uint8)
    assert np.asarray(decode_image(_encoded(pixels))).tolist() == [[[7] * 3] * 2] * 2


def test_decode_image__palette_with_transparency():
    file = io.BytesIO()
    image = Image.new("P", (2, 2))
    image.putpalette([9, 8, 7])
    image.save(file, "PNG", transparency=b"\x00\x80")
    assert np.asarray(decode_image(file.getvalue()))[0, 0].tolist() == [9, 8, 7]


def test_load_image__broken_in_three_ways(tmp_path, write_image):
    whole = write_image(tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jpg").write_text("not an image")
    files = ImageFiles(tmp_path, ("cut.jpg", "text.jpg", "none.jpg"))
    messages = []
    for i in range(3):
        with pytest.raises(BrokenImageError) as error:
            load_image(files, i)
        messages.append(str(error.value))
    assert messages[0].startswith("cannot be read (image file is truncated")
    assert messages[1:] == ["is not an image of a known format", "is missing"]


def test_image_files__what_they_know(tmp_path, write_image):
    write_image(tmp_path / "a" / "b.jpg")
    files = ImageFiles(tmp_path, ("a/b.jpg", "a/c.jpg"))
    assert len(files) == 2
    assert files.num_bytes.tolist() == [(tmp_path / "a" / "b.jpg").stat().st_size, -1]
    assert files.name(1) == str(tmp_path / "a" / "c.jpg")
    assert files.subset(np.array([1])).keys == ("a/c.jpg",)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("a.jpg", True),
        ("a/b/c.jpg", True),
        ("a..b/c.jpg", True),
        ("/etc/passwd", False),
        ("../a.jpg", False),
        ("a/../../b.jpg", False),
        ("a/..", False),
    ],
)
def test_is_inside(path, inside):
    assert is_inside(path) == inside
