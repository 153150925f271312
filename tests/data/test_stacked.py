"""Several loaders' batches, one under the other."""

import torch

from tailshift.data import Batch, DigitsLT, StackedLoader


class Ready:
    """A loader of batches that are there already."""

    def __init__(self, batches, num_broken=None):
        self.batches, self.num_broken = batches, num_broken

    def __len__(self):
        return len(self.batches)

    def epoch(self, epoch, start_batch=0):
        yield from self.batches[start_batch:]


def _batch(*labels):
    y = torch.tensor(labels)
    return Batch(images=y.float()[:, None], labels=y, sample_ids=10 * y)


def test_stacked_loader__parts_stand_one_after_the_other():
    loader = StackedLoader([Ready([_batch(0, 1)]), Ready([_batch(5, 6)])])
    [batch] = loader.epoch(0)
    assert batch.labels.tolist() == [0, 1, 5, 6]
    assert batch.images.flatten().tolist() == [0, 1, 5, 6]
    assert batch.sample_ids.tolist() == [0, 10, 50, 60]


def test_stacked_loader__parts_are_equal_where_one_left_images_out():
    loader = StackedLoader([Ready([_batch(0, 1, 2)], 0), Ready([_batch(5, 6)], 1)])
    [batch] = loader.epoch(0)
    assert batch.labels.tolist() == [0, 1, 5, 6]
    assert loader.num_broken == 1
    assert StackedLoader([Ready([]), Ready([])]).num_broken is None


def test_stacked_loader__goes_on_within_an_epoch():
    split = DigitsLT().load(root=None, seed=0).train
    loader = StackedLoader(
        [
            split.loader(batch_size=64, training=True, seed=seed, sampler=sampler)
            for seed, sampler in enumerate(("instance", "reverse"))
        ]
    )
    assert len(loader) == 5
    whole = list(loader.epoch(2))
    rest = list(loader.epoch(2, start_batch=3))
    assert len(whole) == 5
    for batch, expected in zip(rest, whole[3:], strict=True):
        for part, wanted in zip(batch[:3], expected[:3], strict=True):
            assert torch.equal(part, wanted)


def test_stacked_loader__labels_of_all_ranks():
    split = DigitsLT().load(root=None, seed=0).train

    def loader(rank, world_size):
        sizes = {"rank": rank, "world_size": world_size}
        loaders = [
            split.loader(batch_size=64, training=True, sampler=sampler, **sizes)
            for sampler in ("instance", "reverse")
        ]
        return StackedLoader(loaders).epoch(0)

    epochs = [loader(0, 1), loader(0, 3), loader(1, 3), loader(2, 3)]
    for alone, *parts in zip(*epochs, strict=True):
        assert alone.all_labels is None
        everyone = torch.cat([part.labels for part in parts]).sort().values
        for part in parts:
            assert torch.equal(part.all_labels, alone.labels)
            assert torch.equal(part.all_labels.sort().values, everyone)


def test_stacked_loader__each_part_is_its_samplers():
    """Class 0 has 100 of 276 images, and a share of 1/100 : 1/2 in reverse."""
    split = DigitsLT().load(root=None, seed=0).train
    loaders = [
        split.loader(batch_size=64, training=True, sampler=sampler)
        for sampler in ("instance", "reverse")
    ]
    parts = [batch.labels.chunk(2) for batch in StackedLoader(loaders).epoch(0)]
    conventional, reverse = (torch.cat(labels) for labels in zip(*parts, strict=True))
    assert (conventional == 0).sum() == 100
    assert (reverse == 0).sum() <= 4
    assert (reverse == 9).sum() > 50
