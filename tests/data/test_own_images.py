from dataclasses import replace

import pytest
import torch

from tailshift.data import ImageFolder, Preparation
from tailshift.data.images import ImageFiles
from tailshift.data.own_images import UntestedClassWarning, median_size, number_labels


def test_number_labels__integers_by_value_and_names_by_letter():
    assert number_labels(["10", "9", "-1", "9"])[1] == ("-1", "9", "10")
    assert number_labels(["10", "9", "007"])[1] == (
        "007",
        "10",
        "9",
    )  # a code, no number
    labels, names = number_labels(["b", "a", "b"])
    assert names == ("a", "b")
    assert labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(28, 28)], 32),
        ([(10, 12)], 32),
        ([(100, 90), (120, 100), (500, 400)], 96),
        ([(640, 480)], 224),
        ([], 224),
    ],
)
def test_median_size__a_multiple_of_32(tmp_path, write_image, sizes, expected):
    for i, size in enumerate(sizes):
        write_image(tmp_path / f"{i}.png", size=size)
    (tmp_path / "broken.png").write_text("passed over")
    paths = (*(f"{i}.png" for i in range(len(sizes))), "broken.png")
    assert median_size(ImageFiles(tmp_path, paths)) == expected


@pytest.fixture
def folder(tmp_path, write_image):
    for c, count in (("cat", 10), ("dog", 5), ("emu", 2)):
        for i in range(count):
            write_image(tmp_path / c / f"{i}.jpg", seed=i, size=(70, 60))
    return tmp_path


def test_load__holds_out_and_keeps_class_names(folder):
    data = ImageFolder(path=str(folder)).load()
    assert data.class_names == ("cat", "dog", "emu")
    assert data.class_counts.tolist() == [7, 3, 1]
    assert torch.bincount(data.val.labels).tolist() == [1, 1]
    assert torch.bincount(data.test.labels).tolist() == [2, 1, 1]
    assert data.image_size == 64
    assert data.train.preparation == Preparation(
        64, crop="padded", area=0.35, fit="whole", flip=False
    )


@pytest.mark.parametrize("policy", ["auto", "rand"])
def test_preparation__a_policy_follows_the_gentle_crop(policy):
    for size in (64, 96):
        gentle = ImageFolder().preparation(size)
        strong = ImageFolder(augment=policy, cutout=20).preparation(size)
        assert strong == replace(gentle, policy=policy, cutout=20)


def test_load__cutout_larger_than_the_images(folder):
    with pytest.raises(ValueError, match="`cutout`") as error:
        ImageFolder(path=str(folder), cutout=100).load()
    assert str(error.value) == (
        "`cutout` must be in 0..64 pixels (the image's size), but is 100."
    )


def test_load__settings(folder):
    dataset = ImageFolder(
        path=str(folder),
        image_size=48,
        val_fraction=0,
        augment="standard",
        flip=True,
        jitter=0.2,
        skip_broken=True,
    )
    data = dataset.load()
    assert data.val is None
    assert data.train.preparation == Preparation(48, flip=True, jitter=0.2)
    assert data.test.skip_broken
    assert data.fingerprint == data.train.fingerprint()


@pytest.mark.parametrize(
    ("augment", "size", "crop", "area", "fit"),
    [
        ("gentle", 64, "padded", 0.35, "whole"),
        ("gentle", 96, "resized", 0.35, "margin"),
        ("none", 64, "none", 0.08, "whole"),
        ("none", 96, "none", 0.08, "margin"),
        ("standard", 32, "resized", 0.08, "margin"),  # as it was before the choice
    ],
)
def test_preparation__by_choice_and_size(augment, size, crop, area, fit):
    expected = Preparation(size, crop=crop, area=area, fit=fit, flip=False)
    assert ImageFolder(augment=augment).preparation(size) == expected


def test_load__the_hold_out_does_not_depend_on_the_run(folder):
    first, again = (ImageFolder(path=str(folder)).load(seed=s) for s in (0, 1))
    other = ImageFolder(path=str(folder), split_seed=1).load()
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_load__a_class_with_a_single_image_is_trained_on_and_said_to_be_untested(
    folder, write_image
):
    write_image(folder / "fox" / "1.jpg")
    with pytest.warns(UntestedClassWarning) as warned:
        data = ImageFolder(path=str(folder)).load()
    assert data.class_counts.tolist() == [7, 3, 1, 1]
    assert [str(warning.message) for warning in warned] == [
        "the test split has no image of 1 of the 4 classes, the first: 'fox'. Add "
        "images to judge them too; a single one stays in training."
    ]


def test_load__no_test_split_at_all(folder):
    with pytest.raises(ValueError, match="test_fraction") as error:
        ImageFolder(path=str(folder), test_fraction=0).load()
    assert str(error.value) == (
        f"`test_fraction` must be > 0 if `{folder}` has no test split, but is 0."
    )


def test_load__no_path():
    with pytest.raises(ValueError, match="path") as error:
        ImageFolder().load()
    assert str(error.value) == (
        "`path` must name a folder with one folder of images for each class, but is "
        "empty. Give it with --data folder:PATH."
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val_fraction": -0.1}, "`val_fraction` must be in [0, 1), but is -0.1."),
        ({"test_fraction": 1.0}, "`test_fraction` must be in [0, 1), but is 1."),
        (
            {"val_fraction": 0.5, "test_fraction": 0.5},
            "`val_fraction` and `test_fraction` must sum to less than 1, but sum to 1.",
        ),
        ({"image_size": -1}, "`image_size` must be in 1..2048, but is -1."),
        ({"jitter": -1.0}, "`jitter` must be in [0, 1], but is -1."),
    ],
)
def test_settings__refused(settings, message):
    with pytest.raises(ValueError, match="`") as error:
        ImageFolder(path="x", **settings)
    assert str(error.value) == message
