"""Estimate the prior of unlabelled data, next to the true prior if there are labels."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import ArrayLike, as_tensor, check_logits
from tailshift.data.own_forms import EXTENSIONS
from tailshift.estimators import Adaptation, Certificate, PriorEstimator, adapt
from tailshift.estimators import certify as certify_logits
from tailshift.estimators.known_classes import ClassList
from tailshift.predictions import Predictions, read_npz, read_safetensors
from tailshift.priors import from_labels, write_prior
from tailshift.runs.run import Run, as_run, load_run
from tailshift.serving.images import PathLike, Track, image_logits, image_paths
from tailshift.targets import Target

AS_TRAINED, ESTIMATED, TRUE = "as trained", "estimated", "true"
"""Columns of a report."""


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Logits of target data; labels only if they are known, to judge by.

    Attributes:
        logits: Shape (N, C), of the same model as the held-out ones.
        labels: Shape (N,), or None.
        logit_prior: The prior that the logits carry, if their file says so.
        broken: Why images could not be read, by their paths, if it was images.
    """

    logits: Tensor
    labels: Tensor | None = None
    logit_prior: Tensor | None = None
    broken: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ShiftReport:
    """An adaptation, and what each choice of prior is worth, if there are labels.

    Attributes:
        adaptation: What was found.
        source_prior: Prior of the training data, shape (C,).
        true_prior: The share of each class among the labels, if there are any.
        accuracies: In percent, by name; empty without labels.
        class_names: One per class.
        num_held_out: How many labelled samples were calibrated on.
        num_unlabelled: How many samples were estimated from.
        broken: Why images could not be read, by their paths.
    """

    adaptation: Adaptation
    source_prior: Tensor
    true_prior: Tensor | None
    accuracies: dict[str, float]
    class_names: Sequence[str]
    num_held_out: int
    num_unlabelled: int
    broken: dict[str, str]

    def save_prior(self, path: PathLike) -> None:
        """Write the prior to answer for as a file that can be given as a target."""
        write_prior(path, self.adaptation.target_prior, self.class_names)


def estimate(
    source: Run | Predictions | PathLike,
    unlabelled: Unlabelled | ArrayLike | PathLike,
    *,
    held_out: Predictions | PathLike | None = None,
    classes: ClassList | None = None,
    estimator: PriorEstimator | str = "map_em",
    track: Track = iter,
    announce: Callable[[str], None] = lambda phase: None,
) -> ShiftReport:
    """Estimate the prior of unlabelled data, as ``tailshift estimate`` does.

    Args:
        source: A run or its directory; or labelled held-out logits, or their file.
        unlabelled: Logits of the same model, shape (N, C), their file (``.npz``,
            ``.npy``, safetensors), or, for a run, an image or a folder of images.
        held_out: Labelled logits to calibrate on, or their file; by default the run's
            validation logits, or those of ``source``.
        classes: The classes that can occur; see :func:`~tailshift.estimators.adapt`.
        estimator: An estimator or its name; see there.
        track: See :func:`~tailshift.serving.images.image_logits`.
        announce: See :func:`~tailshift.estimators.adapt`.
    """
    known, given = read_samples(source, unlabelled, held_out, track)
    return estimate_shift(
        known, given, classes=classes, estimator=estimator, announce=announce
    )


def certify(
    source: Run | Predictions | PathLike,
    unlabelled: Unlabelled | ArrayLike | PathLike,
    target_prior: Target | None = None,
    *,
    held_out: Predictions | PathLike | None = None,
    track: Track = iter,
    **options: Any,
) -> Certificate:
    """Estimate accuracy on unlabelled data, as ``tailshift certify`` does.

    Args:
        source: A run or its directory; or labelled held-out logits, or their file.
        unlabelled: Logits of the same model, shape (N, C), their file (``.npz``,
            ``.npy``, safetensors), or, for a run, an image or a folder of images.
        target_prior: Prior of the target if it is known; see
            :func:`~tailshift.estimators.certify`.
        held_out: Labelled logits to calibrate on, or their file; by default the run's
            validation logits, or those of ``source``.
        track: See :func:`~tailshift.serving.images.image_logits`.
        options: Passed to :func:`~tailshift.estimators.certify`: ``classes``,
            ``alpha``, ``num_replicates`` and others.

    Example:
        >>> logits = torch.randn(1000, 3).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> held_out = Predictions(logits[:500], labels[:500])
        >>> certify(held_out, logits[500:]).num_target
        500
    """
    known, given = read_samples(source, unlabelled, held_out, track)
    return certify_logits(known, given.logits, target_prior, **options)


def read_samples(
    source: Run | Predictions | PathLike,
    unlabelled: Unlabelled | ArrayLike | PathLike,
    held_out: Predictions | PathLike | None,
    track: Track = iter,
) -> tuple[Predictions, Unlabelled]:
    """Return labelled held-out logits and unlabelled logits of the same model."""
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        source = load_run(source)
    known = held_out_logits(source if held_out is None else held_out)
    given = _as_unlabelled(source, unlabelled, track)
    _check_same_model(known, given)
    return known, given


