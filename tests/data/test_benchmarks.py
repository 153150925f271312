from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tailshift.data import DATASETS, ImageNetLT, INaturalist2018, Preparation
from tailshift.data.benchmarks import known_counts

NAMES = ("imagenet_lt", "places_lt", "inaturalist2018")
CUT_DOWN = {"check_counts": False, "image_size": 16}


def _dataset(name, **settings):
    return DATASETS.get(name)(**CUT_DOWN | settings)


@pytest.fixture(params=NAMES)
def cut_down(request, tmp_path, write_benchmark):
    """Give each benchmark in turn, and the folder of a copy with ten images."""
    return _dataset(request.param), write_benchmark(tmp_path, request.param)


def _append(file, line):
    file.write_text(f"{file.read_text()}{line}\n")


def _load_message(dataset, root):
    with pytest.raises((ValueError, FileNotFoundError), match=" ") as error:
        dataset.load(root=root)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "total", "num_classes", "largest", "smallest"),
    [
        ("imagenet_lt", 115_846, 1000, 1280, 5),
        ("places_lt", 62_500, 365, 4980, 5),
        ("inaturalist2018", 437_513, 8142, 1000, 2),
    ],
)
def test_known_counts(name, total, num_classes, largest, smallest):
    counts = known_counts(name)
    assert len(counts) == num_classes
    assert (counts.sum(), counts.max(), counts.min()) == (total, largest, smallest)


@pytest.mark.parametrize("name", NAMES)
def test_load__reads_the_public_layout(tmp_path, write_benchmark, name):
    data = _dataset(name).load(root=write_benchmark(tmp_path, name))
    assert data.name == name
    assert data.class_counts.tolist() == [5, 3, 2]
    assert (data.val is None) == (name == "inaturalist2018")
    assert torch.bincount(data.test.labels).tolist() == [2, 2, 2]
    assert data.in_channels == 3
    assert data.image_size == 16
    assert (
        data.class_names
        == {
            "imagenet_lt": ("n00000000", "n00000001", "n00000002"),
            "places_lt": ("scene_0", "scene_1", "scene_2"),
            "inaturalist2018": ("0", "1", "2"),
        }[name]
    )
    for split, training in ((data.train, True), (data.test, False)):
        loader = split.loader(batch_size=4, training=training, num_workers=0)
        batches = list(loader.epoch(0))
        assert sum(len(batch.labels) for batch in batches) == len(split)
        assert batches[0].images.shape == (4, 3, 16, 16)


@pytest.mark.parametrize("place", ["lists", "imagenet_lt"])
def test_load__lists_may_lie_in_a_folder_of_their_own(tmp_path, write_benchmark, place):
    write_benchmark(tmp_path, "imagenet_lt")
    (tmp_path / place).mkdir()
    for file in tmp_path.glob("*.txt"):
        file.rename(tmp_path / place / file.name)
    assert len(_dataset("imagenet_lt").load(root=tmp_path).train) == 10


def test_load__all_in_the_folder_of_the_set(tmp_path, write_benchmark):
    write_benchmark(tmp_path / "imagenet_lt", "imagenet_lt")
    data = _dataset("imagenet_lt").load(root=tmp_path)
    assert data.train.images.root == tmp_path / "imagenet_lt"


def test_load__images_elsewhere(tmp_path, write_benchmark, monkeypatch):
    write_benchmark(tmp_path / "pictures", "imagenet_lt")
    for file in (tmp_path / "pictures").glob("*.txt"):
        file.rename(tmp_path / file.name)
    monkeypatch.setenv("TAILSHIFT_DATA", str(tmp_path))
    for root in ("pictures", str(tmp_path / "pictures")):
        data = _dataset("imagenet_lt", image_root=root).load()
        assert data.train.images.root == tmp_path / "pictures"


def test_transforms__as_training_really_was_or_as_the_appendix_says():
    def of(dataset, **settings):
        return dataset(**settings).preparation(224)

    assert of(ImageNetLT) == Preparation(224, crop="resized", flip=True, jitter=0.4)
    assert of(INaturalist2018) == Preparation(224, crop="resized", jitter=0.0)
    appendix = Preparation(224, crop="random", flip=True, jitter=0.4)
    assert of(ImageNetLT, transform="appendix") == appendix
    assert of(INaturalist2018, transform="appendix") == appendix
    assert INaturalist2018.mean == (0.466, 0.471, 0.380)
    assert ImageNetLT.std == (0.229, 0.224, 0.225)


