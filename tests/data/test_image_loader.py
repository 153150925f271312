import ctypes
import multiprocessing
import time
from dataclasses import replace
from multiprocessing.connection import Client
from multiprocessing.resource_sharer import _resource_sharer

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from tailshift.data import image_loader as file_loader
from tailshift.data.image_loader import BrokenImageWarning, default_num_workers
from tailshift.data.image_split import FileSplit
from tailshift.data.images import ImageFiles, Preparation
from tailshift.data.randomness import Stream, hashed_integers

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on few cores
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
NUM = 23


@pytest.fixture
def split(tmp_path, write_image):
    paths = tuple(f"{i}.jpg" for i in range(NUM))
    for i, path in enumerate(paths):
        write_image(tmp_path / path, seed=i)
    labels = torch.tensor([0] * 15 + [1] * 7 + [2])
    preparation = Preparation(16, jitter=0.4)
    return FileSplit(ImageFiles(tmp_path, paths), labels, preparation)


def _loader(split, **options):
    options = {"batch_size": 6, "training": True, "seed": 4, "num_workers": 0} | options
    return split.loader(**options)


def _same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


def _reference_image(split, i, seed, epoch, occurrence):
    """By classic transforms, seeded with the sample's hash."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(16),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4),
            transforms.ToTensor(),
            transforms.Normalize(split.mean, split.std),
        ]
    )
    key = hashed_integers(
        [i], seed=seed, epoch=epoch, stream=Stream.TRANSFORM, occurrences=[occurrence]
    )
    torch.manual_seed(key.item())
    return transform(Image.open(split.images.name(i)))


def test_loader__equals_the_reference(split):
    batches = list(_loader(split, sampler="class_balanced").epoch(2))
    seen = dict.fromkeys(range(NUM), 0)
    for images, labels, ids, _ in batches:
        assert torch.equal(labels, split.labels[ids])
        for image, i in zip(images, ids.tolist(), strict=True):
            options = [_reference_image(split, i, 4, 2, k) for k in range(9)]
            close = [torch.allclose(image, other, atol=1e-5) for other in options]
            assert sum(close) == 1
            seen[i] += 1
    assert seen[22] in (7, 8)  # the rare class: a third of 23


def test_loader__for_evaluation_is_in_order_and_not_random(split):
    first, again = (list(_loader(split, training=False).epoch(e)) for e in (0, 1))
    assert torch.equal(torch.cat([b.sample_ids for b in first]), torch.arange(NUM))
    assert all(_same(a, b) for a, b in zip(first, again, strict=True))
    assert [len(b.labels) for b in first] == [6, 6, 6, 5]


def test_loader__any_number_of_workers_gives_the_same(split):
    alone = _loader(split, sampler="square_root")
    for num_workers in (1, 2):
        loader = _loader(split, sampler="square_root", num_workers=num_workers)
        for epoch in (0, 1):
            pairs = zip(alone.epoch(epoch), loader.epoch(epoch), strict=True)
            assert all(_same(a, b) for a, b in pairs)


def test_loader__strong_augmentation_with_workers_and_other_batches(split):
    strong = replace(
        split, preparation=Preparation(16, policy="auto", jitter=0.4, cutout=8)
    )
    alone = _loader(strong, sampler="square_root")
    workers = _loader(strong, sampler="square_root", num_workers=2)
    batches = list(alone.epoch(1))
    assert all(_same(a, b) for a, b in zip(batches, workers.epoch(1), strict=True))
    workers.close()
    smaller = _loader(strong, sampler="square_root", batch_size=3).epoch(1)
    images = torch.cat([batch.images for batch in batches])
    assert torch.equal(images, torch.cat([batch.images for batch in smaller]))
    assert all((image == 0).sum() >= 3 * 16 for image in images)  # cut out in a corner
    rest = alone.epoch(1, start_batch=2)
    assert all(_same(a, b) for a, b in zip(batches[2:], rest, strict=True))


def test_loader__cutout_follows_the_sample_if_another_image_is_broken(split):
    strong = replace(split, preparation=Preparation(16, cutout=8), skip_broken=True)
    (whole,) = _loader(strong, batch_size=NUM).epoch(0)
    (split.images.root / "3.jpg").write_bytes(b"broken")
    loader = _loader(strong, batch_size=NUM)
    with pytest.warns(BrokenImageWarning):
        (part,) = loader.epoch(0)
    kept = whole.sample_ids != 3
    assert torch.equal(part.sample_ids, whole.sample_ids[kept])
    assert torch.equal(part.images, whole.images[kept])


def test_loader__a_worker_fills_shared_memory(split, monkeypatch):
    """What it returns is where the main process reads it, without a copy."""
    alone = next(_loader(split).epoch(0))
    monkeypatch.setattr(file_loader, "get_worker_info", lambda: "in a worker")
    batch = next(_loader(split).epoch(0))
    assert not alone.images.is_shared()
    assert batch.images.is_shared()
    assert _same(alone, batch)


@pytest.mark.parametrize("world_size", [2, 4])
def test_loader__ranks_split_the_global_batch_exactly(split, world_size):
    whole = list(_loader(split).epoch(1))
    for rank in range(world_size):
        part = list(_loader(split, rank=rank, world_size=world_size).epoch(1))
        for one, all_ in zip(part, whole, strict=True):
            assert _same(one, [field[rank::world_size] for field in all_[:3]])


def test_loader__a_rank_without_samples_gets_an_empty_batch(split):
    last = list(_loader(split, rank=5, world_size=6).epoch(0))[-1]
    assert last.images.shape == (0, 3, 16, 16)
    assert len(last.labels) == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader__starts_mid_epoch_and_after_an_abandoned_one(split, num_workers):
    loader = _loader(split, num_workers=num_workers)
    whole = list(loader.epoch(3))
    next(loader.epoch(1))
    rest = list(loader.epoch(3, start_batch=2))
    assert all(_same(a, b) for a, b in zip(whole[2:], rest, strict=True))
    assert list(loader.epoch(3, start_batch=4)) == []


def test_loader__close_ends_the_workers(split):
    loader = _loader(split, num_workers=2)
    next(loader.epoch(0))
    assert len(multiprocessing.active_children()) == 2
    loader.close()
    assert multiprocessing.active_children() == []
    assert len(list(loader.epoch(0))) == 4  # others are started
    loader.close()
    loader.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("holds_lock", [False, True])
def test_loader__close_ends_workers_that_do_not_stop(split, monkeypatch, holds_lock):
    """Three of four read for a minute, with Python's lock or without."""
    sleep = ctypes.PyDLL(None).sleep if holds_lock else time.sleep
    load_image = file_loader.load_image
    monkeypatch.setattr(
        file_loader,
        "load_image",
        lambda images, i: sleep(60) if 4 <= i < 16 else load_image(images, i),
    )
    monkeypatch.setattr("tailshift.workers.STOP_SECONDS", 0.5)
    loader = _loader(split, batch_size=4, training=False, num_workers=4)
    next(loader.epoch(0))
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 10
    assert multiprocessing.active_children() == []


