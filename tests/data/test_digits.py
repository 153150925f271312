import pytest
import torch
from sklearn.datasets import load_digits

from tailshift.data.digits import DigitsLT


def _keys(split):
    return {bytes(image.flatten().tolist()) for image in split.images}


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, [100, 64, 41, 27, 17, 11, 7, 4, 3, 2]),
        ({"imbalance_ratio": 10, "profile": "step"}, [100] * 5 + [10] * 5),
        ({"imbalance_ratio": 1000, "profile": "step"}, [100] * 5 + [2] * 5),
        ({"imbalance_ratio": 1}, [100] * 10),
    ],
)
def test_digits__counts(settings, counts):
    data = DigitsLT(**settings).load(root=None, seed=0)
    val = torch.bincount(data.val.labels, minlength=10).tolist()
    assert data.class_counts.tolist() == counts
    assert torch.bincount(data.test.labels).tolist() == [50] * 10
    assert val == [max(1, round(n / 5)) for n in counts]


def test_digits__images_are_the_embedded_ones():
    data = DigitsLT().load(root=None, seed=0)
    digits = load_digits()
    by_pixels = {
        bytes((image * 255 / 16).round().astype(int).ravel().tolist()): label
        for image, label in zip(digits.images, digits.target, strict=True)
    }
    for split in (data.train, data.val, data.test):
        for image, label in zip(split.images, split.labels, strict=True):
            assert by_pixels[bytes(image.flatten().tolist())] == label
    assert data.train.images.shape == (276, 1, 8, 8)
    assert data.train.images.max() == 255
    assert data.class_names == tuple("0123456789")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_digits__splits_never_overlap(seed):
    """No two embedded images are equal, so their pixels tell them apart."""
    data = DigitsLT(imbalance_ratio=1).load(root=None, seed=seed)
    train, val, test = _keys(data.train), _keys(data.val), _keys(data.test)
    assert len(train | val | test) == len(data.train) + len(data.val) + len(data.test)


def test_digits__deterministic_for_a_seed():
    first, again = (DigitsLT().load(root=None, seed=0) for _ in range(2))
    other = DigitsLT().load(root=None, seed=1)
    assert torch.equal(first.train.images, again.train.images)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert _keys(first.test) != _keys(other.test)


def test_digits__steeper_lies_inside_flatter_with_the_same_test():
    flat = DigitsLT(imbalance_ratio=10).load(root=None, seed=0)
    steep = DigitsLT(imbalance_ratio=50).load(root=None, seed=0)
    assert _keys(steep.train) < _keys(flat.train)
    assert torch.equal(steep.test.images, flat.test.images)


def test_digits__mean_and_std_are_those_of_the_images():
    data = DigitsLT(imbalance_ratio=1).load(root=None, seed=0)
    pixels = data.train.images / 255
    assert pixels.mean().item() == pytest.approx(data.mean[0], abs=0.005)
    assert pixels.std().item() == pytest.approx(data.std[0], abs=0.005)
