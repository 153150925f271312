"""Images of every form: read, and as they look; or, if damaged, refused in a sentence.

Some hundred by default; thousands with `pytest -m slow tests/fuzz`.
"""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from tailshift import Run
from tailshift.data.image_split import FileSplit
from tailshift.data.images import ImageFiles, Preparation, load_image
from tailshift.serving.images import image_logits

Fuzz = Callable[..., Any]
MODES = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "RGB;16"),
    "WEBP": ("RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "LAB"),
    "GIF": ("1", "L", "P", "RGB"),
    "PPM": ("1", "L", "RGB", "F"),
}
REFUSED = ("F", "LAB")  # of unknown range; a mode that Pillow does not convert
SUFFIXES = (".jpg", ".png", ".webp", ".bmp", ".tif", ".gif", ".ppm", ".txt", "")
TURNED = ("JPEG", "PNG", "WEBP", "TIFF")  # may have EXIF data and ICC profiles
FRAMES = ("GIF", "WEBP", "PNG", "TIFF")  # may have several, or pages
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,  # what the reader turns back
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits")
NONSENSE = (
    b"",
    b"Exif\0\0",
    b"Exif\0\0MM\0*\0\0\xff\xff\0",
    b"Exif\0\0II*\0\x08\0\0\0",
)


class Picture(NamedTuple):
    """An encoded image and what it looks like; None is an image that is refused."""

    content: bytes
    suffix: str
    looks: Image.Image | None
    is_exact: bool


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def png(
    size: tuple[int, int], rows: bytes, depth: int = 8, kind: int = 0, *more: bytes
) -> bytes:
    """Return a PNG file of rows, each after a zero; its header may not fit them."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, kind, 0, 0, 0))
    body = _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + body


def _deep(image: Image.Image) -> bytes:
    """Return a PNG file with 16 bits a channel, the lower ones not zero."""
    pixels = np.asarray(image.convert("RGB")).astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return png(image.size, rows, 16, 2)


def _colours(size: tuple[int, int]) -> Image.Image:
    """Return an image with no symmetry."""
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width)
    pixels[..., 1] = np.linspace(255, 9, height)[:, None]
    return Image.fromarray(pixels)


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    if mode == "LAB":
        both = [ImageCms.createProfile(name) for name in ("sRGB", "LAB")]
        found = ImageCms.profileToProfile(image, *both, outputMode="LAB")
        assert found is not None
        return found
    return image.convert("RGB" if mode == "RGB;16" else mode)


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    """Give an image that any camera, scanner or editor might have written."""
    form = draw(st.sampled_from(sorted(MODES)))
    mode = draw(st.sampled_from(MODES[form]))
    size = draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    suffix = draw(st.sampled_from(SUFFIXES))
    image = _in_mode(_colours(size), mode)
    if mode == "RGB;16":
        return Picture(_deep(image), suffix, image, True)
    looks = None if mode in REFUSED else image
    options, turn = _options(draw, form, mode), 1
    if form in TURNED and mode not in REFUSED and draw(st.booleans()):
        wrong = () if form == "TIFF" else (0, 9, 65535)  # its encoder refuses them
        turn = draw(st.sampled_from((1, *TURNS, *wrong)))
        exif = Image.Exif()
        exif[0x0112] = turn
        options["exif"] = exif
    elif form in ("JPEG", "WEBP") and draw(st.booleans()):
        options["exif"] = draw(st.sampled_from(NONSENSE))
    stored = image.transpose(TURNS[turn]) if turn in TURNS else image
    if form in FRAMES and mode not in ("1", "I;16", *REFUSED) and draw(st.booleans()):
        later = stored.transpose(Image.Transpose.ROTATE_180)
        options |= {"save_all": True, "append_images": [later, stored, later]}
    file = io.BytesIO()
    stored.save(file, form, **options)
    is_exact = form not in ("JPEG", "GIF") and mode != "P"
    return Picture(file.getvalue(), suffix, looks, is_exact)


def _options(draw: st.DrawFn, form: str, mode: str) -> dict[str, Any]:
    options: dict[str, Any] = (
        {"lossless": True, "exact": True} if form == "WEBP" else {}
    )
    if form in TURNED and draw(st.booleans()):
        options["icc_profile"] = draw(st.sampled_from((PROFILE, PROFILE[:99], b"x")))
    if mode == "P" and form in ("PNG", "GIF") and draw(st.booleans()):
        options["transparency"] = 0 if form == "GIF" else draw(st.binary(max_size=5))
    if form == "JPEG":
        options["progressive"] = draw(st.booleans())
    if form == "TIFF":
        options["compression"] = draw(st.sampled_from(COMPRESSIONS))
    return options


def _shown(picture: Picture) -> np.ndarray:
    assert picture.looks is not None
    mode = picture.looks.mode
    if mode == "I;16":
        grey = (np.asarray(picture.looks) // 256).astype(np.uint8)
        return np.asarray(Image.fromarray(grey).convert("RGB"))
    return np.asarray(picture.looks.convert("RGB"))


def _check(picture: Picture, folder: Path) -> None:
    """Read it as `load_image` does: as it looks, upright, whatever its name."""
    path = folder / f"picture{picture.suffix}"
    path.write_bytes(picture.content)
    image = load_image(ImageFiles(folder, (path.name,)), 0)
    assert picture.looks is not None
    seen, expected = np.asarray(image), _shown(picture)
    assert seen.shape == expected.shape
    if picture.is_exact:
        assert np.array_equal(seen, expected)


TOKENS = (b"\0", b"\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0", b" " * 300, b"9" * 20)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Give an image that was cut short or whose bytes were changed; or anything."""
    content = draw(pictures()).content
    kind = draw(st.sampled_from(("cut", "edited", "edited", "edited", "random")))
    if kind == "random":
        start = content[: draw(st.sampled_from((0, 4, 12)))]  # it may say a format
        return start + draw(st.binary(max_size=200))
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    for _ in range(draw(st.integers(1, 4))):
        near = draw(st.sampled_from((60, 400, len(content))))
        where = draw(st.integers(0, min(near, len(content))))
        added = draw(st.sampled_from(TOKENS) | st.binary(max_size=4))
        removed = draw(st.sampled_from((0, len(added), len(added), 30)))
        content = content[:where] + added + content[where + removed :]
    return content


