"""Checkpoints: one safetensors file with the complete state of training."""

import json
import shutil
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.optim import Optimizer

from tailshift import files, storage
from tailshift.data import LongTailedData
from tailshift.processes import as_held, load_whole_state, whole, whole_state


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was skipped."""


@dataclass
class Position:
    """Position in training, and the sums of the current epoch."""

    stage: int = 0
    """Stage of the method, counted from 0."""
    epoch: int = 0
    """Finished epochs of the stage."""
    batch: int = 0
    """Finished batches of the current epoch."""
    sums: dict[str, float] = field(default_factory=dict)
    """Running sums of the current epoch's metrics."""

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
    data: str = "",
    metrics: Sequence[str] = (),
    is_writer: bool = True,
) -> None:
    """Write modules, optimiser, random state and position; keep the previous file.

    With sharded weights, all processes must call it.

    Args:
        path: Checkpoint file; its previous version moves to `path_before`.
        position: Position in training.
        modules: Modules with a state, by name: the model, the loss.
        optimizer: Optimiser whose tensors are saved; its hyperparameters come from the
            recipe. None if nothing is optimised.
        scaler: State of the loss scaler in half precision, numbers only.
        data: Fingerprint of the training data from `data_mark`.
        metrics: Lines of `metrics.jsonl` so far, as that file has no checksum.
        is_writer: Whether this process writes the file.

    Raises:
        FloatingPointError: If a weight is not finite; the last good checkpoint remains.
    """
    tensors = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    for name, module in modules.items():
        for key, value in whole_state(module).items():
            tensors[f"{name}.{key}"] = value
    slots_of = {} if optimizer is None else optimizer.state_dict()["state"]
    for index, slots in slots_of.items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{slot}"] = whole(value)
    if not is_writer:
        return
    _check_finite(modules, tensors, position)
    if not path.parent.is_dir():  # a new folder would lack the rest of the run
        raise FileNotFoundError(f"There is no folder {path.parent} to write {path} in.")
    notes = {
        "position": asdict(position),
        "scaler": dict(scaler or {}),
        "data": data,
        "metrics": list(metrics),
    }
    metadata = {storage.NOTES: json.dumps(notes)}
    storage.write_tensors(path, tensors, metadata, keep=path_before(path))


class _Restored(NamedTuple):
    """Contents of a checkpoint that are not restored in place."""

    position: Position
    scaler: dict[str, Any]
    """State of the loss scaler; empty without one."""
    metrics: list[str] | None
    """Lines of `metrics.jsonl`; None in a checkpoint of an earlier version."""


def load_checkpoint(
    path: Path,
    *,
    modules: Mapping[str, nn.Module],
    optimizer: Optimizer | None,
    data: str = "",
) -> _Restored:
    """Restore a checkpoint of `save_checkpoint`.

    Args:
        path: Checkpoint file.
        modules: Modules to restore in place.
        optimizer: Optimiser to restore in place.
        data: Fingerprint of the training data, which must equal the checkpoint's.
    """
    tensors, notes = _read(path)
    position = _position(path, notes)
    saved = notes.get("data") or data
    if data and saved != data:
        raise ValueError(
            f"{path} was saved in training on other images or labels (fingerprint "
            f"{saved}, but now {data}). Resume with the data that the run was started "
            "with, or name another folder (--output)."
        )
    try:
        for name, module in modules.items():
            load_whole_state(module, _under(f"{name}.", tensors))
    except RuntimeError:
        raise _damaged(path, "it is of another network than the recipe names") from None
    try:
        _restore_optimizer(tensors, optimizer)
        torch.set_rng_state(tensors["random.cpu"].clone())
        if "random.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["random.cuda"].clone())
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError):
        raise _damaged(path, "its optimiser or random state does not fit") from None
    metrics = notes.get("metrics")
    is_text = isinstance(metrics, list) and all(isinstance(x, str) for x in metrics)
    return _Restored(
        position, dict(notes.get("scaler") or {}), metrics if is_text else None
    )


