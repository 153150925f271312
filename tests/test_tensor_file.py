"""A file of tensors comes back whole, or not at all."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tailshift.predictions import Predictions
from tailshift.runs.files import load_weights, save_weights
from tailshift.storage import DamagedFileError, read_tensors, write_tensors

TENSORS = {
    "a": torch.arange(6, dtype=torch.float16).reshape(2, 3),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(7),
    "flags": torch.tensor([True, False]),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tensors.safetensors"


def test_read_tensors__returns_what_was_written(path: Path) -> None:
    write_tensors(path, TENSORS, {"made_by": "ä hand"})
    file = read_tensors(path)
    assert file.is_sealed
    assert file.metadata == {"made_by": "ä hand"}
    assert file.tensors.keys() == TENSORS.keys()
    for key, value in TENSORS.items():
        assert torch.equal(file.tensors[key], value)
        assert file.tensors[key].dtype == value.dtype


def test_write_tensors__that_share_memory(path: Path) -> None:
    whole = torch.arange(6.0)
    write_tensors(path, {"whole": whole, "part": whole[2:], "again": whole}, {})
    assert read_tensors(path).tensors["part"].tolist() == [2, 3, 4, 5]


def test_read_tensors__without_a_checksum(path: Path) -> None:
    save_file(TENSORS, path, metadata={"made": "elsewhere"})
    assert not read_tensors(path).is_sealed


def _flips(content: bytes) -> list[bytes]:
    """Return a file with each of its bits flipped in turn, at every third byte."""
    flipped = []
    for where in range(0, len(content), 3):
        changed = bytearray(content)
        changed[where] ^= 1 << (where % 8)
        flipped.append(bytes(changed))
    return flipped


def test_read_tensors__any_flipped_bit(path: Path) -> None:
    """Caught by the checksum, or seen by the caller as no longer sealed."""
    write_tensors(path, TENSORS, {"made_by": "hand"})
    for content in _flips(path.read_bytes()):
        path.unlink()
        path.write_bytes(content)
        assert _is_told(path)


def _is_told(path: Path) -> bool:
    try:
        return not read_tensors(path).is_sealed
    except DamagedFileError as error:
        start = f"{path} is not a whole safetensors file ("
        return str(error).startswith(start) and "\n" not in str(error)


def test_load_weights__any_flipped_bit(path: Path) -> None:
    model = nn.Linear(3, 4)
    save_weights(path, model)
    for content in _flips(path.read_bytes()):
        path.unlink()
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name):
            load_weights(path, nn.Linear(3, 4))


def test_predictions__any_flipped_bit(path: Path) -> None:
    names = ("kea", "tui", "weka")
    Predictions(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), class_names=names).save(
        path
    )
    for content in _flips(path.read_bytes()):
        path.unlink()
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name):
            Predictions.load(path)


def test_load_weights__whose_checksum_is_gone(path: Path) -> None:
    model = nn.Linear(3, 4)
    save_file(model.state_dict(), path, metadata={"tailshift_weights": "1"})
    with pytest.raises(ValueError, match="checksum") as error:
        load_weights(path, model)
    assert str(error.value) == f"{path} is damaged: its checksum is gone."
    save_file(model.state_dict(), path)  # by an earlier version
    load_weights(path, model)
