"""Held-out logits of all images, for a head that trains on all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailshift as ts
from tailshift.data import FeatureCache
from tailshift.training.cross_fit import fold_numbers

DIM = 200
COUNTS = {"train": (30, 12, 4, 1), "val": (4, 3, 1, 0), "test": (5, 5, 5, 5)}


def _train(folder: Path, method: str, *settings: str) -> ts.Run:
    """Train on noise with more features than samples: any head can memorise it."""
    rng = np.random.default_rng(0)
    parts: dict[str, Any] = {
        name: (
            rng.normal(size=(sum(counts), DIM)).astype(np.float32),
            np.repeat(np.arange(4), counts),
        )
        for name, counts in COUNTS.items()
    }
    data = FeatureCache.from_arrays(folder / "features", **parts).data()
    config = ts.load_recipe(
        "digits_lt",
        [
            "model.name=features",
            "model.frozen=true",
            f"method.name={method}",
            "optim.name=lbfgs",
            "optim.lr=0.1",
            "train.epochs=1",
            "train.batch_size=64",
            "optim.weight_decay=0.01",
            "train.cross_fit=5",
            *settings,
        ],
    )
    return ts.train(config, output=folder / "run", data=data)


def test_fold_numbers__spread_each_class_and_are_of_one_size() -> None:
    labels = torch.tensor([0] * 23 + [1] * 7 + [2] * 3 + [3])
    folds = fold_numbers(labels[torch.randperm(34)], 5)
    assert folds[folds >= 0].bincount().tolist() == [7, 7, 7, 6, 6]
    folds = fold_numbers(labels, 5)
    for c in range(3):
        sizes = folds[labels == c].bincount(minlength=5)
        assert sizes.max() - sizes.min() <= 1
    assert folds[labels == 3].tolist() == [-1]


@pytest.mark.parametrize("method", ["softmax", "lade"])
def test_train__fits_all_images_and_holds_all_of_them_out(
    tmp_path: Path, method: str
) -> None:
    run = _train(tmp_path, method)
    assert run.source_counts.tolist() == [34, 15, 5, 1]
    assert run.metrics[-1]["train_accuracy"] == 1.0
    held_out = run.predictions("val")
    assert held_out.labels.bincount().tolist() == [34, 15, 5]  # one image: trained on
    f = ts.post_compensate(
        held_out.logits,
        logit_prior=held_out.logit_prior,
        target_prior=torch.full((4,), 0.25),
    )
    recalls = [(f.argmax(1) == c)[held_out.labels == c].double() for c in range(3)]
    assert sum(float(r.mean()) for r in recalls) / 3 < 0.6  # chance: it is noise


@pytest.mark.parametrize("setting", ["train.cross_fit=0", "train.keep=best"])
def test_train__leaves_validation_images_out_on_request(
    tmp_path: Path, setting: str
) -> None:
    run = _train(tmp_path, "softmax", setting)
    assert run.source_counts.tolist() == list(COUNTS["train"])
    assert run.predictions("val").labels.bincount().tolist() == [4, 3, 1]
