import numpy as np
import pytest
import torch

from tailshift.data.batches import BatchPlan
from tailshift.data.samplers import SAMPLERS

LABELS = torch.arange(53) % 7


def _plan(**options):
    options = {"batch_size": 10, "sampler": SAMPLERS.get("instance")} | options
    return BatchPlan(LABELS, **options)


def _ids(requests):
    return [request.sample_ids.tolist() for request in requests]


def test_plan__without_a_sampler_is_the_split_in_order():
    requests = _plan(sampler=None, batch_size=20).epoch(3)
    assert _ids(requests) == [
        list(range(20)),
        list(range(20, 40)),
        list(range(40, 53)),
    ]
    assert all(request.epoch == 3 for request in requests)
    assert not np.concatenate([request.occurrences for request in requests]).any()


@pytest.mark.parametrize("sampler", SAMPLERS.names())
@pytest.mark.parametrize("world_size", [2, 3, 16])
def test_plan__ranks_split_every_batch_exactly(sampler, world_size):
    options = {"sampler": SAMPLERS.get(sampler), "num_epochs": 4}
    whole = _plan(**options).epoch(1)
    for rank in range(world_size):
        part = _plan(**options, rank=rank, world_size=world_size).epoch(1)
        assert len(part) == len(whole) == 6
        for one, all_ in zip(part, whole, strict=True):
            for field in ("sample_ids", "occurrences"):
                expected = getattr(all_, field)[rank::world_size]
                assert np.array_equal(getattr(one, field), expected)
            assert np.array_equal(one.all_ids, all_.sample_ids)


@pytest.mark.parametrize("sampler", SAMPLERS.names())
def test_plan__starts_mid_epoch(sampler):
    plan = _plan(sampler=SAMPLERS.get(sampler), num_epochs=4)
    for start in (0, 1, 5, 6):
        assert _ids(plan.epoch(2, start)) == _ids(plan.epoch(2))[start:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be >= 1, but is 0."),
        (
            {"batch_size": 54, "drop_last": True},
            "`batch_size` must be at most the number of samples (53) with `drop_last`, "
            "but is 54: no batch would be left.",
        ),
        ({"num_epochs": 0}, "`num_epochs` must be >= 1, but is 0."),
        (
            {"rank": 2, "world_size": 2},
            "`rank` must be in 0..1 (world_size 2), but is 2.",
        ),
        ({"world_size": 0}, "`world_size` must be >= 1, but is 0."),
    ],
)
def test_plan__refuses(options, message):
    with pytest.raises(ValueError, match="`") as error:
        _plan(**options)
    assert str(error.value) == message


@pytest.mark.parametrize("start", [-1, 7])
def test_plan__start_batch_out_of_range(start):
    with pytest.raises(ValueError, match="start_batch") as error:
        _plan().epoch(0, start_batch=start)
    assert str(error.value) == (
        f"`start_batch` must be in 0..6 (batches per epoch), but is {start}."
    )