def _as_unlabelled(
    source: object,
    unlabelled: Unlabelled | ArrayLike | PathLike,
    track: Track,
) -> Unlabelled:
    """Return logits as they are given, from a file, or of images by the run's model."""
    if isinstance(unlabelled, Unlabelled):
        return unlabelled
    if not isinstance(unlabelled, str | os.PathLike):
        return Unlabelled(check_logits(as_tensor(unlabelled, "unlabelled").cpu()))
    path = Path(unlabelled)
    if not (path.is_dir() or path.suffix.lower() in EXTENSIONS):
        return read_unlabelled(path)
    if not isinstance(source, Run):
        raise ValueError(
            f"`unlabelled` {path} are images, which only the model of a run can "
            "judge. Name a run directory, or give a file of logits."
        )
    found = image_logits(source, image_paths(path), track=track)
    return Unlabelled(found.logits, broken=found.broken)


def held_out_logits(source: Run | Predictions | PathLike) -> Predictions:
    """Return the validation logits of a run, or labelled logits or those of a file."""
    if isinstance(source, Predictions):
        return source
    if not isinstance(source, Run) and not Path(source).is_dir():
        return Predictions.load(source)
    run = as_run(source)
    if not run.has_val_logits:
        raise FileNotFoundError(
            f"{run.directory} has no validation logits to calibrate on. Give labelled "
            "logits (`held_out`, --held-out)."
        )
    return run.predictions("val")


def read_unlabelled(path: Path) -> Unlabelled:
    """Return the logits in a file: as :meth:`Predictions.load`, but without labels.

    An ``.npy`` file is an array of logits, shape (N, C).
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} of unlabelled logits.")
    if path.suffix.lower() == ".npy":
        return Unlabelled(check_logits(_read_npy(path)).float())
    is_npz = path.suffix.lower() == ".npz"
    fields = read_npz(path) if is_npz else read_safetensors(path)
    if "labels" in fields:
        given = Predictions.load(path)
        return Unlabelled(given.logits, given.labels, given.logit_prior)
    scores = fields.get("logits", fields.get("probs"))
    if scores is None:
        raise ValueError(f"{path} cannot be used: it does not hold `logits`.")
    fields["labels"] = np.zeros(len(scores), np.int64)  # only to be checked alike
    make = Predictions.from_probs if "probs" in fields else Predictions
    try:
        given = make(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error
    return Unlabelled(given.logits, None, given.logit_prior)


def _read_npy(path: Path) -> Tensor:
    try:
        # Mapped, so that a header which declares more than there is takes no memory.
        return as_tensor(np.load(path, mmap_mode="r", allow_pickle=False), "logits")
    except (ValueError, TypeError, EOFError):
        raise ValueError(
            f"{path} is no .npy array of numbers or is cut short."
        ) from None


def estimate_shift(
    held_out: Predictions,
    unlabelled: Unlabelled,
    *,
    classes: ClassList | None = None,
    estimator: PriorEstimator | str = "map_em",
    announce: Callable[[str], None] = lambda phase: None,
) -> ShiftReport:
    """Estimate the target prior of unlabelled logits, and score it if there are labels.

    Args:
        held_out: Labelled source data of the same model.
        unlabelled: Target data; its labels are used for the accuracies only.
        classes: See :func:`~tailshift.estimators.adapt`.
        estimator: See there.
        announce: See :func:`~tailshift.estimators.adapt`.
    """
    _check_same_model(held_out, unlabelled)
    found = adapt(
        held_out,
        unlabelled.logits,
        classes=classes,
        estimator=estimator,
        announce=announce,
    )
    y = unlabelled.labels
    true_prior = None if y is None else from_labels(y, held_out.num_classes)
    return ShiftReport(
        adaptation=found,
        source_prior=found.source_prior,
        true_prior=true_prior,
        accuracies=_accuracies(found, unlabelled, true_prior),
        class_names=held_out.class_names,
        num_held_out=len(held_out.labels),
        num_unlabelled=len(unlabelled.logits),
        broken=unlabelled.broken,
    )


def _accuracies(
    found: Adaptation, unlabelled: Unlabelled, true_prior: Tensor | None
) -> dict[str, float]:
    """Return the accuracy in percent under each prior, if there are labels."""
    if unlabelled.labels is None or true_prior is None:
        return {}
    rules = {
        AS_TRAINED: found.retarget_as_trained,
        ESTIMATED: found.retarget_to_estimate,
        TRUE: found.retarget_to_estimate.to(true_prior),
    }
    hits = {
        name: rule(unlabelled.logits).argmax(dim=1) == unlabelled.labels
        for name, rule in rules.items()
    }
    return {name: 100 * hit.double().mean().item() for name, hit in hits.items()}


def _check_same_model(held_out: Predictions, unlabelled: Unlabelled) -> None:
    num_classes = unlabelled.logits.shape[1]
    if num_classes != held_out.num_classes:
        raise ValueError(
            f"the unlabelled logits have {num_classes} classes, but the held-out ones "
            f"have {held_out.num_classes}. Both must come from one model."
        )
    here, there = held_out.logit_prior, unlabelled.logit_prior
    if here is not None and there is not None and not torch.allclose(here, there):
        raise ValueError(
            "the unlabelled logits carry another prior than the held-out ones. Both "
            "must come from one model."
        )
