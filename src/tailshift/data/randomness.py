"""Counter-based randomness: every draw is a pure function of what it is for.

A draw depends on (seed, epoch, sample id, stream) and, for a sample that an epoch
draws more than once, on which of these it is: not on the number of ranks or workers,
the batch size, the order of calls or where an epoch was resumed.
The generator is SplitMix64 (Steele, Lea and Flood, 2014): sample i of a stream reads
position i of the sequence that starts at the stream's key.
"""

from enum import IntEnum

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd
_MASK = 2**64 - 1


class Stream(IntEnum):
    """What a draw is for; two streams are independent of each other.

    The numbers are part of every result made with them: add, never renumber.
    """

    ORDER = 0
    CROP_ROW = 1
    CROP_COLUMN = 2
    FLIP = 3
    SPLIT = 4
    QUOTA = 5
    CLASS_ORDER = 6
    TRANSFORM = 7
    STEP = 8
    MIX = 9
    ROTATION = 10
    VIEW = 11
    POLICY = 12
    CUTOUT_ROW = 13
    CUTOUT_COLUMN = 14


def hashed_integers(
    sample_ids: ArrayLike,
    *,
    seed: int,
    epoch: int = 0,
    stream: int,
    occurrences: ArrayLike | None = None,
) -> NDArray[np.uint64]:
    """Return one integer in [0, 2^64) for each sample id.

    Within one (seed, epoch, stream) different ids give different integers.

    Args:
        sample_ids: Non-negative integers, any shape.
        seed: The run's seed.
        epoch: The epoch the draw belongs to.
        stream: What the draw is for, a :class:`Stream`.
        occurrences: Which of its draws in the epoch it is, from 0, same shape;
            None is 0 for all.

    Example:
        >>> hashed_integers([0, 1], seed=0, stream=Stream.FLIP).tolist()
        [6796930284449506316, 3744118089665639384]
    """
    key = _stream_key(seed, epoch, stream)
    counter = np.asarray(sample_ids).astype(np.uint64) + np.uint64(1)
    hashes = _finalise(counter * np.uint64(_GOLDEN) + np.uint64(key))
    if occurrences is None:
        return hashes
    times = np.asarray(occurrences).astype(np.uint64)
    again = _finalise(hashes + times * np.uint64(_GOLDEN))
    return np.where(times == 0, hashes, again)


def hashed_uniforms(
    sample_ids: ArrayLike,
    *,
    seed: int,
    epoch: int = 0,
    stream: int,
    occurrences: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return one float in [0, 1) for each sample id, a multiple of 2^-53."""
    bits = hashed_integers(
        sample_ids, seed=seed, epoch=epoch, stream=stream, occurrences=occurrences
    )
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hashed_below(
    bound: int,
    sample_ids: ArrayLike,
    *,
    seed: int,
    epoch: int = 0,
    stream: int,
    occurrences: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """Return one integer in [0, bound) for each sample id; `bound` at most 2^32."""
    uniforms = hashed_uniforms(
        sample_ids, seed=seed, epoch=epoch, stream=stream, occurrences=occurrences
    )
    return (uniforms * bound).astype(np.int64)


def sample_order(
    num_samples: int, seed: int, epoch: int, *, stream: int = Stream.ORDER
) -> Tensor:
    """Return the epoch's permutation of 0..num_samples − 1, shape (num_samples,).

    It sorts the samples by their hashes, which never tie.

    Example:
        >>> sample_order(5, seed=0, epoch=0)
        tensor([1, 0, 4, 2, 3])
    """
    ids = np.arange(num_samples)
    hashes = hashed_integers(ids, seed=seed, epoch=epoch, stream=stream)
    return torch.from_numpy(np.argsort(hashes))


def _stream_key(seed: int, epoch: int, stream: int) -> int:
    """Mix the three into one 64-bit key, each through a full finaliser."""
    key = 0
    for part in (seed, epoch, stream):
        word = np.array([(key + part * _GOLDEN + _GOLDEN) & _MASK], dtype=np.uint64)
        key = int(_finalise(word)[0])
    return key


def _finalise(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finaliser, a bijection of 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
