import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tailshift.data import images as images_module
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


def test_decode_image__is_upright():
    """A camera that is held sideways notes it; every door shows what it saw."""
    upright = np.zeros((20, 30, 3), dtype=np.uint8)
    upright[:10, :10] = 255  # white at the top left
    for orientation, turn in ((1, 0), (3, 2), (6, 1), (8, 3)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for suffix in ("JPEG", "PNG", "WEBP", "TIFF"):
            encoded = _encoded(np.rot90(upright, turn), suffix, exif=exif)
            shown = np.asarray(decode_image(encoded))
            assert shown.shape == upright.shape, (orientation, suffix)
            assert abs(shown.astype(int) - upright).mean() < 8, (orientation, suffix)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_decode_image__damaged_exif_data_do_not_matter():
    pixels = np.full((8, 8, 3), 90, dtype=np.uint8)
    exif = b"Exif\x00\x00MM\x00\x2a\x00\x00\xff\xff\x00"
    assert decode_image(_encoded(pixels, "JPEG", exif=exif)).size == (8, 8)
    info = PngInfo()
    info.add_text("Raw profile type exif", "\nexif\n10\nno digits")
    assert decode_image(_encoded(pixels, "PNG", pnginfo=info)).size == (8, 8)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"


def test_load_image__starts_no_program(tmp_path):
    """Pillow would hand Encapsulated PostScript to Ghostscript, whatever its name."""
    (tmp_path / "a.png").write_bytes(EPS)
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "EPS"
    with pytest.raises(BrokenImageError) as error:
        load_image(ImageFiles(tmp_path, ("a.png",)), 0)
    assert str(error.value) == "is not an image of a known format"


def test_load_image__opens_regular_files_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")  # to open it would wait for a writer
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    files = ImageFiles(tmp_path, ("pipe.png", "device.png", "folder.png"))
    for i in range(3):
        with pytest.raises(BrokenImageError) as error:
            load_image(files, i)
        assert str(error.value) == "is not a regular file"


def test_load_image__a_huge_file_is_not_read(tmp_path):
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(2**40)  # without taking any room
    with pytest.raises(BrokenImageError) as error:
        load_image(ImageFiles(tmp_path, ("a.png",)), 0)
    assert str(error.value) == (
        "has 1,099,511,627,776 bytes, more than the 536,870,912 that are read"
    )


def test_load_image__too_many_pixels(tmp_path, write_image, monkeypatch):
    monkeypatch.setattr(images_module, "MOST_PIXELS", 1279)
    write_image(tmp_path / "a.png", size=(40, 32))
    with pytest.raises(BrokenImageError) as error:
        load_image(ImageFiles(tmp_path, ("a.png",)), 0)
    assert str(error.value) == (
        "has 40 × 32 pixels, more than the 1,279 that are decoded"
    )


def _chunk(kind, content):
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def test_load_image__a_header_of_billions_of_pixels(tmp_path):
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    (tmp_path / "a.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", b"")
    )
    with pytest.raises(BrokenImageError) as error:
        load_image(ImageFiles(tmp_path, ("a.png",)), 0)
    assert str(error.value) == ("has more than the 120,000,000 pixels that are decoded")


def _tiled(size, tile):
    """Return a grey TIFF of one compressed tile, which may be larger than it."""
    content = zlib.compress(bytes(min(tile * tile, 10**6)))
    fields = [(256, size), (257, size), (258, 8), (259, 8), (262, 1), (277, 1)]
    fields += [(322, tile), (323, tile), (324, 134), (325, len(content))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in fields)
    directory = struct.pack("<H", len(fields)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8) + directory + content


def test_decode_image__tiles_larger_than_the_image():
    """Each takes its own size in memory, whatever the image's is."""
    assert decode_image(_tiled(10, 16)).size == (10, 10)
    assert decode_image(_tiled(10, 512)).size == (10, 10)
    with pytest.raises(BrokenImageError) as error:
        decode_image(_tiled(10, 20_000))
    assert str(error.value) == (
        "has tiles of 20000 × 20000 pixels, more than the 120,000,000 that are decoded"
    )


def test_load_image__floating_point(tmp_path):
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(BrokenImageError) as error:
        load_image(ImageFiles(tmp_path, ("a.tif",)), 0)
    assert str(error.value) == (
        "has pixels in floating point, whose range is not known; save it with 8 or 16 "
        "bits"
    )


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
