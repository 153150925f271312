"""The files of a feature cache."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tailshift.data.feature_files import create_split
from tailshift.data.features import FeatureCache

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.array(["dog", "cat", "dog", "cat"] * 3)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs it")
def test_create_split__reserves_its_room(tmp_path: Path) -> None:
    path = tmp_path / "train.safetensors"
    create_split(path, (1, 1000, 100))
    about = path.stat()
    assert 512 * about.st_blocks >= about.st_size > 400_000


def _refusing(number: int) -> Callable[..., None]:
    def allocate(*arguments: int) -> None:
        raise OSError(number, os.strerror(number))

    return allocate


def test_create_split__on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence before anything is computed; a mapped page would end the process."""
    refusing = _refusing(errno.ENOSPC)
    monkeypatch.setattr("os.posix_fallocate", refusing, raising=False)
    path = tmp_path / "bank" / "train.safetensors"
    with pytest.raises(OSError, match="space") as error:
        FeatureCache.from_arrays(tmp_path / "bank", train=(X, Y))
    assert str(error.value) == f"{path} cannot be written (No space left on device)."
    assert not path.exists()


def test_create_split__where_no_room_can_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = _refusing(errno.EOPNOTSUPP)
    monkeypatch.setattr("os.posix_fallocate", refusing, raising=False)
    bank = FeatureCache.from_arrays(tmp_path / "bank", train=(X, Y))
    assert len(bank.data().train) == 10
