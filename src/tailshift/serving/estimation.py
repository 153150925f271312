"""What unlabelled data say about a shift, beside no adaptation and the truth."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import check_logits
from tailshift.compensation import post_compensate
from tailshift.estimators import Adaptation, adapt
from tailshift.predictions import Predictions, read_npz, read_safetensors
from tailshift.priors import as_prior, from_counts, from_labels


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Logits of target data; labels only where somebody has them, to judge by.

    Attributes:
        logits: Shape (N, C), of the same model as the held-out ones.
        labels: Shape (N,), or None.
        trained_prior: The prior that the logits carry, where their file says so.
    """

    logits: Tensor
    labels: Tensor | None = None
    trained_prior: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ShiftReport:
    """An adaptation, and what each choice of prior is worth where labels tell.

    Attributes:
        adaptation: What was found.
        source_prior: :math:`p_s`, which no adaptation answers for, shape (C,).
        true_prior: The share of each class among the labels, where there are any.
        accuracies: In percent, by name; empty without labels.
    """

    adaptation: Adaptation
    source_prior: Tensor
    true_prior: Tensor | None
    accuracies: dict[str, float]


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
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (ValueError, TypeError, EOFError):
        raise ValueError(
            f"{path} is no .npy array of numbers or is cut short."
        ) from None


def estimate_shift(
    held_out: Predictions, unlabelled: Unlabelled, *, with_interval: bool = False
) -> ShiftReport:
    """Estimate the target prior of unlabelled logits, and judge it where labels tell.

    Args:
        held_out: Labelled source data of the same model.
        unlabelled: Target data; its labels are used for the judgement alone.
        with_interval: Also compute the bootstrap interval.
    """
    _check_same_model(held_out, unlabelled)
    found = adapt(held_out, unlabelled.logits, with_interval=with_interval)
    p_s, p_trained = source_prior(held_out), trained_prior(held_out)
    y = unlabelled.labels
    if y is None:
        return ShiftReport(found, p_s, None, {})
    truth = from_labels(y, held_out.num_classes)
    accuracies = {}
    for name, prior in (
        ("no adaptation", p_s),
        ("estimated", found.estimated_prior),
        ("oracle", truth),
    ):
        answer = post_compensate(
            unlabelled.logits.double(), trained_prior=p_trained, target_prior=prior
        )
        accuracies[name] = 100 * (answer.argmax(dim=1) == y).double().mean().item()
    return ShiftReport(found, p_s, truth, accuracies)


def source_prior(held_out: Predictions) -> Tensor:
    """Return the training prior, or where it is not known that of the labels."""
    if held_out.source_counts is not None:
        return from_counts(held_out.source_counts)
    counts = torch.bincount(held_out.labels, minlength=held_out.num_classes)
    return from_counts(counts + 0.5)


def trained_prior(held_out: Predictions) -> Tensor:
    """Return the prior that the logits carry; the source prior where none is named."""
    known = held_out.trained_prior
    return source_prior(held_out) if known is None else as_prior(known)


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