def test_loader__an_interruption_prints_nothing(split, monkeypatch, capfd):
    """It comes as a batch is taken over, so that the worker is hung up on."""

    def hang_up(ident):
        key = multiprocessing.current_process().authkey
        Client(ident[0], authkey=key).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(_resource_sharer, "get_connection", hang_up)
    loader = _loader(split, num_workers=1)
    with pytest.raises(KeyboardInterrupt):
        next(loader.epoch(0))
    time.sleep(0.5)  # for the worker to notice
    loader.close()
    assert capfd.readouterr().err == ""


def test_loader__epochs_and_seeds_differ(split):
    images = [
        next(_loader(split, batch_size=NUM, seed=seed).epoch(epoch)).images.sum()
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert len(set(images)) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader__leaves_the_global_generator_alone(split, num_workers):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(_loader(split, num_workers=num_workers).epoch(0))
    assert torch.equal(torch.rand(3), expected)


def test_loader__one_epoch_at_a_time(split):
    loader = _loader(split)
    first = loader.epoch(0)
    next(first)
    next(loader.epoch(1))
    with pytest.raises(RuntimeError) as error:
        next(first)
    assert str(error.value) == "a loader yields one epoch at a time."


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader__stops_at_a_broken_image(split, num_workers):
    path = split.images.root / "7.jpg"
    path.write_text("no image")
    with pytest.raises(ValueError, match="known format") as error:
        list(_loader(split, num_workers=num_workers).epoch(0))
    assert str(error.value) == (
        f"`{path}` is not an image of a known format. Fetch it again, or skip such "
        "images with data.skip_broken=true."
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader__skips_broken_images_and_says_so_once(split, num_workers):
    whole = {int(b.sample_ids[0]): b for b in _loader(split, batch_size=1).epoch(0)}
    root = split.images.root
    (root / "7.jpg").write_text("no image")
    (root / "9.jpg").unlink()
    tolerant = replace(split, skip_broken=True)
    loader = _loader(tolerant, num_workers=num_workers)
    with pytest.warns(BrokenImageWarning) as warned:
        batches = list(loader.epoch(0))
    broken = {
        7: f"`{root / '7.jpg'}` is not an image of a known format",
        9: f"`{root / '9.jpg'}` is missing",
    }
    assert loader.broken == broken
    assert loader.num_broken == 2
    first = next(iter(loader.broken.values()))
    assert [str(warning.message) for warning in warned] == [
        f"2 of 23 images were skipped because they cannot be read, the first: {first}."
    ]
    ids = torch.cat([batch.sample_ids for batch in batches]).tolist()
    assert sorted(ids) == [i for i in range(NUM) if i not in broken]
    for batch in batches:  # the others are as they were
        for image, i in zip(batch.images, batch.sample_ids.tolist(), strict=True):
            assert torch.equal(image, whole[i].images[0])
    assert len(list(loader.epoch(1))) == len(batches)  # no second warning
    assert loader.num_broken == 2


def test_loader__tells_one_that_skips_nothing_from_one_that_may(split):
    assert _loader(split).num_broken is None  # it stops instead
    assert _loader(replace(split, skip_broken=True)).num_broken == 0


def test_loader__labels_of_all_ranks_only_where_none_is_left_out(split):
    of_one = next(_loader(split, rank=1, world_size=2).epoch(0))
    assert of_one.all_labels.shape == (6,)
    assert torch.equal(of_one.all_labels[1::2], of_one.labels)
    tolerant = _loader(replace(split, skip_broken=True), rank=1, world_size=2)
    assert next(tolerant.epoch(0)).all_labels is None


def test_loader__a_batch_of_nothing_but_broken_images(split):
    (split.images.root / "0.jpg").unlink()
    tolerant = replace(split, skip_broken=True)
    with pytest.raises(ValueError, match="batch") as error:
        list(_loader(tolerant, batch_size=1).epoch(0))
    assert str(error.value) == (
        "a batch must have an image that can be read, but none of its 1 can: "
        f"`{split.images.root / '0.jpg'}` is missing. Fetch them again, or use larger "
        "batches."
    )


@pytest.mark.filterwarnings("ignore::tailshift.data.image_loader.BrokenImageWarning")
@pytest.mark.parametrize(
    "options", [{"training": False}, {"rank": 0, "world_size": 2, "batch_size": 2}]
)
def test_loader__nothing_but_broken_images_in_evaluation_or_on_one_rank(split, options):
    """Nothing is learnt from it, or others have a part of the batch."""
    for name in ("0.jpg", "1.jpg"):
        (split.images.root / name).unlink()
    tolerant = replace(split, skip_broken=True)
    batches = list(_loader(tolerant, **{"batch_size": 1} | options).epoch(0))
    assert min(len(batch.labels) for batch in batches) == 0


def test_loader__negative_workers(split):
    with pytest.raises(ValueError, match="num_workers") as error:
        _loader(split, num_workers=-1)
    assert str(error.value) == "`num_workers` must be >= 0, but is -1."


def test_default_num_workers__shares_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert [default_num_workers(n) for n in (1, 2, 4, 100)] == [6, 3, 1, 1]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert default_num_workers() == 8


def test_split__fingerprint_and_subset(split):
    shuffled = split.subset(torch.from_numpy(np.random.default_rng(0).permutation(NUM)))
    other_labels = FileSplit(split.images, split.labels.flip(0))
    assert split.fingerprint() == shuffled.fingerprint()
    assert len({s.fingerprint() for s in (split, other_labels)}) == 2
    (split.images.root / "3.jpg").write_text("longer or shorter")
    changed = FileSplit(ImageFiles(split.images.root, split.images.paths), split.labels)
    assert changed.fingerprint() != split.fingerprint()
    assert changed.subset(split.labels == 2).keys() == ("22.jpg",)
    assert split.in_channels == 3
    assert split.image_size == 16


def test_split__labels_of_another_length(split):
    with pytest.raises(ValueError, match="labels") as error:
        FileSplit(split.images, torch.tensor([0, 1]))
    assert str(error.value) == (
        "`labels` must be int64 of shape (23,), one for each image, but is torch.int64 "
        "of shape (2,)."
    )
