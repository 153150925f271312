"""A checkpoint restores all state, and a damaged one says so."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim import SGD

from tailshift.losses import LADELoss
from tailshift.training.checkpoint import Position, load_checkpoint, save_checkpoint


class _State(NamedTuple):
    modules: dict[str, nn.Module]
    optimizer: SGD


def _build(seed: int, features: int = 4) -> _State:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(features, 3), nn.BatchNorm1d(3))
    loss = LADELoss([0.5, 0.3, 0.2], alpha=0.1, lam=0.01)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _State({"model": model, "loss": loss}, optimizer)


def _step(state: _State) -> None:
    inputs = torch.randn(8, 4)  # from the global random state, which is restored too
    state.modules["model"](inputs).square().sum().backward()
    state.optimizer.step()
    state.optimizer.zero_grad()


def _save(path: Path, state: _State, position: Position | None = None) -> None:
    save_checkpoint(
        path,
        position or Position(epoch=3, batch=2),
        modules=state.modules,
        optimizer=state.optimizer,
        scaler={"scale": 1024.0, "_growth_tracker": 7},
    )


def _load(path: Path, state: _State) -> Position:
    position, scaler = load_checkpoint(
        path, modules=state.modules, optimizer=state.optimizer
    )
    assert scaler == {"scale": 1024.0, "_growth_tracker": 7}
    return position


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    state = _build(seed=1)
    _step(state)
    path = tmp_path / "checkpoint.safetensors"
    _save(path, state)
    return path


def test_checkpoint__goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Weights, batch statistics, momentum and random state all matter to a step."""
    path = tmp_path / "checkpoint.safetensors"
    state = _build(seed=1)
    _step(state)
    position = Position(epoch=3, batch=2)
    position.add(loss=0.1, images=8)
    position.add(loss=0.2, images=8)
    _save(path, state, position)
    _step(state)
    other = _build(seed=2)
    assert _load(path, other) == position
    _step(other)
    for name, value in state.modules["model"].state_dict().items():
        assert torch.equal(value, other.modules["model"].state_dict()[name]), name
    for index, slots in state.optimizer.state_dict()["state"].items():
        restored = other.optimizer.state_dict()["state"][index]["momentum_buffer"]
        assert torch.equal(slots["momentum_buffer"], restored)
    assert position.sums["loss"] == 0.1 + 0.2


def test_checkpoint__restores_the_random_state(saved: Path) -> None:
    drawn = []
    for _ in range(2):
        _load(saved, _build(seed=5))
        drawn.append(torch.rand(8))
    assert torch.equal(*drawn)


def test_checkpoint__before_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    _save(path, _build(seed=1), Position())
    assert _load(path, _build(seed=2)) == Position()


def test_checkpoint__keeps_the_learning_rate_of_the_recipe(saved: Path) -> None:
    state = _build(seed=2)
    state.optimizer.param_groups[0]["lr"] = 0.025
    _load(saved, state)
    assert state.optimizer.param_groups[0]["lr"] == 0.025


def test_load_checkpoint__truncated(saved: Path) -> None:
    content = saved.read_bytes()
    for size in (0, 7, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:size])
        with pytest.raises(ValueError, match="is not a whole checkpoint") as error:
            _load(saved, _build(seed=2))
        assert str(error.value).startswith(f"{saved} is not a whole checkpoint (")
        assert str(error.value).endswith("). Start the run again with --force.")


def test_load_checkpoint__any_flipped_byte(saved: Path) -> None:
    content = saved.read_bytes()
    for where in range(0, len(content), 29):
        flipped = bytearray(content)
        flipped[where] ^= 0x01
        saved.write_bytes(flipped)
        with pytest.raises(ValueError, match="is not a whole checkpoint"):
            _load(saved, _build(seed=2))


def test_load_checkpoint__flipped_weight(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-1] ^= 0x40
    saved.write_bytes(content)
    with pytest.raises(ValueError, match="checksum") as error:
        _load(saved, _build(seed=2))
    assert str(error.value) == (
        f"{saved} is not a whole checkpoint (its checksum does not fit its content). "
        "Start the run again with --force."
    )


def test_load_checkpoint__other_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="checksum"):
        _load(path, _build(seed=2))


def test_load_checkpoint__other_network(saved: Path) -> None:
    with pytest.raises(ValueError, match="another network") as error:
        _load(saved, _build(seed=2, features=5))
    assert str(error.value) == (
        f"{saved} is not a whole checkpoint (it is of another network than the recipe "
        "names). Start the run again with --force."
    )
