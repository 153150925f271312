"""A run directory: the one thing that passes from training to all that follows."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor, nn

from tailshift.compensation import PostCompensated
from tailshift.config import ConfigError, RunConfig
from tailshift.estimators import adapt
from tailshift.models import Classifier
from tailshift.predictions import Predictions
from tailshift.priors import VectorLike
from tailshift.processes import whole_state
from tailshift.runs.network import build_network
from tailshift.storage import atomic_write, read_tensors, write_tensors

CONFIG, FACTS, WEIGHTS = "config.json", "run.json", "weights.safetensors"
FAILURE = "failure.json"
CHECKPOINT, METRICS, ENVIRONMENT = (
    "checkpoint.safetensors",
    "metrics.jsonl",
    "environment.json",
)
PREDICTIONS, TENSORBOARD = "predictions", "tensorboard"
WEIGHTS_MARK = "tailshift_weights"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as JSON, whole or not at all."""
    with atomic_write(path) as temporary:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path.parent} is not a run directory: it has no {path.name}. "
            "`tailshift train` makes one."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, but does not.")
    return content


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not.

    Attributes:
        directory: Where it lies.
        config: What was asked for.
        facts: What the data turned out to be, and whether the run is finished.
    """

    directory: Path
    config: RunConfig
    facts: dict[str, Any]

    @property
    def is_finished(self) -> bool:
        """Whether training came to its last epoch."""
        return bool(self.facts["state"] == "finished")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names, in the order of the logits."""
        return tuple(self.facts["class_names"])

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, commit, hardware and command."""
        return _read_json(self.directory / ENVIRONMENT)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record an epoch, as they were written."""
        return read_metrics(self.directory)

    @cached_property
    def model(self) -> Classifier:
        """The trained classifier, in evaluation mode on the CPU."""
        facts = self.facts
        model = build_network(
            self.config,
            num_classes=len(facts["class_names"]),
            in_channels=facts["in_channels"],
            image_size=facts["image_size"],
            stage=facts.get("stage", 0),
            is_filled=True,
        )
        load_weights(self.directory / WEIGHTS, model)
        return model.eval()

    def predictions(self, split: str = "test") -> Predictions:
        """Return the saved logits of a split.

        Args:
            split: ``"val"`` or ``"test"``.
        """
        path = predictions_path(self.directory, split)
        if not path.is_file():
            saved = sorted(file.stem for file in path.parent.glob("*.safetensors"))
            raise FileNotFoundError(
                f"{self.directory} has no logits of split {split!r}, only of: "
                f"{', '.join(saved) or 'none'}. Finish it with "
                f"`{resume_command(self.directory)}`."
            )
        return Predictions.load(path)

    def retarget(self, prior: VectorLike) -> PostCompensated:
        """Return the model, answering for another prior.

        Its ``adapt`` estimates with the validation logits held out, where the run has
        any, and keeps the source prior where the data do not support an estimate.

        Args:
            prior: :math:`p_t`, shape (C,).
        """
        counts = torch.tensor(self.facts["source_counts"])
        has_val = predictions_path(self.directory, "val").is_file()
        module = PostCompensated(
            self.model,
            trained_prior=self.config.trained_prior(counts),
            target_prior=prior,
            estimator=ValidationEstimator(self) if has_val else None,
        )
        return module.eval()


@dataclass(frozen=True)
class ValidationEstimator:
    """Estimates with a run's validation logits held out, read when they are needed."""

    run: Run

    def estimate(self, logits: Tensor) -> Tensor:
        """Return the prior of unlabelled logits; the source prior in case of doubt."""
        return adapt(self.run.predictions("val"), logits).target_prior


def resume_command(directory: Path) -> str:
    """Return the command that goes on with a run."""
    return f"tailshift train --resume --output {shlex.quote(str(directory))}"


def read_metrics_lines(directory: Path) -> list[str]:
    """Return the whole lines of the metrics file; one that was cut off is left out."""
    path = directory / METRICS
    if not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is damaged: it is not text in UTF-8.") from None
    return [f"{line}\n" for line in text.split("\n")[:-1]]


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return one record an epoch, as they were written."""
    records = []
    for number, line in enumerate(read_metrics_lines(directory), start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise ValueError(
                f"{directory / METRICS} is damaged: line {number} is not a JSON object."
            )
        records.append(record)
    return records


def predictions_path(directory: Path, split: str) -> Path:
    """Return where a run keeps the logits of a split."""
    return directory / PREDICTIONS / f"{split}.safetensors"


def save_weights(path: Path, model: nn.Module, *, is_writer: bool = True) -> None:
    """Write a module's weights as safetensors, sealed with a checksum.

    Args:
        path: It is replaced.
        model: Where its weights are sharded, all processes must call this.
        is_writer: Whether this process is the one that writes.
    """
    weights = whole_state(model)
    if is_writer:
        write_tensors(path, weights, {WEIGHTS_MARK: "1"})


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill a module with saved weights, if their checksum fits, where there is one."""
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


def load(run_dir: str | Path) -> Run:
    """Return the run in a directory.

    Raises:
        FileNotFoundError: If it is not a run directory.
        ValueError: If one of its files is damaged.
    """
    directory = Path(run_dir)
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no run directory {directory}.")
    config = read_config(directory)
    if not (directory / FACTS).is_file():
        raise FileNotFoundError(
            f"{directory} was cut off before training began: it has no {FACTS}. "
            f"Go on with `{resume_command(directory)}`."
        )
    facts = _read_json(directory / FACTS)
    needed = {"state", "class_names", "source_counts", "in_channels", "image_size"}
    missing = needed - facts.keys()
    if missing:
        raise ValueError(
            f"{directory / FACTS} is damaged: it lacks {', '.join(sorted(missing))}. "
            "Train the run again with --force."
        )
    if wrong := _wrong_facts(facts, config):
        raise ValueError(
            f"{directory / FACTS} is damaged: {', '.join(wrong)} cannot be what it "
            "was. Train the run again with --force."
        )
    return Run(directory, config, facts)


class _Facts(BaseModel):
    """What is needed of run.json, and within which bounds."""

    state: str
    class_names: Annotated[list[str], Field(min_length=1)]
    source_counts: list[Annotated[int, Field(ge=0, lt=2**63)]]
    in_channels: Annotated[int, Field(ge=1, le=1024)]
    image_size: Annotated[int, Field(ge=1, le=2**16)]
    stage: Annotated[int, Field(ge=0)] = 0


def _wrong_facts(facts: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return the keys of values that no run could have."""
    try:
        checked = _Facts.model_validate(facts, strict=True)
    except ValidationError as error:
        return sorted({str(fault["loc"][0]) for fault in error.errors()})
    if len(checked.source_counts) != len(checked.class_names):
        return ["source_counts"]
    return [] if checked.stage < len(config.method.stages()) else ["stage"]


def read_config(directory: Path) -> RunConfig:
    """Return the configuration that a run directory was made with."""
    try:
        return RunConfig.from_mapping(_read_json(directory / CONFIG))
    except ConfigError as error:
        faults = " ".join(error.faults)
        raise ValueError(f"{directory / CONFIG} is damaged: {faults}") from None
    except RecursionError:
        raise ValueError(
            f"{directory / CONFIG} is damaged: it is nested too deeply."
        ) from None
