"""What unlabelled data say about a shift, beside no adaptation and the truth."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import ArrayLike, as_tensor, check_logits
from tailshift.compensation import post_compensate
from tailshift.data.own_forms import EXTENSIONS
from tailshift.estimators import Adaptation, adapt
from tailshift.estimators.adaptation import default_estimator
from tailshift.predictions import Predictions, read_npz, read_safetensors
from tailshift.priors import from_labels, write_prior
from tailshift.runs.run import Run, load
from tailshift.serving import images


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Logits of target data; labels only if they are known, to judge by.

    Attributes:
        logits: Shape (N, C), of the same model as the held-out ones.
        labels: Shape (N,), or None.
        trained_prior: The prior that the logits carry, if their file says so.
        broken: Why images could not be read, by their paths, if it was images.
    """

    logits: Tensor
    labels: Tensor | None = None
    trained_prior: Tensor | None = None
    broken: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ShiftReport:
    """An adaptation, and what each choice of prior is worth, if there are labels.

    Attributes:
        adaptation: What was found.
        source_prior: :math:`p_s`, which no adaptation answers for, shape (C,).
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

    def save_prior(self, path: images.PathLike) -> None:
        """Write the prior to answer for as a file that can be given as a target."""
        write_prior(path, self.adaptation.target_prior, self.class_names)


def estimate(
    source: Run | Predictions | images.PathLike,
    unlabelled: Unlabelled | ArrayLike | images.PathLike,
    *,
    held_out: Predictions | images.PathLike | None = None,
    interval: bool = False,
    track: images.Track = iter,
    announce: Callable[[str], None] = lambda phase: None,
) -> ShiftReport:
    """Estimate the class mix of unlabelled data, as ``tailshift estimate`` does.

    Args:
        source: A run or its directory; or labelled held-out logits, or their file.
        unlabelled: Logits of the same model, shape (N, C), their file (``.npz``,
            ``.npy``, safetensors), or, for a run, an image or a folder of images.
        held_out: Labelled logits to calibrate on, or their file; by default the run's
            validation logits, or those of ``source``.
        interval: Whether to compute the 95 % bootstrap interval.
        track: See :func:`~tailshift.serving.images.image_logits`.
        announce: See :func:`~tailshift.estimators.adapt`.
    """
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        source = load(source)
    known = images.held_out_logits(source if held_out is None else held_out)
    given = _as_unlabelled(source, unlabelled, track)
    return estimate_shift(known, given, with_interval=interval, announce=announce)


def _as_unlabelled(
    source: object,
    unlabelled: Unlabelled | ArrayLike | images.PathLike,
    track: images.Track,
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
    found = images.image_logits(source, images.image_paths(path), track=track)
    return Unlabelled(found.logits, broken=found.broken)


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
        return Unlabelled(given.logits, given.labels, given.trained_prior)
    scores = fields.get("logits", fields.get("probs"))
    if scores is None:
        raise ValueError(f"{path} cannot be used: it does not hold `logits`.")
    fields["labels"] = np.zeros(len(scores), np.int64)  # only to be checked alike
    make = Predictions.from_probs if "probs" in fields else Predictions
    try:
        given = make(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error
    return Unlabelled(given.logits, None, given.trained_prior)


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
    with_interval: bool = False,
    announce: Callable[[str], None] = lambda phase: None,
) -> ShiftReport:
    """Estimate the target prior of unlabelled logits, and judge it if there are labels.

    Args:
        held_out: Labelled source data of the same model.
        unlabelled: Target data; its labels are used for the judgement alone.
        with_interval: Also compute the bootstrap interval.
        announce: See :func:`~tailshift.estimators.adapt`.
    """
    _check_same_model(held_out, unlabelled)
    estimator = default_estimator(held_out)
    found = adapt(
        held_out,
        unlabelled.logits,
        estimator=estimator,
        with_interval=with_interval,
        announce=announce,
    )
    p_s, y = estimator.source_prior_, unlabelled.labels
    priors = {"no adaptation": p_s, "estimated": found.estimated_prior}
    if y is not None:
        priors["oracle"] = from_labels(y, held_out.num_classes)
    return ShiftReport(
        adaptation=found,
        source_prior=p_s,
        true_prior=priors.get("oracle"),
        accuracies=_accuracies(unlabelled, estimator.trained_prior_, priors),
        class_names=held_out.class_names,
        num_held_out=len(held_out.labels),
        num_unlabelled=len(unlabelled.logits),
        broken=unlabelled.broken,
    )


def _accuracies(
    unlabelled: Unlabelled, trained_prior: Tensor, priors: dict[str, Tensor]
) -> dict[str, float]:
    """Return the accuracy in percent under each prior, if there are labels."""
    if unlabelled.labels is None:
        return {}
    accuracies = {}
    for name, prior in priors.items():
        answer = post_compensate(
            unlabelled.logits.double(), trained_prior=trained_prior, target_prior=prior
        )
        correct = answer.argmax(dim=1) == unlabelled.labels
        accuracies[name] = 100 * correct.double().mean().item()
    return accuracies


def _check_same_model(held_out: Predictions, unlabelled: Unlabelled) -> None:
    num_classes = unlabelled.logits.shape[1]
    if num_classes != held_out.num_classes:
        raise ValueError(
            f"the unlabelled logits have {num_classes} classes, but the held-out ones "
            f"have {held_out.num_classes}. Both must come from one model."
        )
    here, there = held_out.trained_prior, unlabelled.trained_prior
    if here is not None and there is not None and not torch.allclose(here, there):
        raise ValueError(
            "the unlabelled logits carry another prior than the held-out ones. Both "
            "must come from one model."
        )
