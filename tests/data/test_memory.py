import hashlib
from dataclasses import replace

import pytest
import torch

from tailshift.data.memory import Augmentation, MemorySplit
from tailshift.data.randomness import sample_order

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
AUGMENT = Augmentation(padding=4, flip=True)


@pytest.fixture
def split():
    images = torch.randint(0, 256, (53, 3, 16, 16), dtype=torch.uint8)
    return MemorySplit(images, torch.randint(0, 7, (53,)), MEAN, STD, AUGMENT)


def _loader(split, **options):
    options = {"batch_size": 10, "training": True, "seed": 4} | options
    return split.loader(**options)


def _same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


def test_loader__normalises_by_hand():
    """(255/255 − 0.5)/0.25 = 2 and (0 − 0.5)/0.25 = −2."""
    pixels = torch.tensor([255, 0], dtype=torch.uint8).reshape(2, 1, 1, 1)
    split = MemorySplit(pixels, torch.tensor([0, 1]), mean=(0.5,), std=(0.25,))
    (batch,) = split.loader(batch_size=2, training=False).epoch(0)
    assert torch.allclose(batch.images.flatten(), torch.tensor([2.0, -2.0]))
    assert batch.images.dtype == torch.float32


def test_loader__follows_the_order_and_normalises_the_split(split):
    loader = _loader(replace(split, augmentation=Augmentation()))
    batches = list(loader.epoch(2))
    ids = torch.cat([b.sample_ids for b in batches])
    assert len(batches) == len(loader) == 6
    assert torch.equal(ids, sample_order(53, seed=4, epoch=2))
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    expected = (split.images[ids].float() / 255 - mean) / std
    torch.testing.assert_close(torch.cat([b.images for b in batches]), expected)
    assert torch.equal(torch.cat([b.labels for b in batches]), split.labels[ids])


def test_loader__for_evaluation_keeps_the_split_order_and_images(split):
    plain = replace(split, augmentation=Augmentation())
    batches = list(_loader(split, training=False).epoch(1))
    ids = torch.cat([b.sample_ids for b in batches])
    images = torch.cat([b.images for b in _loader(plain, training=False).epoch(0)])
    assert torch.equal(ids, torch.arange(53))
    assert torch.equal(torch.cat([b.images for b in batches]), images)


def test_loader__takes_a_sampler_by_name_and_augments_servings_differently():
    labels = torch.tensor([0] * 39 + [1])
    pixels = torch.randint(0, 256, (40, 1, 16, 16), dtype=torch.uint8)
    split = MemorySplit(pixels, labels, (0.5,), (0.5,), AUGMENT)
    loader = split.loader(batch_size=40, training=True, sampler="class_balanced")
    (batch,) = loader.epoch(0)
    rare = batch.images[batch.labels == 1]
    assert len(rare) == 20
    assert len({image.numpy().tobytes() for image in rare}) > 15


def test_loader__unknown_sampler(split):
    with pytest.raises(ValueError, match="sampler") as error:
        _loader(split, sampler="class_balance")
    assert str(error.value) == (
        "unknown sampler 'class_balance'; did you mean 'class_balanced'? Known: "
        "class_balanced, instance, progressive, reverse, square_root"
    )


@pytest.mark.parametrize(
    ("drop_last", "sizes"), [(False, [20, 20, 13]), (True, [20] * 2)]
)
def test_loader__drop_last(split, drop_last, sizes):
    loader = _loader(split, batch_size=20, drop_last=drop_last)
    assert [len(b.labels) for b in loader.epoch(0)] == sizes
    assert len(loader) == len(sizes)


@pytest.mark.parametrize("world_size", [2, 3, 4, 16])
def test_loader__ranks_split_the_global_batch_exactly(split, world_size):
    whole = list(_loader(split).epoch(1))
    ranks = [
        list(_loader(split, rank=r, world_size=world_size).epoch(1))
        for r in range(world_size)
    ]
    for b, batch in enumerate(whole):
        for r in range(world_size):
            part = [field[r::world_size] for field in batch[:3]]
            assert _same(ranks[r][b], part)
        union = torch.cat([ranks[r][b].sample_ids for r in range(world_size)])
        assert torch.equal(union.sort().values, batch.sample_ids.sort().values)


@pytest.mark.parametrize("start", [0, 1, 4, 6])
def test_loader__starts_mid_epoch(split, start):
    loader = _loader(split)
    whole, rest = list(loader.epoch(3)), list(loader.epoch(3, start_batch=start))
    assert len(rest) == 6 - start
    assert all(_same(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_loader__epochs_differ_and_repeat(split):
    loader = _loader(split)
    first, second, again = (next(loader.epoch(e)) for e in (0, 1, 0))
    assert not torch.equal(first.sample_ids, second.sample_ids)
    assert _same(first, again)


def test_loader__batches_do_not_share_memory_with_the_split(split):
    before = split.images.clone()
    for batch in _loader(split, training=False).epoch(0):
        batch.images.zero_()
        batch.labels.fill_(-1)
    assert torch.equal(split.images, before)
    assert split.labels.min() >= 0


def _split(**fields):
    images = torch.arange(36, dtype=torch.uint8).reshape(3, 3, 2, 2)
    plain = MemorySplit(images, torch.tensor([0, 0, 1]), MEAN, STD)
    return replace(plain, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"images": torch.zeros(2, 3, 4)},
            "`images` must be uint8 of shape (N, channels, H, W), but is torch.float32 "
            "of shape (2, 3, 4).",
        ),
        (
            {"labels": torch.tensor([0, 1])},
            "`labels` must be int64 of shape (3,), one for each image, but is "
            "torch.int64 of shape (2,).",
        ),
        ({"mean": (0.5,)}, "`mean` has 1 entries but the images have 3 channels."),
        ({"std": (0.5,)}, "`std` has 1 entries but the images have 3 channels."),
    ],
)
def test_split__refuses(fields, message):
    with pytest.raises(ValueError, match="`") as error:
        _split(**fields)
    assert str(error.value) == message


def test_split__subset_by_indices_or_mask():
    split = _split()
    by_index = split.subset(torch.tensor([2, 0]))
    by_mask = split.subset(torch.tensor([True, False, True]))
    assert by_index.labels.tolist() == [1, 0]
    assert torch.equal(by_index.images, split.images[[2, 0]])
    assert torch.equal(by_mask.images, split.images[[0, 2]])
    assert by_mask.keys() == (split.keys()[0], split.keys()[2])


def test_fingerprint__by_hand():
    """The hash of the sorted hashes of the images' bytes."""
    split = _split()
    hashes = sorted(
        hashlib.sha256(bytes(i.flatten().tolist())).digest() for i in split.images
    )
    assert split.fingerprint() == hashlib.sha256(b"".join(hashes)).hexdigest()[:16]


def test_fingerprint__order_does_not_matter_and_pixels_do():
    split = _split()
    changed = split.images.clone()
    changed[1, 0, 0, 0] += 1
    print_ = split.fingerprint()
    assert print_ == split.subset(torch.tensor([2, 0, 1])).fingerprint()
    assert print_ != _split(images=changed).fingerprint()
    assert print_ != split.subset(torch.tensor([0, 1])).fingerprint()


def test_loader__never_skips_an_image(split):
    assert _loader(split).num_broken is None
