import numpy as np
import torch

from tailshift.data.own_images import hold_out

COUNTS = (100, 40, 7, 3, 2, 1)
LABELS = torch.repeat_interleave(torch.arange(6), torch.tensor(COUNTS))
KEYS = [f"{label}/{i}.jpg" for i, label in enumerate(LABELS.tolist())]
FRACTIONS = {"test": 0.2, "val": 0.1}


def _counts(chosen):
    return {
        split: torch.bincount(LABELS[ids], minlength=6).tolist()
        for split, ids in chosen.items()
    }


def test_hold_out__stratified_and_the_last_stays_in_training():
    assert _counts(hold_out(KEYS, LABELS, FRACTIONS)) == {
        "test": [20, 8, 1, 1, 1, 0],
        "val": [10, 4, 1, 1, 0, 0],
        "train": [70, 28, 5, 1, 1, 1],
    }


def test_hold_out__a_partition():
    chosen = hold_out(KEYS, LABELS, FRACTIONS)
    together = np.sort(np.concatenate(list(chosen.values())))
    assert np.array_equal(together, np.arange(len(KEYS)))
    assert all(np.array_equal(ids, np.sort(ids)) for ids in chosen.values())


def test_hold_out__the_order_of_images_does_not_matter():
    order = np.random.default_rng(0).permutation(len(KEYS))
    shuffled = hold_out([KEYS[i] for i in order], LABELS[order], FRACTIONS)
    plain = hold_out(KEYS, LABELS, FRACTIONS)
    for split in plain:
        assert {KEYS[order[i]] for i in shuffled[split]} == {
            KEYS[i] for i in plain[split]
        }


def test_hold_out__another_seed_chooses_others():
    first, second = (hold_out(KEYS, LABELS, FRACTIONS, seed=s)["test"] for s in (0, 1))
    assert not np.array_equal(first, second)
    assert len(first) == len(second)


def test_hold_out__nothing_to_hold_out():
    chosen = hold_out(KEYS, LABELS, {})
    assert list(chosen) == ["train"]
    assert len(chosen["train"]) == len(KEYS)


def test_hold_out__a_name_that_is_no_utf8():
    keys = [f"{i}\udcff.jpg" for i in range(4)]
    chosen = hold_out(keys, torch.zeros(4, dtype=torch.int64), {"val": 0.25})
    assert len(chosen["val"]) == 1
