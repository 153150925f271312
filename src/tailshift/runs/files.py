"""Files of a run directory: names, contents, reading and checks."""

import dataclasses
import json
import reprlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from torch import nn

from tailshift.config import ConfigError, RunConfig
from tailshift.data.images import MOST_SIZE, Preparation
from tailshift.data.list_files import shown
from tailshift.files import read_text
from tailshift.processes import whole_state
from tailshift.registry import is_registered
from tailshift.storage import read_json, read_tensors, write_tensors

CONFIG, FACTS, WEIGHTS = "config.json", "run.json", "weights.safetensors"
BEST, FAILURE, LOG = "best.safetensors", "failure.json", "train.log"
CHECKPOINT, METRICS_LOG, ENVIRONMENT = (
    "checkpoint.safetensors",
    "metrics.jsonl",
    "environment.json",
)
PREDICTIONS, TENSORBOARD = "predictions", "tensorboard"
TRACKING = "tracking.json"
WEIGHTS_MARK = "tailshift_weights"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path.parent} is not a run directory: it has no {path.name}. "
            "`tailshift train` makes one."
        ) from None


Count = Annotated[int, Field(ge=0, lt=2**63)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


def _preparation(value: Any) -> Any:
    """Return the preparation of run.json as an object."""
    try:
        return Preparation(**value) if isinstance(value, dict) else value
    except (TypeError, ValueError) as error:
        reason = str(error).removesuffix(".")
        raise ValueError(f"must be a preparation ({reason})") from None


class RunFacts(BaseModel):
    """Contents of run.json: facts about the data, and the state of the run."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    state: str
    """``"running"``, ``"interrupted"`` or ``"finished"``."""
    epochs_done: Count
    stage: Count = 0
    class_names: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    source_counts: Annotated[tuple[Count, ...], Field(strict=False)]
    full_counts: Annotated[tuple[Count, ...] | None, Field(strict=False)] = None
    """Training images of each class before images were held out, if any were."""
    in_channels: Annotated[int, Field(ge=1, le=2**20)]
    image_size: Annotated[int, Field(ge=1, le=MOST_SIZE)]
    mean: Annotated[tuple[_Finite, ...], Field(strict=False)]
    """Mean of the pixels: one per channel, or one for all."""
    std: Annotated[tuple[Annotated[_Finite, Field(gt=0)], ...], Field(strict=False)]
    preparation: Annotated[Preparation | None, BeforeValidator(_preparation)] = None
    """Preparation of the images for a frozen backbone, for a run on features."""
    data_fingerprint: str
    skipped_images: Count | None = None
    kept_epoch: Count | None = None
    """The epoch whose weights were kept, with ``train.keep = "best"``."""
    log_posteriors: bool = False
    """Whether the saved logits are log posteriors; runs of version 0.1 saved the
    network's output."""

    def misfits(self, num_stages: int) -> dict[str, str]:
        """Return the rules that inconsistent values break, by their keys."""
        n, c = self.source_counts, len(self.class_names)
        full = n if self.full_counts is None else self.full_counts
        each = f"one number per channel ({self.in_channels}), or one for all"
        fits = {
            "class_names": ("names that differ", len(set(self.class_names)) == c),
            "source_counts": (f"{c} counts, not all 0", len(n) == c and any(n)),
            "full_counts": (f"{c} counts", len(full) == c or full is n),
            "mean": (each, len(self.mean) in (1, self.in_channels)),
            "std": (each, len(self.std) in (1, self.in_channels)),
            "stage": (f"less than {num_stages}", self.stage < num_stages),
        }
        return {key: rule for key, (rule, is_fit) in fits.items() if not is_fit}


class _EpochFacts(BaseModel):
    """Contents of a line of metrics.jsonl, as far as they are read again."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    epoch: Annotated[Count, Field(ge=1)]
    seconds: Annotated[_Finite, Field(ge=0, le=1e12)] | None = None
    processor_seconds: Annotated[_Finite, Field(ge=0, le=1e12)] | None = None
    val_balanced_accuracy: _Finite | None = None
    """Score that selects the best epoch; None without validation images."""
    skipped_images: Count | None = None


class _EnvironmentFacts(BaseModel):
    """Contents of environment.json: software and hardware of the run."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    started: str | None = None
    command: str | None = None
    commit: str | None = None
    python: str | None = None
    packages: dict[str, str] = {}
    """Versions by name."""
    hardware: str | None = None


def _with_augment(settings: dict[str, Any]) -> dict[str, Any]:
    """Add the augmentation to settings from before it could be chosen."""
    data = settings.get("data")
    if isinstance(data, dict) and "flip" in data:  # a custom dataset
        return settings | {"data": {"augment": "standard"} | data}
    return settings


def read_config(directory: Path) -> RunConfig:
    """Return the configuration of a run directory."""
    try:
        return RunConfig.from_mapping(_with_augment(_read_json(directory / CONFIG)))
    except ConfigError as error:
        _check_plugins(directory)
        faults = " ".join(error.faults)
        raise ValueError(f"{directory / CONFIG} is damaged: {faults}") from None
    except RecursionError:
        raise ValueError(
            f"{directory / CONFIG} is damaged: it is nested too deeply."
        ) from None


def read_facts(path: Path, config: RunConfig) -> RunFacts:
    """Read run.json; raise an error if it does not fit the configuration."""
    content = _read_json(path)
    needed = {
        key for key, field in RunFacts.model_fields.items() if field.is_required()
    }
    missing = needed - content.keys()
    if missing:
        raise _damaged(path, f"it lacks {', '.join(sorted(missing))}")
    try:
        facts = RunFacts.model_validate(content)
    except ValidationError as error:
        raise _damaged(path, _faults(error)) from None
    wrong = facts.misfits(num_stages=len(config.method.stages()))
    if wrong:
        parts = [
            f"`{key}` must be {rule}, but is {reprlib.repr(content[key])}"
            for key, rule in wrong.items()
        ]
        raise _damaged(path, " and ".join(parts))
    return facts


def read_environment(directory: Path) -> dict[str, Any]:
    """Return versions, commit, hardware and command of a run."""
    path = directory / ENVIRONMENT
    content = _read_json(path)
    _check(content, _EnvironmentFacts, path)
    return content


def _check(
    content: dict[str, Any], model: type[BaseModel], path: Path, where: str = ""
) -> None:
    """Raise an error if the contents of a file do not fit their model."""
    try:
        model.model_validate(content)
    except ValidationError as error:
        raise _damaged(path, where + _faults(error)) from None


_LIMITS = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} entries",
}


