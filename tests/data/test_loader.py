import pytest
import torch

from tailshift.data.augmentation import Augmentation
from tailshift.data.dataset import Split
from tailshift.data.loader import MemoryLoader
from tailshift.data.randomness import sample_order

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
AUGMENT = Augmentation(padding=4, flip=True)


@pytest.fixture
def split():
    images = torch.randint(0, 256, (53, 3, 16, 16), dtype=torch.uint8)
    return Split(images, torch.randint(0, 7, (53,)))


def _loader(split, **options):
    options = {"batch_size": 10, "mean": MEAN, "std": STD, "seed": 4} | options
    return MemoryLoader(split, **options)


def _same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_loader__normalises_by_hand():
    """(255/255 − 0.5)/0.25 = 2 and (0 − 0.5)/0.25 = −2."""
    pixels = torch.tensor([255, 0], dtype=torch.uint8).reshape(2, 1, 1, 1)
    split = Split(pixels, torch.tensor([0, 1]))
    loader = MemoryLoader(split, batch_size=2, mean=[0.5], std=[0.25], shuffle=False)
    (batch,) = loader.epoch(0)
    assert torch.allclose(batch.images.flatten(), torch.tensor([2.0, -2.0]))
    assert batch.images.dtype == torch.float32


def test_loader__follows_the_order_and_normalises_the_split(split):
    loader = _loader(split)
    batches = list(loader.epoch(2))
    ids = torch.cat([b.sample_ids for b in batches])
    assert len(batches) == len(loader) == 6
    assert torch.equal(ids, sample_order(53, seed=4, epoch=2))
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    expected = (split.images[ids].float() / 255 - mean) / std
    torch.testing.assert_close(torch.cat([b.images for b in batches]), expected)
    assert torch.equal(torch.cat([b.labels for b in batches]), split.labels[ids])


def test_loader__without_shuffle_keeps_the_split_order(split):
    ids = torch.cat([b.sample_ids for b in _loader(split, shuffle=False).epoch(1)])
    assert torch.equal(ids, torch.arange(53))


@pytest.mark.parametrize(
    ("drop_last", "sizes"), [(False, [20, 20, 13]), (True, [20] * 2)]
)
def test_loader__drop_last(split, drop_last, sizes):
    loader = _loader(split, batch_size=20, drop_last=drop_last)
    assert [len(b.labels) for b in loader.epoch(0)] == sizes
    assert len(loader) == len(sizes)


@pytest.mark.parametrize("world_size", [2, 3, 4, 16])
def test_loader__ranks_split_the_global_batch_exactly(split, world_size):
    whole = list(_loader(split, augmentation=AUGMENT).epoch(1))
    ranks = [
        list(
            _loader(split, augmentation=AUGMENT, rank=r, world_size=world_size).epoch(1)
        )
        for r in range(world_size)
    ]
    for b, batch in enumerate(whole):
        for r in range(world_size):
            part = (field[r::world_size] for field in batch)
            assert _same(ranks[r][b], part)
        union = torch.cat([ranks[r][b].sample_ids for r in range(world_size)])
        assert torch.equal(union.sort().values, batch.sample_ids.sort().values)


@pytest.mark.parametrize("start", [0, 1, 4, 6])
def test_loader__starts_mid_epoch(split, start):
    loader = _loader(split, augmentation=AUGMENT)
    whole, rest = list(loader.epoch(3)), list(loader.epoch(3, start_batch=start))
    assert len(rest) == 6 - start
    assert all(_same(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_loader__epochs_differ_and_repeat(split):
    loader = _loader(split, augmentation=AUGMENT)
    first, second, again = (next(loader.epoch(e)) for e in (0, 1, 0))
    assert not torch.equal(first.sample_ids, second.sample_ids)
    assert _same(first, again)


def test_loader__batches_do_not_share_memory_with_the_split(split):
    before = split.images.clone()
    for batch in _loader(split, shuffle=False).epoch(0):
        batch.images.zero_()
        batch.labels.fill_(-1)
    assert torch.equal(split.images, before)
    assert split.labels.min() >= 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be >= 1, but is 0."),
        (
            {"batch_size": 54, "drop_last": True},
            "`batch_size` must be at most the number of samples (53) with `drop_last`, "
            "but is 54: no batch would be left.",
        ),
        (
            {"rank": 2, "world_size": 2},
            "`rank` must be in 0..1 (world_size 2), but is 2.",
        ),
        ({"world_size": 0}, "`world_size` must be >= 1, but is 0."),
        ({"mean": (0.5,)}, "`mean` has 1 entries but the images have 3 channels."),
        ({"std": (0.5,)}, "`std` has 1 entries but the images have 3 channels."),
        ({"std": (1.0, 0.0, 1.0)}, "`std` must be > 0, but is (1.0, 0.0, 1.0)."),
    ],
)
def test_loader__refuses(split, options, message):
    with pytest.raises(ValueError, match="`") as error:
        _loader(split, **options)
    assert str(error.value) == message


@pytest.mark.parametrize("start", [-1, 7])
def test_loader__start_batch_out_of_range(split, start):
    with pytest.raises(ValueError, match="start_batch") as error:
        _loader(split).epoch(0, start_batch=start)
    assert str(error.value) == (
        f"`start_batch` must be in 0..6 (batches an epoch), but is {start}."
    )
