"""A checkpoint restores all state, and a damaged one says so."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim import SGD

from tailshift.losses import LADELoss
from tailshift.runs.checkpoint import (
    CheckpointWarning,
    Position,
    load_checkpoint,
    path_before,
    read_position,
    repair_checkpoint,
    save_checkpoint,
)
from tailshift.storage import (
    NOTES,
    DamagedFileError,
    TensorFile,
    read_tensors,
    write_tensors,
)


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
    position, scaler, _ = load_checkpoint(
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
        assert str(error.value).endswith(
            "). Put it back from a copy, or remove the run's folder to start it again."
        )


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
        "Put it back from a copy, or remove the run's folder to start it again."
    )


def test_load_checkpoint__other_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="checksum") as error:
        _load(path, _build(seed=2))
    assert str(error.value) == (
        f"{path} is not a whole checkpoint (it has no checksum). "
        "Put it back from a copy, or remove the run's folder to start it again."
    )


def test_load_checkpoint__other_network(saved: Path) -> None:
    with pytest.raises(ValueError, match="another network") as error:
        _load(saved, _build(seed=2, features=5))
    assert str(error.value) == (
        f"{saved} is not a whole checkpoint (it is of another network than the recipe "
        "names). Put it back from a copy, or remove the run's folder to start it again."
    )


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ("[" * 100_000, "its notes are not a JSON object"),
        ("[1]", "its notes are not a JSON object"),
        ("{}", "it has no valid position in training"),
        ('{"position": {"epoch": "7"}}', "it has no valid position in training"),
        ('{"position": {"epoch": -7}}', "it has no valid position in training"),
        ('{"position": {"run": 1}}', "it has no valid position in training"),
        ('{"position": {}}', "its optimiser or random state does not fit"),
    ],
)
def test_load_checkpoint__sealed_but_strange(
    tmp_path: Path, notes: str, reason: str
) -> None:
    """A stranger can make a checksum that fits."""
    path, state = tmp_path / "checkpoint.safetensors", _build(seed=2)
    tensors = {
        f"{name}.{key}": value
        for name, module in state.modules.items()
        for key, value in module.state_dict().items()
    }
    tensors["optimizer.99.momentum_buffer"] = torch.zeros(3)
    write_tensors(path, tensors, {NOTES: notes})
    with pytest.raises(ValueError, match="is not a whole checkpoint") as error:
        _load(path, state)
    assert str(error.value) == (
        f"{path} is not a whole checkpoint ({reason}). "
        "Put it back from a copy, or remove the run's folder to start it again."
    )


def test_save_checkpoint__keeps_the_one_before(saved: Path) -> None:
    for epoch in (4, 5):
        _save(saved, _build(seed=1), Position(epoch=epoch))
        assert read_position(saved).epoch == epoch
        assert read_position(path_before(saved)).epoch == epoch - 1
    assert sorted(saved.parent.iterdir()) == [path_before(saved), saved]


def test_save_checkpoint__without_links(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError("no links on this file system")

    monkeypatch.setattr("os.link", refuse)
    _save(saved, _build(seed=1), Position(epoch=4))
    assert read_position(saved).epoch == 4
    assert read_position(path_before(saved)).epoch == 3


def test_save_checkpoint__refuses_weights_that_are_not_finite(saved: Path) -> None:
    """Else the last good checkpoint would be replaced by one that is not."""
    before, state = saved.read_bytes(), _build(seed=1)
    with torch.no_grad():
        state.modules["model"][0].bias[1] = torch.inf
    with pytest.raises(FloatingPointError) as error:
        _save(saved, state)
    assert str(error.value) == (
        "the weight `model.0.bias` is no longer finite (epoch 4, after 2 steps of it), "
        "so no checkpoint is written. Train again with a lower optim.lr."
    )
    assert saved.read_bytes() == before


def test_save_checkpoint__onto_a_full_disk(saved: Path) -> None:
    """A limit on the size of files has the same effect, and needs no disk."""
    resource = pytest.importorskip("resource")
    before = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            _save(saved, _build(seed=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_load_checkpoint__of_other_data(saved: Path) -> None:
    state = _build(seed=1)
    save_checkpoint(
        saved, Position(), modules=state.modules, optimizer=None, data="cafe-01"
    )
    other = _build(seed=2)
    weights = other.modules["model"][0].weight.clone()
    for data in ("cafe-01", ""):  # "": not told, not compared
        load_checkpoint(saved, modules=state.modules, optimizer=None, data=data)
    with pytest.raises(ValueError, match="other images") as error:
        load_checkpoint(saved, modules=other.modules, optimizer=None, data="cafe-02")
    assert str(error.value) == (
        f"{saved} was saved in training on other images or labels (fingerprint "
        "cafe-01, but now cafe-02). Resume with the data that the run was started "
        "with, or name another folder (--output)."
    )
    assert torch.equal(other.modules["model"][0].weight, weights)


def test_repair_checkpoint__takes_the_one_before(saved: Path) -> None:
    _save(saved, _build(seed=1), Position(epoch=4))
    damaged = bytearray(saved.read_bytes())
    damaged[-1] ^= 1
    saved.write_bytes(damaged)
    with pytest.warns(CheckpointWarning) as warned:
        repair_checkpoint(saved)
    assert str(warned[0].message) == (
        f"{saved} is not a whole checkpoint (its checksum does not fit its content). "
        "The previous one is used; the damaged one is kept as "
        "checkpoint.damaged.safetensors."
    )
    assert read_position(saved).epoch == 3
    kept = saved.with_name("checkpoint.damaged.safetensors")
    assert kept.read_bytes() == bytes(damaged)


def test_repair_checkpoint__where_the_last_one_is_missing(saved: Path) -> None:
    saved.rename(path_before(saved))
    repair_checkpoint(saved)
    assert read_position(saved).epoch == 3


def test_repair_checkpoint__leaves_what_is_whole_or_the_only_one(saved: Path) -> None:
    _save(saved, _build(seed=1), Position(epoch=4))
    repair_checkpoint(saved)
    assert read_position(saved).epoch == 4
    path_before(saved).write_bytes(b"damaged too")
    saved.write_bytes(b"damaged")
    repair_checkpoint(saved)
    assert saved.read_bytes() == b"damaged"
    saved.unlink()
    repair_checkpoint(saved)
    assert not saved.exists()


def test_repair_checkpoint__moves_nothing_after_one_failed_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(saved, _build(seed=1), Position(epoch=4))
    failures = iter([True])

    def fail_once(path: Path) -> TensorFile:
        if next(failures, False):
            raise DamagedFileError(path, "a disk that was busy")
        return read_tensors(path)

    monkeypatch.setattr("tailshift.storage.read_tensors", fail_once)
    repair_checkpoint(saved)
    assert read_position(saved).epoch == 4
    assert not saved.with_name("checkpoint.damaged.safetensors").exists()
