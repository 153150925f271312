"""Restrict a model to the classes that can occur on a target."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tailshift.files import read_text
from tailshift.predictions import Predictions
from tailshift.priors import class_ids
from tailshift.registry import did_you_mean
from tailshift.text import cut

ClassList: TypeAlias = Iterable[str | int] | str | os.PathLike[str]
"""Class names or ids, or a text file with one per line."""

MAX_LABELLED_SHARE = 0.5  # of the number of labelled classes that the model expects
MIN_DEVIATIONS = 4.0  # standard deviations below that number


@dataclass(frozen=True, eq=False)
class KnownClasses:
    """The classes that can occur, out of all classes of a model.

    Attributes:
        ids: Their class ids, ascending, shape (K,).
        num_classes: C, the number of all classes.
        floor: Share of the target that all other classes keep together.
        reason: Why there is a restriction, if it was not asked for.
    """

    ids: Tensor
    num_classes: int
    floor: float = 0.0
    reason: str = ""

    @property
    def is_everything(self) -> bool:
        """Whether no class is left out."""
        return len(self.ids) == self.num_classes

    def logits(self, logits: Tensor) -> Tensor:
        """Return log probabilities (N, K) of the known classes.

        They do not sum to 1: what is missing says how foreign a sample is.
        """
        if self.is_everything:
            return logits
        return logits.float().log_softmax(dim=1)[:, self.ids]

    def predictions(self, held_out: Predictions) -> Predictions:
        """Return the samples of known classes, with logits for these only."""
        if self.is_everything:
            return held_out
        rows = torch.isin(held_out.labels, self.ids)
        if not rows.any():
            raise ValueError(
                "`held_out` must have labels of the classes in `classes`, but has none."
            )
        position = torch.full((self.num_classes,), -1)
        position[self.ids] = torch.arange(len(self.ids))
        counts, p = held_out.source_counts, held_out.logit_prior
        return Predictions(
            self.logits(held_out.logits[rows]),
            position[held_out.labels[rows]],
            source_counts=None if counts is None else counts[self.ids],
            logit_prior=None if p is None else self.prior(p),
            class_names=tuple(held_out.class_names[c] for c in self.ids.tolist()),
        )

    def prior(self, prior: Tensor) -> Tensor:
        """Return a prior (C,) given that one of the known classes occurs, (K,)."""
        known = prior[self.ids]
        return known / known.sum()

    def expand(self, values: Tensor, fill: float | Tensor) -> Tensor:
        """Return values (..., K) of the known classes for all classes, (..., C)."""
        if self.is_everything:
            return values
        shape = (*values.shape[:-1], self.num_classes)
        everything = torch.as_tensor(fill, dtype=values.dtype).expand(shape).clone()
        everything[..., self.ids] = values
        return everything

    def expand_prior(self, prior: Tensor, others: Tensor) -> Tensor:
        """Return a prior (K,) for all classes, which leaves the floor to the others.

        Args:
            prior: Prior of the known classes.
            others: Prior of all classes, by which the floor is divided, shape (C,).
        """
        if self.is_everything:
            return prior
        rest = others.clone()
        rest[self.ids] = 0
        floor = self.floor if rest.sum() > 0 else 0.0
        rest = floor * rest / rest.sum().clamp_min(1e-30)
        return rest + self.expand((1 - floor) * prior, 0.0)


def known_classes(
    classes: ClassList | None, held_out: Predictions, *, floor: float = 0.0
) -> KnownClasses:
    """Return the classes that can occur: those named, or those that labels support.

    Without ``classes`` a model is restricted to the classes with held-out labels if
    there are far fewer of these than its own probabilities lead to expect. That is the
    case if a model for a thousand species is used where forty live.

    Args:
        classes: Class names or ids, or a text file with one per line.
        held_out: Labelled data of the model.
        floor: Share of the target that all other classes keep together, in [0, 1).

    Example:
        >>> held_out = Predictions(torch.zeros(1, 3), [0], class_names=("a", "b", "c"))
        >>> known_classes(["c", "a"], held_out).ids
        tensor([0, 2])
    """
    C = held_out.num_classes
    if classes is not None:
        return named_classes(classes, held_out.class_names, floor=floor)
    labelled = torch.bincount(held_out.labels, minlength=C) > 0
    expected, deviation = _expected_labelled(held_out)
    found = int(labelled.sum())
    missing = (expected - found) / max(deviation, 1e-9)
    if missing < MIN_DEVIATIONS or found > MAX_LABELLED_SHARE * expected:
        return KnownClasses(torch.arange(C), C)
    reason = (
        f"{C - found:,} of {C:,} classes have no held-out labels, although the model "
        f"expects labels of {expected:.0f} classes: predictions are restricted to the "
        f"other {found}. Name the classes that can occur (`classes`, --classes) to "
        "change that."
    )
    return KnownClasses(labelled.nonzero()[:, 0], C, floor, reason)


def named_classes(
    classes: ClassList, class_names: Sequence[str], *, floor: float = 0.0
) -> KnownClasses:
    """Return the classes that are named.

    Args:
        classes: Class names or ids, or a text file with one per line.
        class_names: One per class of the model.
        floor: Share of the target that all other classes keep together, in [0, 1).
    """
    if not 0 <= floor < 1:
        raise ValueError(f"`floor` must be in [0, 1), got {floor:g}.")
    num_classes = len(class_names)
    ids = torch.tensor(_ids(classes, class_names, num_classes))
    return KnownClasses(ids, num_classes, floor)


def _expected_labelled(held_out: Predictions) -> tuple[float, float]:
    """Return mean and deviation of the number of classes with a label."""
    C = held_out.num_classes
    total = torch.zeros(C, dtype=torch.float64)
    for f in torch.split(held_out.logits, max(1, 2**22 // C)):
        total += f.float().softmax(dim=1).double().sum(dim=0)
    absent = (-total).exp()
    return float((1 - absent).sum()), float((absent * (1 - absent)).sum().sqrt())


def _ids(classes: ClassList, class_names: Sequence[str], num_classes: int) -> list[int]:
    wanted: list[Any]
    if isinstance(classes, str | os.PathLike):
        lines = read_text(Path(classes)).splitlines()
        wanted = [line.strip() for line in lines if line.strip()]
    else:
        wanted = list(classes)
    by_name = class_ids(class_names, num_classes)
    unknown = [name for name in wanted if str(name) not in by_name]
    if unknown:
        hint = did_you_mean(str(unknown[0]), list(class_names)) or "."
        raise ValueError(
            f"`classes` has {len(unknown)} unknown classes; the first is "
            f"{cut(repr(unknown[0]))}{hint}"
        )
    ids = sorted({by_name[str(name)] for name in wanted})
    if len(ids) < 2:
        raise ValueError(f"`classes` must name at least 2 classes, got {len(ids)}.")
    return ids