def _faults(error: ValidationError) -> str:
    """Return the first error of each key: the rule and the value."""
    faults: dict[str, str] = {}
    for fault in error.errors():
        key, about = shown(".".join(map(str, fault["loc"]))), fault.get("ctx", {})
        rule = fault["msg"].replace("Input should be", "must be", 1)
        if fault["type"] in _LIMITS:
            rule = _LIMITS[fault["type"]].format(**about)
        elif fault["type"] == "value_error":
            rule = str(about["error"])
        text = f"`{key}` {rule}, but is {reprlib.repr(fault['input'])}"
        if fault["type"] == "missing":
            text = f"`{key}` is missing"
        faults.setdefault(str(fault["loc"][0]), text)
    return " and ".join(faults.values())


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged: {reason}. Train the run again with --force.")


class MissingPluginError(ValueError):
    """A run was trained with a plugin that is not loaded."""


def _check_plugins(directory: Path) -> None:
    """Raise an error that names the plugin a run needs and how to load it."""
    for plugin in _recorded_plugins(directory):
        load = f"load it with {' '.join(plugin.options)} or ts.load_plugin"
        if lacking := plugin.lacking():
            raise MissingPluginError(
                f"{directory} was trained with {lacking} of the plugin {plugin.name}; "
                f"{load if plugin.options else 'install it'}."
            )


def read_metrics_lines(directory: Path) -> list[str]:
    """Return the complete lines of the metrics file; skip a truncated one."""
    path = directory / METRICS_LOG
    if not path.is_file():
        return []
    return [f"{line}\n" for line in read_text(path).split("\n")[:-1]]


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return one record per epoch."""
    return parse_metrics(read_metrics_lines(directory), directory / METRICS_LOG)


def parse_metrics(lines: Sequence[str], path: Path) -> list[dict[str, Any]]:
    """Return one record per line; errors name the path."""
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"{path} is damaged: line {number} is not a JSON object.")
        _check(record, _EpochFacts, path, f"in line {number} ")
        records.append(record)
    return records


def predictions_path(directory: Path, split: str) -> Path:
    """Return the path of a split's logits."""
    return directory / PREDICTIONS / f"{split}.safetensors"


def save_weights(path: Path, model: nn.Module, *, is_writer: bool = True) -> None:
    """Write a module's weights as safetensors with a checksum.

    Args:
        path: File to write; an existing one is replaced.
        model: Module; if its weights are sharded, all processes must call this.
        is_writer: Whether this process writes the file.
    """
    weights = whole_state(model)
    if is_writer:
        write_tensors(path, weights, {WEIGHTS_MARK: "1"})


def load_weights(path: Path, model: nn.Module) -> None:
    """Load saved weights into a module; check their checksum if they have one."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} has no weights yet. Finish it with "
            f"`{resume_command(path.parent)}`."
        )
    file = read_tensors(path)
    if WEIGHTS_MARK in file.metadata and not file.is_sealed:
        raise ValueError(f"{path} is damaged: its checksum is gone.")
    try:
        model.load_state_dict(file.tensors)
    except RuntimeError:
        raise ValueError(
            f"{path} holds the weights of another network than the recipe names."
        ) from None


class UsedPlugin(BaseModel):
    """A plugin that a run was trained with, as recorded in run.json."""

    name: str
    """Name of a distribution, or path of a file as given."""
    version: str = ""
    sha256: str = ""
    brings: list[tuple[str, str]]
    """Kind and name of each registered part that the run uses."""

    @property
    def options(self) -> list[str]:
        """Options of a command that load it; empty if it is installed."""
        return ["--plugin", self.name] if self.sha256 else []

    def lacking(self) -> str:
        """Return the used parts that are not registered, or ``""``."""
        missing = [pair for pair in self.brings if not is_registered(*pair)]
        return ", ".join(f"{kind} {name!r}" for kind, name in missing)


def used_plugins(config: RunConfig) -> list[UsedPlugin]:
    """Return the plugins that a configuration uses."""
    return [
        UsedPlugin(**dataclasses.asdict(origin), brings=brings)
        for origin, brings in config.plugins.items()
    ]


def _recorded_plugins(directory: Path) -> list[UsedPlugin]:
    """Return the plugins recorded in run.json, without loading them."""
    try:
        facts = _read_json(directory / FACTS)
        return [UsedPlugin.model_validate(part) for part in facts.get("plugins", [])]
    except (OSError, ValueError, TypeError):
        return []


def resume_command(directory: Path) -> str:
    """Return the command that resumes a run."""
    plugins = [part for used in _recorded_plugins(directory) for part in used.options]
    command = ["tailshift", "train", "--resume", "--output", str(directory), *plugins]
    return shlex.join(command)
