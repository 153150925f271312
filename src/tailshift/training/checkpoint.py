"""Checkpoints: one safetensors file with all that the rest of a run depends on."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from tailshift.files import atomic_write


@dataclass
class Position:
    """Where training stands, and the sums of the epoch under way."""

    stage: int = 0
    """Of the method, counted from 0."""
    epoch: int = 0
    """Whole epochs done of the stage."""
    batch: int = 0
    """Batches done of the epoch under way."""
    sums: dict[str, float] = field(default_factory=dict)
    """Running sums of that epoch's metrics."""

    def add(self, **amounts: float) -> None:
        """Add to the running sums."""
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0.0) + amount


def save_checkpoint(
    path: Path,
    position: Position,
    *,
    modules: Mapping[str, nn.Module],
    optimizer: Optimizer | None,
    scaler: Mapping[str, Any] | None = None,
) -> None:
    """Write modules, optimiser, random state and position; replaces the last one.

    Args:
        path: The checkpoint file.
        position: Where training stands.
        modules: Everything with a state, by name: the model, the loss.
        optimizer: Its tensors are saved; its hyperparameters come from the recipe. None
            where nothing is optimised.
        scaler: State of the loss scaler under half precision, numbers only.
    """
    tensors = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    for name, module in modules.items():
        for key, value in module.state_dict().items():
            tensors[f"{name}.{key}"] = value
    slots_of = {} if optimizer is None else optimizer.state_dict()["state"]
    for index, slots in slots_of.items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{slot}"] = value
    tensors = {key: value.contiguous().clone() for key, value in tensors.items()}
    notes = json.dumps({"position": asdict(position), "scaler": dict(scaler or {})})
    metadata = {"tailshift": notes, "checksum": _checksum(tensors, notes)}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def load_checkpoint(
    path: Path, *, modules: Mapping[str, nn.Module], optimizer: Optimizer | None
) -> tuple[Position, dict[str, Any]]:
    """Restore what `save_checkpoint` wrote; returns the position and scaler state."""
    tensors, notes = _read(path)
    try:
        for name, module in modules.items():
            module.load_state_dict(_under(f"{name}.", tensors))
    except RuntimeError:
        raise _damaged(path, "it is of another network than the recipe names") from None
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in _under("optimizer.", tensors).items():
        index, _, slot = key.partition(".")
        slots.setdefault(int(index), {})[slot] = value
    if optimizer is not None:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return Position(**notes["position"]), notes["scaler"]


def read_position(path: Path) -> Position:
    """Return where the training in a checkpoint stands."""
    return Position(**_read(path)[1]["position"])


def _checksum(tensors: Mapping[str, Tensor], notes: str) -> str:
    """Return what tells a changed byte, which safetensors itself does not notice."""
    checksum = zlib.crc32(notes.encode())
    for key in sorted(tensors):
        value = tensors[key].cpu()
        header = f"{key} {value.dtype} {tuple(value.shape)}"
        checksum = zlib.crc32(header.encode(), checksum)
        content = value.reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(content.numpy().data, checksum)
    return f"{checksum:08x}"


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value
        for key, value in tensors.items()
        if key.startswith(prefix)
    }


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    notes = metadata.get("tailshift", "")
    if metadata.get("checksum") != _checksum(tensors, notes):
        raise _damaged(path, "its checksum does not fit its content")
    return tensors, json.loads(notes)


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} is not a whole checkpoint ({reason}). "
        "Start the run again with --force."
    )