def _train_on(path: Path, run: Run) -> None:
    split = FileSplit(
        ImageFiles(path.parent, (path.name,)),
        torch.tensor([0]),
        Preparation(16, crop="padded", jitter=0.1),
    )
    next(split.loader(batch_size=1, training=True, num_workers=0).epoch(0))


def _extract(path: Path, run: Run) -> None:
    files = ImageFiles(path.parent, (path.name,))
    split = FileSplit(files, torch.tensor([0]), Preparation(16)).seen_in("five_crop")
    next(split.loader(batch_size=1, training=False, num_workers=0).epoch(0))


def _predict(path: Path, run: Run) -> None:
    assert image_logits(run, [str(path)]).logits.isfinite().all()


DOORS = {"train": _train_on, "features": _extract, "predict": _predict}
SLOW_PICTURES, SLOW_DAMAGED = 2500, 1200
LARGEST = 1000  # megabytes: 120 megapixels, which a changed header may say, twice


def _fuzz_pictures(fuzz: Fuzz, folder: Path, count: int, **options: Any) -> None:
    inputs = pictures().filter(lambda picture: picture.looks is not None)
    tally = fuzz(
        "images", inputs, lambda picture: _check(picture, folder), count, **options
    )
    assert tally.sentences == 0


def test_image__of_any_form_is_read_as_it_looks(tmp_path: Path, fuzz: Fuzz) -> None:
    _fuzz_pictures(fuzz, tmp_path, 150)


@pytest.mark.slow
def test_image__of_any_form_many_times(tmp_path: Path, fuzz: Fuzz) -> None:
    _fuzz_pictures(fuzz, tmp_path, SLOW_PICTURES, is_long=True)


def _fuzz_door(
    fuzz: Fuzz, name: str, run: Run, folder: Path, count: int, **options: Any
) -> None:
    path = folder / "a.jpg"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        DOORS[name](path, run)

    read(png((3, 3), b"\0\1\2\3" * 3))
    inputs = damaged() | pictures().map(lambda picture: picture.content)
    fuzz(f"images: {name}", inputs, read, count, most=LARGEST, **options)


@pytest.mark.parametrize("name", DOORS)
def test_damaged_image__ends_in_a_result_or_one_sentence(
    name: str, digits_run: Run, tmp_path: Path, fuzz: Fuzz
) -> None:
    _fuzz_door(fuzz, name, digits_run, tmp_path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", DOORS)
def test_damaged_image__many_times(
    name: str, digits_run: Run, tmp_path: Path, fuzz: Fuzz
) -> None:
    _fuzz_door(fuzz, name, digits_run, tmp_path, SLOW_DAMAGED, is_long=True)


BOMBS = {
    "a header alone": png((60_000, 60_000), b""),
    "all of its zeros": png((20_000, 20_000), bytes(20_001 * 20_000)),
    "long and narrow": png((1, 100_000), bytes(200_000)),
    "a profile of zeros": png(
        (1, 1), b"\0\0", 8, 0, _chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(10**8)))
    ),
    "a text of zeros": png(
        (1, 1), b"\0\0", 8, 0, _chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(10**8)))
    ),
    "PPM": b"P6 40000 40000 255\n",
    "GIF": b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\0",
    "BMP": b"BM" + bytes(8) + struct.pack("<IIiiHHI", 54, 40, 2**30, 2**30, 1, 24, 0),
    "nothing": b"",
}


@pytest.mark.parametrize("name", BOMBS)
def test_image__made_to_exhaust_memory(
    name: str, digits_run: Run, tmp_path: Path, fuzz: Fuzz
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(BOMBS[name])
    doors = st.sampled_from([*DOORS])
    fuzz(name, doors, lambda door: DOORS[door](path, digits_run), 5, most=LARGEST)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_pictures__have_frames_and_pages() -> None:
    """Else the first of several would be the only one that is ever read."""
    forms = set()

    @settings(max_examples=400, database=None, derandomize=True, deadline=None)
    @given(pictures())
    def look(picture: Picture) -> None:
        with Image.open(io.BytesIO(picture.content)) as image:
            if getattr(image, "n_frames", 1) > 1:
                forms.add(image.format)

    look()
    assert forms >= set(FRAMES)