def read_position(path: Path) -> Position:
    """Return the position in training of a checkpoint."""
    return _position(path, _read(path)[1])


def path_before(path: Path) -> Path:
    """Return the path of the previous checkpoint.

    Example:
        >>> path_before(Path("checkpoint.safetensors")).name
        'checkpoint.previous.safetensors'
    """
    return path.with_stem(f"{path.stem}.previous")


def repair_checkpoint(path: Path) -> None:
    """Replace a damaged or missing checkpoint by the previous one.

    The damaged file is kept under another name. Nothing changes if the checkpoint is
    intact, or if there is no previous one.
    """
    before, reason = path_before(path), ""
    if path.is_file():
        # Read twice before the file is moved: the first failure may be temporary.
        reason = _fault(path) and _fault(path)
        if not reason:
            return
    if not before.is_file() or _fault(before):
        return
    if reason:
        damaged = path.with_stem(f"{path.stem}.damaged")
        path.replace(damaged)
        warnings.warn(
            f"{path} is not a whole checkpoint ({reason}). The previous one is used; "
            f"the damaged one is kept as {damaged.name}.",
            CheckpointWarning,
            stacklevel=2,
        )
    with files.atomic_write(path) as temporary:
        shutil.copyfile(before, temporary)


def data_mark(data: LongTailedData) -> str:
    """Return a fingerprint of the training images and the order of their labels."""
    order = zlib.crc32(data.train.labels.numpy().tobytes())
    return f"{data.fingerprint}-{order:08x}"


def _check_finite(
    modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], position: Position
) -> None:
    for name, module in modules.items():
        for key, _ in module.named_parameters():
            if not tensors[f"{name}.{key}"].isfinite().all():
                raise FloatingPointError(
                    f"the weight `{name}.{key}` is no longer finite (epoch "
                    f"{position.epoch + 1}, after {position.batch} steps of it), so "
                    "no checkpoint is written. Train again with a lower optim.lr."
                )


def _restore_optimizer(
    tensors: Mapping[str, Tensor], optimizer: Optimizer | None
) -> None:
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in _under("optimizer.", tensors).items():
        index, _, slot = key.partition(".")
        slots.setdefault(int(index), {})[slot] = value.clone()
    if optimizer is None:
        return
    weights = [w for group in optimizer.param_groups for w in group["params"]]
    for number, part in slots.items():
        shapes = (weights[number].shape, ())
        if any(value.shape not in shapes for value in part.values()):
            raise ValueError("a slot has another shape than its weight")
        for slot, value in part.items():
            part[slot] = as_held(value, weights[number])
    optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value
        for key, value in tensors.items()
        if key.startswith(prefix)
    }


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        file = storage.read_tensors(path)
        if not file.is_sealed:
            raise storage.DamagedFileError(path, "it has no checksum")
    except storage.DamagedFileError as error:
        raise _damaged(path, error.reason) from None
    try:
        notes = json.loads(file.metadata.get(storage.NOTES, ""))
    except (ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict):
        raise _damaged(path, "its notes are not a JSON object")
    return file.tensors, notes


def _position(path: Path, notes: Mapping[str, Any]) -> Position:
    try:
        position = Position(**notes["position"])
        _POSITION.validate_json(json.dumps(notes["position"]), strict=True)
    except (KeyError, TypeError, ValueError):  # pydantic's error is a ValueError
        raise _damaged(path, "it has no valid position in training") from None
    if min(position.stage, position.epoch, position.batch) < 0:
        raise _damaged(path, "it has no valid position in training")
    return position


_POSITION = TypeAdapter(Position)


def _fault(path: Path) -> str:
    """Return the fault of a checkpoint; an empty text if it is intact."""
    try:
        file = storage.read_tensors(path)
    except storage.DamagedFileError as error:
        return error.reason
    return "" if file.is_sealed else "it has no checksum"


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} is not a whole checkpoint ({reason}). "
        "Put it back from a copy, or remove the run's folder to start it again."
    )