def test_load__other_counts_than_the_public_ones(tmp_path, write_benchmark):
    counts = [50, 250] + [1] * 998
    counts[7] = 0
    root = write_benchmark(tmp_path, "imagenet_lt", counts=(1,))
    file = root / "ImageNet_LT_train.txt"
    lines = [f"t/{c}/{i}.jpg {c}\n" for c in range(1000) for i in range(counts[c])]
    file.write_text("".join(lines))
    assert _load_message(ImageNetLT(), root) == (
        f"`{file}` must list an image of every class in 0..999, but has none of class "
        "7."
    )
    file.write_text("".join([*lines, "t/7/0.jpg 7\n"]))
    assert _load_message(ImageNetLT(), root) == (
        f"`{file}` must list 516 images of class 2 as the public list does, but lists "
        "1. Fetch it again, or use a cut-down copy with data.check_counts=false."
    )


def test_load__label_out_of_range(cut_down):
    dataset, root = cut_down
    file = root / dataset.lists["test"]
    _append(file, "a.jpg 3")
    assert _load_message(dataset, root) == (
        f"`{file}` line 7 must have a label in 0..2, but has 3."
    )


@pytest.mark.parametrize("name", NAMES)
def test_load__empty_class(tmp_path, write_benchmark, name):
    root = write_benchmark(tmp_path, name, counts=(5, 0, 2))
    dataset = _dataset(name)
    assert _load_message(dataset, root) == (
        f"`{root / dataset.lists['train']}` must list an image of every class in 0..2, "
        "but has none of class 1."
    )


def test_load__duplicate_path(cut_down):
    dataset, root = cut_down
    file = root / dataset.lists["train"]
    first = file.read_text().splitlines()[0]
    _append(file, first)
    assert _load_message(dataset, root) == (
        f"`{file}` line 11 names {first.split()[0]} again, which stands in line 1. "
        "Remove one of the two."
    )


def test_load__an_image_in_two_splits(cut_down):
    dataset, root = cut_down
    train, test = (root / dataset.lists[split] for split in ("train", "test"))
    shared = train.read_text().splitlines()[0]
    _append(test, shared)
    assert _load_message(dataset, root) == (
        f"an image must be in one split only, but {shared.split()[0]} is in train and "
        "in test (1 such)."
    )


def test_load__missing_image(cut_down):
    dataset, root = cut_down
    lines = (root / dataset.lists["test"]).read_text().splitlines()
    paths = [line.split()[0] for line in lines]
    for path in paths[1:3]:
        (root / path).unlink()
    assert _load_message(dataset, root) == (
        f"`{root / paths[1]}` is missing, one of 2 missing of the 6 images of test. "
        "Fetch it again, or skip such images with data.skip_broken=true."
    )
    data = replace(dataset, skip_broken=True).load(root=root)
    assert data.test.missing() == [1, 2]


def test_load__broken_jpeg(cut_down):
    dataset, root = cut_down
    data = dataset.load(root=root)
    path = Path(data.train.images.name(4))
    path.write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ValueError, match="image") as error:
        list(data.train.loader(batch_size=4, training=True, num_workers=0).epoch(0))
    assert str(error.value) == (
        f"`{path}` is not an image of a known format. Fetch it again, or skip such "
        "images with data.skip_broken=true."
    )


def test_load__no_list(tmp_path):
    assert _load_message(ImageNetLT(), tmp_path) == (
        "imagenet_lt needs the public list ImageNet_LT_train.txt, but it is in none of "
        f"`{tmp_path}`, `{tmp_path / 'lists'}`, `{tmp_path / 'imagenet_lt'}`. Put it "
        "there, or name another folder with --data-root."
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"transform": "apendix"},
            "`transform` must be official, appendix or plain, but is 'apendix'.",
        ),
        ({"image_size": 0}, "`image_size` must be in 1..2048, but is 0."),
    ],
)
def test_settings__refused(settings, message):
    with pytest.raises(ValueError, match="`") as error:
        ImageNetLT(**settings)
    assert str(error.value) == message
