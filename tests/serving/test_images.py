"""Logits of image files: as in evaluation, broken ones named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tailshift import Run, load_recipe, train
from tailshift.data import DATASETS
from tailshift.serving import image_logits, image_paths

WriteImage = Callable[..., Path]


@pytest.fixture
def digits(digits_run: Run, tmp_path: Path) -> list[str]:
    """Write the run's first test images as files."""
    data = DATASETS.get("digits_lt")().load(root=None, seed=0)
    paths = []
    for i in range(0, 500, 50):
        path = tmp_path / f"{i}.png"
        Image.fromarray(data.test.images[i, 0].numpy()).save(path)
        paths.append(str(path))
    return paths


def test_image_logits__are_those_of_the_evaluation(
    digits_run: Run, digits: list[str]
) -> None:
    found = image_logits(digits_run, digits)
    expected = digits_run.predictions("test").logits[::50]
    assert found.paths == tuple(digits)
    assert found.broken == {}
    torch.testing.assert_close(found.logits, expected, atol=1e-4, rtol=0)


def test_image_logits__of_photographs_are_those_of_the_evaluation(
    tmp_path: Path, write_image: WriteImage
) -> None:
    """Resized and cropped alike, in colour, from images of several sizes."""
    for c in range(2):
        for i in range(15):
            path = tmp_path / "images" / f"class {c}" / f"{i}.jpg"
            write_image(path, seed=15 * c + i, size=(40 + i, 48))
    settings = (
        f"data={{name='folder', path='{tmp_path / 'images'}'}}",
        "model.name=timm:test_resnet",
        "train.epochs=1",
        "train.batch_size=8",
        "train.num_workers=0",
    )
    run = train(load_recipe("own_images", settings), output=tmp_path / "run")
    images = run.config.data.load(root=None, seed=0).test.images
    found = image_logits(run, [images.name(i) for i in range(len(images))])
    expected = run.predictions("test").logits.float()
    torch.testing.assert_close(found.logits, expected, atol=1e-4, rtol=1e-4)


def test_image_logits__of_colour_and_other_sizes(
    digits_run: Run, digits: list[str], tmp_path: Path
) -> None:
    """A grey image saved in colour is the same image; one of another size is cut."""
    colour = tmp_path / "colour.png"
    grey = Image.open(digits[0])
    grey.convert("RGB").save(colour)
    wide = tmp_path / "wide.png"
    padded = np.zeros((8, 16), np.uint8)
    padded[:, 4:12] = np.asarray(grey)
    Image.fromarray(padded).save(wide)
    found = image_logits(digits_run, [digits[0], str(colour), str(wide)])
    for logits in found.logits[1:]:
        torch.testing.assert_close(logits, found.logits[0], atol=1e-4, rtol=0)


def test_image_logits__leaves_out_what_is_broken(
    digits_run: Run, digits: list[str], tmp_path: Path
) -> None:
    (tmp_path / "text.png").write_text("no image")
    asked = [str(tmp_path / "text.png"), digits[0], str(tmp_path / "none.png")]
    found = image_logits(digits_run, asked)
    assert found.paths == (digits[0],)
    assert found.logits.shape == (1, 10)
    assert found.broken == {
        asked[0]: "is not an image of a known format",
        asked[2]: "is missing",
    }


def test_image_logits__batches_do_not_matter(
    digits_run: Run, digits: list[str]
) -> None:
    seen: list[int] = []

    def track(starts: range) -> range:
        seen.extend(starts)
        return starts

    many = digits * 60
    found = image_logits(digits_run, many, track=track)
    assert seen == list(range(0, 600, digits_run.config.eval.batch_size))
    torch.testing.assert_close(found.logits[-10:], found.logits[:10])


def test_image_logits__nothing_can_be_read(digits_run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    path = str(tmp_path / "a.png")
    with pytest.raises(ValueError, match="none") as error:
        image_logits(digits_run, [path])
    assert str(error.value) == (
        f"none of the 1 images can be read; the first, `{path}`, is not an image of a "
        "known format."
    )


@pytest.mark.filterwarnings("ignore::tailshift.data.own_forms.UnreadFilesWarning")
def test_image_paths__files_and_folders_each_once(
    tmp_path: Path, write_image: WriteImage
) -> None:
    first = write_image(tmp_path / "b" / "c" / "1.png")
    second = write_image(tmp_path / "b" / "2.JPG")
    (tmp_path / "b" / "notes.txt").touch()
    odd = write_image(tmp_path / "odd.png").rename(tmp_path / "odd")
    assert image_paths([odd, tmp_path / "b", first]) == (
        str(odd),
        str(second),
        str(first),
    )


def test_image_paths__refuses_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        image_paths([tmp_path / "none"])
    assert str(missing.value) == f"there is no file or folder `{tmp_path / 'none'}`."
    with pytest.raises(ValueError, match="images") as empty:
        image_paths([tmp_path])
    assert str(empty.value) == (
        f"`{tmp_path}` must hold images (.jpg, .jpeg, .png …), but holds none."
    )
