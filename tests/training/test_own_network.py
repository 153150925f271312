"""Features or a network of one's own: judged on what each is made for."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from tailshift.data.image_loader import BrokenImageWarning
from tailshift.recipes import data_settings, load_recipe
from tailshift.training import own_network as module
from tailshift.training.own_network import (
    Judged,
    compared,
    own_network,
    patch_features,
)
from tailshift.training.weight_decay import LabelledLosses

Command = Callable[..., Any]
COUNTS = (90, 70, 50, 40, 30)


def _save(folder: Path, pixels: np.ndarray, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


def write_digits(root: Path, *, size: int = 4) -> str:
    """Write handwritten digits of 8 × size pixels, which are no photos."""
    digits = load_digits()
    for c, count in enumerate(COUNTS):
        rows = np.flatnonzero(digits.target == c)[:count]
        for i, row in enumerate(rows):
            large = np.kron(digits.images[row], np.ones((size, size))) * 15
            _save(root / str(c), large, i)
    return f"folder:{root}"


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: None) -> None:
    """Take a tiny untrained network in place of ImageNet's, and a few filters."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "NUM_FILTERS", 32)


def _chosen(data: str, **settings: Any) -> tuple[list[str], str]:
    return own_network(load_recipe("own_images", data_settings(data)), **settings)


def test_own_network__of_small_images_that_are_no_photos(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "digits")
    (tmp_path / "digits/0/0.png").write_bytes(b"no image")
    chosen = [*data_settings(data), "data.skip_broken=true"]
    with pytest.warns(BrokenImageWarning):
        settings, sentence = own_network(load_recipe("own_images", chosen))
    assert settings == []
    start, _, end = sentence.partition(" (loss 0.")
    assert start == (
        "one for small images, all of it is trained: on held-out training images a "
        "classifier of patches does better"
    )
    assert end.endswith("; --features lite0 takes these")


FEATURES = (
    "timm:test_efficientnet with ImageNet weights, the head alone (--finetune "
    "trains all of it)"
)


def test_own_network__if_patches_may_be_better_by_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "judge", lambda *_, **settings: Judged(0.6, 0.5, 0.05))
    settings, sentence = _chosen(write_digits(tmp_path / "digits"))
    assert ("model.frozen=true" in settings, sentence) == (True, FEATURES)


def test_compared__by_hand() -> None:
    """Two samples of class 0, one of class 2: weights 1/4, 1/4 and 1/2."""
    labels = torch.tensor([0, 0, 2])
    one = LabelledLosses(torch.tensor([1.0, 3.0, 4.0]).double(), labels)
    other = LabelledLosses(torch.tensor([1.0, 1.0, 2.0]).double(), labels)
    found = compared(one, other)  # differences 0, 2, 2, their mean 1.5
    assert found[:2] == (3.0, 1.5)
    expected = (1.5**2 / 16 + 0.5**2 / 16 + 0.5**2 / 4) ** 0.5
    assert (found.gain, found.error) == (1.5, pytest.approx(expected))
    alone = LabelledLosses(torch.tensor([1.0, 2.0]).double(), torch.tensor([0, 2]))
    of_one = (4 / 16 + 0 + 1 / 4) ** 0.5
    of_alone = (0.25 / 4 + 0.25 / 4) ** 0.5
    unpaired = (of_one**2 + of_alone**2) ** 0.5
    assert compared(one, alone).error == pytest.approx(unpaired)


def test_own_network__larger_images_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "judge", lambda *_, **settings: 1 / 0)
    settings, sentence = _chosen(write_digits(tmp_path / "photos", size=12))
    assert ("model.frozen=true" in settings, sentence) == (True, FEATURES)


def test_patch_features__by_hand() -> None:
    """Two filters, each patch in a loop, in float64."""
    torch.manual_seed(0)
    images = torch.rand(3, 1, 9, 9, dtype=torch.float64)  # 4 × 4 places
    found = patch_features(images)
    generator = torch.Generator().manual_seed(0)
    patches = module._some_patches(images, generator)
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh((patches - mean).T @ (patches - mean) / 19_999)
    whiten = vectors @ torch.diag((values + 0.1) ** -0.5) @ vectors.T
    chosen = torch.randperm(len(patches), generator=generator)[:2]
    for k, row in enumerate(chosen):
        d = (patches[row] - mean) @ whiten
        d = d / d.norm()
        for i, image in enumerate(images[:, 0]):
            quarters = torch.zeros(2, 2, 2, dtype=torch.float64)
            for y, x in itertools.product(range(4), range(4)):
                patch = image[y : y + 6, x : x + 6].flatten()
                patch = patch - patch.mean()
                patch = patch / (patch.square().mean() + 0.04).sqrt() - mean
                z = patch @ whiten @ d
                quarters[0, y // 2, x // 2] += (z - 1).clamp_min(0) / 4
                quarters[1, y // 2, x // 2] += (-z - 1).clamp_min(0) / 4
            both = found[i].reshape(2, 32, 4)[:, k]
            torch.testing.assert_close(both, quarters.flatten(1))


def test_own_network__finetuned(tmp_path: Path) -> None:
    assert _chosen(write_digits(tmp_path / "digits"), finetune=True) == (
        [
            'model.name="timm:test_efficientnet"',
            'model.weights="lite0"',
            "model.pretrained=false",
            "data.image_size=128",
        ],
        "timm:test_efficientnet with ImageNet weights, all of it is trained",
    )


def test_own_network__no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "weights_at_hand", dict)
    assert _chosen(write_digits(tmp_path / "digits")) == (
        [],
        "one for the images' size; `pip install 'tailshift[pretrained]'` would instead "
        "train a head on ImageNet features, in minutes",
    )


def test_train__resumes_what_was_chosen(tailshift: Command, tmp_path: Path) -> None:
    data = write_digits(tmp_path / "digits")
    options = ("--set", "train.epochs=1", "--output", "run")
    first = tailshift("train", "--data", data, *options)
    again = tailshift("train", "--data", data, *options, "--resume")
    assert (first.code, again.code) == (0, 0)
    assert "network: one for small images" in first.err
    assert "images go through the network once" in first.err
    assert "images go through the network once" not in again.err  # the bank is kept
