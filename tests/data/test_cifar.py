import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tailshift.data.cifar import CIFAR10LT, CIFAR100LT
from tailshift.data.memory import Augmentation


def _keys(split):
    return {image.numpy().tobytes() for image in split.images}


def test_cifar100__reads_the_files(tmp_path, write_cifar100):
    folder = write_cifar100(tmp_path)
    data = CIFAR100LT(imbalance_ratio=3).load(root=tmp_path, seed=0)
    test = pickle.loads((folder / "test").read_bytes())
    assert data.class_counts.tolist() == [int(12 * 3 ** (-c / 99)) for c in range(100)]
    assert np.array_equal(data.test.images.reshape(-1, 3072), test["data"])
    assert data.test.labels.tolist() == test["fine_labels"]
    assert data.class_names == tuple(f"name {c}" for c in range(100))
    assert data.val is None
    assert data.train.augmentation == Augmentation(padding=4, flip=True)
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert data.std == (0.2023, 0.1994, 0.2010)
    assert (data.name, data.in_channels, data.image_size) == ("cifar100_lt", 3, 32)


def test_cifar10__reads_all_five_batches(tmp_path, write_cifar10):
    write_cifar10(tmp_path)
    data = CIFAR10LT(imbalance_ratio=1).load(root=tmp_path, seed=0)
    assert data.class_counts.tolist() == [20] * 10
    assert len(_keys(data.train)) == 200
    assert len(data.test) == 40
    assert data.name == "cifar10_lt"


def test_cifar10__step_profile(tmp_path, write_cifar10):
    write_cifar10(tmp_path)
    data = CIFAR10LT(imbalance_ratio=10, profile="step").load(root=tmp_path, seed=0)
    assert data.class_counts.tolist() == [20] * 5 + [2] * 5


def test_hashed_subset__independent_of_file_order(tmp_path, write_cifar100):
    write_cifar100(tmp_path / "a")
    write_cifar100(tmp_path / "b", order=np.random.default_rng(1).permutation(1200))
    a = CIFAR100LT(imbalance_ratio=3).load(root=tmp_path / "a", seed=0)
    b = CIFAR100LT(imbalance_ratio=3).load(root=tmp_path / "b", seed=0)
    assert torch.equal(a.train.images, b.train.images)
    assert torch.equal(a.train.labels, b.train.labels)
    assert a.fingerprint == b.fingerprint


def test_hashed_subset__steeper_lies_inside_flatter(tmp_path, write_cifar100):
    write_cifar100(tmp_path)
    steep, middle, flat = (
        _keys(CIFAR100LT(imbalance_ratio=r).load(root=tmp_path, seed=0).train)
        for r in (12, 6, 2)
    )
    assert steep < middle < flat


def test_hashed_subset__another_subset_seed_keeps_other_images(
    tmp_path, write_cifar100
):
    write_cifar100(tmp_path)
    first, second = (
        CIFAR100LT(imbalance_ratio=12, subset_seed=s).load(root=tmp_path, seed=0)
        for s in (0, 1)
    )
    assert first.fingerprint != second.fingerprint
    assert torch.equal(first.class_counts, second.class_counts)


def test_hashed_subset__follows_the_run_seed_unless_it_is_set(tmp_path, write_cifar100):
    write_cifar100(tmp_path)
    drawn = {
        (subset_seed, seed): CIFAR100LT(imbalance_ratio=12, subset_seed=subset_seed)
        .load(root=tmp_path, seed=seed)
        .fingerprint
        for subset_seed, seed in [(None, 0), (None, 1), (0, 1), (1, 0)]
    }
    assert drawn[None, 0] == drawn[0, 1] != drawn[None, 1] == drawn[1, 0]


def test_official_subset__legacy_numpy_seed_1(tmp_path, write_cifar100):
    """Beside a naive loop over the same generator."""
    folder = write_cifar100(tmp_path)
    dataset = CIFAR100LT(imbalance_ratio=4, subset="official_seed1")
    data = dataset.load(root=tmp_path, seed=0)
    table = pickle.loads((folder / "train").read_bytes())
    labels, legacy = np.array(table["fine_labels"]), np.random.RandomState(1)
    kept = []
    for c in range(100):
        positions = np.array([i for i, label in enumerate(labels) if label == c])
        legacy.shuffle(positions)
        kept.extend(positions[: int(12 * 0.25 ** (c / 99))])
    assert np.array_equal(data.train.images.reshape(-1, 3072), table["data"][kept])
    assert data.train.labels.tolist() == labels[kept].tolist()


def test_official_subset__leaves_the_global_generator_alone(tmp_path, write_cifar100):
    write_cifar100(tmp_path)
    before = np.random.get_state()[1].copy()
    CIFAR100LT(imbalance_ratio=4, subset="official_seed1").load(root=tmp_path, seed=0)
    assert np.array_equal(before, np.random.get_state()[1])


def test_cifar__unknown_subset():
    with pytest.raises(ValueError, match="subset") as error:
        CIFAR100LT(subset="official")
    assert str(error.value) == (
        "unknown subset 'official'; did you mean 'official_seed1'? "
        "Known: hashed, official_seed1"
    )


def test_cifar__a_class_would_have_no_image(tmp_path, write_cifar100):
    write_cifar100(tmp_path)
    with pytest.raises(ValueError, match="imbalance_ratio") as error:
        CIFAR100LT(imbalance_ratio=100).load(root=tmp_path, seed=0)
    assert str(error.value) == (
        "`imbalance_ratio` must be <= 12 (the images of the largest class), but is "
        "100: class 54 would have no image."
    )


def test_cifar__too_few_images_of_a_class(tmp_path, write_cifar100, change_file):
    folder = write_cifar100(tmp_path)
    labels = pickle.loads((folder / "train").read_bytes())["fine_labels"]
    labels[labels.index(0)] = 1
    change_file(folder / "train", fine_labels=labels)
    with pytest.raises(ValueError, match="class 0") as error:
        CIFAR100LT(imbalance_ratio=3).load(root=tmp_path, seed=0)
    assert str(error.value) == (
        f"`{folder}` must hold 12 training images of class 0, but holds 11. "
        "Fetch cifar-100-python.tar.gz again."
    )


@pytest.mark.skipif(
    not Path(os.environ.get("TAILSHIFT_DATA", ""), "cifar-100-python/train").is_file(),
    reason="TAILSHIFT_DATA names no folder with cifar-100-python",
)
@pytest.mark.parametrize(
    ("ratio", "total", "chosen"),
    [
        (100, 10_847, "a3f4a66048da7475"),
        (50, 12_608, "04c94db6f33aee2d"),
        (10, 19_573, "341309eb95829b15"),
    ],
)
def test_cifar100__real_data(ratio, total, chosen):
    """The fingerprints do not depend on the order of the rows."""
    data = CIFAR100LT(imbalance_ratio=ratio).load(root=None, seed=0)
    assert len(data.train) == total
    assert torch.bincount(data.test.labels).tolist() == [100] * 100
    assert data.class_names[::33] == ("apple", "forest", "raccoon", "worm")
    assert data.fingerprint == chosen
