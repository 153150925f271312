"""A run directory: the one thing that passes from training to all that follows."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from tailshift.compensation import PostCompensated
from tailshift.config import ConfigError, RunConfig
from tailshift.files import atomic_write
from tailshift.models import Classifier
from tailshift.predictions import Predictions
from tailshift.priors import VectorLike
from tailshift.training.network import build_network

CONFIG, FACTS, WEIGHTS = "config.json", "run.json", "weights.safetensors"
CHECKPOINT, METRICS, ENVIRONMENT = (
    "checkpoint.safetensors",
    "metrics.jsonl",
    "environment.json",
)
PREDICTIONS, TENSORBOARD = "predictions", "tensorboard"


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
    except ValueError as error:
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
        return [json.loads(line) for line in read_metrics_lines(self.directory)]

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

        Args:
            prior: :math:`p_t`, shape (C,).
        """
        counts = torch.tensor(self.facts["source_counts"])
        trained = self.config.trained_prior(counts)
        module = PostCompensated(self.model, trained_prior=trained, target_prior=prior)
        return module.eval()


def resume_command(directory: Path) -> str:
    """Return the command that goes on with a run."""
    return f"tailshift train --resume --output {shlex.quote(str(directory))}"


def read_metrics_lines(directory: Path) -> list[str]:
    """Return the whole lines of the metrics file; one that was cut off is left out."""
    path = directory / METRICS
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def predictions_path(directory: Path, split: str) -> Path:
    """Return where a run keeps the logits of a split."""
    return directory / PREDICTIONS / f"{split}.safetensors"


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a module's weights as safetensors."""
    state = model.state_dict()  # cloned: weights that a network shares are saved twice
    weights = {key: value.contiguous().clone() for key, value in state.items()}
    with atomic_write(path) as temporary:
        save_file(weights, temporary)


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill a module with saved weights."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} has no weights yet. Finish it with "
            f"`{resume_command(path.parent)}`."
        )
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}).") from None
    try:
        model.load_state_dict(weights)
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
    return Run(directory, config, facts)


def read_config(directory: Path) -> RunConfig:
    """Return the configuration that a run directory was made with."""
    try:
        return RunConfig.from_mapping(_read_json(directory / CONFIG))
    except ConfigError as error:
        faults = " ".join(error.faults)
        raise ValueError(f"{directory / CONFIG} is damaged: {faults}") from None
