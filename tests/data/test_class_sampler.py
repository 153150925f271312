"""ClassSampler in a real DataLoader, alone and shared out over processes."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tailshift.data.samplers import SAMPLERS, ClassSampler

LABELS = torch.repeat_interleave(torch.arange(4), torch.tensor([70, 20, 9, 1]))
NUM_EPOCHS = 3


def _batches(batch_size, epoch, **options):
    """Return the sample ids of each batch that a DataLoader gives in an epoch."""
    sampler = ClassSampler(LABELS, num_epochs=NUM_EPOCHS, **options)
    sampler.set_epoch(epoch)
    data = TensorDataset(torch.arange(len(LABELS)))
    return [ids for (ids,) in DataLoader(data, batch_size, sampler=sampler)]


@pytest.mark.parametrize("num_draws", [None, 240])
@pytest.mark.parametrize("name", SAMPLERS.names())
def test_class_sampler__processes_together_sample_what_one_does(name, num_draws):
    for epoch in range(NUM_EPOCHS):
        options = {"sampler": name, "num_draws": num_draws}
        whole = _batches(20, epoch, **options)
        parts = [_batches(10, epoch, rank=r, world_size=2, **options) for r in (0, 1)]
        joined = [torch.cat(both).sort().values for both in zip(*parts, strict=True)]
        assert len(joined) == len(whole) == (num_draws or 100) / 20
        for ids, expected in zip(joined, whole, strict=True):
            assert torch.equal(ids, expected.sort().values)


@pytest.mark.parametrize("name", ["class_balanced", "square_root", "progressive"])
def test_class_sampler__counts_are_within_one_of_the_distribution(name):
    counts = np.bincount(LABELS)
    for epoch in range(NUM_EPOCHS):
        ids = torch.cat(_batches(16, epoch, sampler=name))
        sampled = np.bincount(LABELS[ids], minlength=4)
        prior = SAMPLERS.get(name).class_distribution(
            counts, progress=epoch / NUM_EPOCHS
        )
        assert np.abs(sampled - 100 * prior.numpy()).max() < 1


def test_class_sampler__is_what_training_draws():
    sampler = ClassSampler(LABELS.tolist(), SAMPLERS.get("progressive"), seed=5)
    draws = SAMPLERS.get("progressive").draw(LABELS, seed=5, epoch=0)
    assert list(sampler) == draws.sample_ids.tolist()
    assert len(sampler) == 100


def test_class_sampler__refuses_uneven_shares():
    sampler = ClassSampler(LABELS, rank=0, world_size=3)
    with pytest.raises(ValueError, match="num_draws") as error:
        len(sampler)
    assert str(error.value) == (
        "`num_draws` must be a multiple of the 3 processes, so that none waits for "
        "another, but is 100. Give num_draws=99 or 102."
    )


def test_class_sampler__refuses_half_a_place():
    with pytest.raises(ValueError, match="rank") as error:
        ClassSampler(LABELS, world_size=2)
    assert str(error.value) == (
        "`rank` and `world_size` must be given together, but `rank` is None and "
        "`world_size` is 2."
    )


def test_class_sampler__unknown_name():
    with pytest.raises(ValueError, match="sampler") as error:
        ClassSampler(LABELS, "class_balance")
    assert str(error.value).startswith(
        "unknown sampler 'class_balance'; did you mean 'class_balanced'?"
    )
