import numpy as np
import pytest
import torch
from scipy import stats

from tailshift.data.randomness import (
    Stream,
    _finalise,
    hashed_below,
    hashed_integers,
    hashed_uniforms,
    sample_order,
)

IDS = np.arange(50_000)


def _reference_hash(sample_id, seed, epoch, stream):
    """The same in Python integers, one sample at a time."""

    def finalise(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    key = 0
    for part in (seed, epoch, stream):
        key = finalise((key + (part + 1) * golden) % 2**64)
    return finalise((key + (sample_id + 1) * golden) % 2**64)


def test_finalise__published_splitmix64_sequence():
    """The first five numbers of SplitMix64 seeded with 1234567."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    states = np.arange(1, 6, dtype=np.uint64) * golden + np.uint64(1234567)
    assert _finalise(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**40, 2**64 + 5])
def test_hashed_integers__equal_the_reference(seed):
    ids = [0, 1, 2, 999, 2**40]
    hashes = hashed_integers(ids, seed=seed, epoch=3, stream=Stream.FLIP)
    expected = [_reference_hash(i, seed, 3, Stream.FLIP) for i in ids]
    assert hashes.tolist() == expected


def test_hashed_integers__occurrence_zero_is_none():
    zeros, ones, twos = (np.full_like(IDS, k) for k in range(3))
    plain = hashed_integers(IDS, seed=5, stream=Stream.FLIP)
    draws = [
        hashed_integers(IDS, seed=5, stream=Stream.FLIP, occurrences=times)
        for times in (zeros, ones, twos)
    ]
    assert np.array_equal(draws[0], plain)
    assert len(np.unique(np.concatenate(draws))) == 3 * len(IDS)
    coins = [draw >> np.uint64(63) for draw in draws]
    agree = [np.mean(coins[a] == coins[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert agree == pytest.approx([0.5] * 3, abs=0.01)  # 4.5 standard deviations


def test_hashed_integers__pure_and_without_ties():
    hashes = hashed_integers(IDS, seed=0, epoch=1, stream=Stream.ORDER)
    part = hashed_integers(IDS[100:200], seed=0, epoch=1, stream=Stream.ORDER)
    assert np.array_equal(hashes[100:200], part)
    assert len(np.unique(hashes)) == len(IDS)


@pytest.mark.parametrize("stream", list(Stream))
def test_hashed_uniforms__uniform(stream):
    uniforms = hashed_uniforms(IDS, seed=7, epoch=2, stream=stream)
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3


def test_hashed_integers__every_bit_is_a_fair_coin():
    hashes = hashed_integers(IDS, seed=0, stream=Stream.FLIP)
    bits = (hashes[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    z = (bits.mean(0) - 0.5) * 2 * np.sqrt(len(IDS))
    assert np.abs(z).max() < 4.5


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1, "epoch": 0, "stream": 0},
        {"seed": 0, "epoch": 1, "stream": 0},
        {"seed": 0, "epoch": 0, "stream": 1},
    ],
    ids=["seed", "epoch", "stream"],
)
def test_hashed_uniforms__independent_of_the_next_seed_epoch_stream(other):
    """16 × 16 cells of (u, v) are equally full; a chi-squared test."""
    u = hashed_uniforms(IDS, seed=0, epoch=0, stream=0)
    v = hashed_uniforms(IDS, **other)
    table, _, _ = np.histogram2d(u, v, bins=16, range=[[0, 1], [0, 1]])
    assert stats.chisquare(table.ravel()).pvalue > 1e-3


def test_hashed_uniforms__neighbours_and_swapped_arguments_are_independent():
    u = hashed_uniforms(IDS, seed=0, stream=0)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4.5 / np.sqrt(len(IDS))
    a = hashed_uniforms(IDS, seed=1, epoch=2, stream=3)
    b = hashed_uniforms(IDS, seed=2, epoch=1, stream=3)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4.5 / np.sqrt(len(IDS))


def test_hashed_uniforms__one_sample_over_epochs_is_uniform():
    draws = [hashed_uniforms([5], seed=0, epoch=e, stream=0)[0] for e in range(2000)]
    assert stats.kstest(draws, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("bound", [1, 2, 9])
def test_hashed_below__all_values_equally_often(bound):
    draws = hashed_below(bound, IDS, seed=0, stream=Stream.CROP_ROW)
    counts = np.bincount(draws)
    assert len(counts) == bound
    assert bound == 1 or stats.chisquare(counts).pvalue > 1e-3


def test_sample_order__permutation_that_changes_with_epoch_and_seed():
    orders = [sample_order(100, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(torch.equal(o.sort().values, torch.arange(100)) for o in orders)
    assert len({tuple(o.tolist()) for o in orders}) == 4
    assert torch.equal(orders[0], sample_order(100, 0, 0))
    assert orders[0].dtype == torch.int64


def test_sample_order__all_permutations_equally_often():
    """24 permutations of four samples over 4800 epochs."""
    seen = [tuple(sample_order(4, 0, epoch).tolist()) for epoch in range(4800)]
    counts = [seen.count(order) for order in set(seen)]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3
