"""The prior built into a model's logits: given, measured on labels, or estimated."""

import os
from collections.abc import Callable
from typing import TypeAlias, get_args

import torch
from torch import Tensor

from tailshift import priors
from tailshift.estimators import measure_logit_prior
from tailshift.estimators.known_classes import KnownClasses
from tailshift.priors import VectorLike
from tailshift.retarget.names import ClassNames, counts_prior, target_prior
from tailshift.retarget.unlabelled import (
    PRIOR_METHODS,
    PriorMethod,
    estimate_logit_prior,
)
from tailshift.targets import Target

LogitPrior: TypeAlias = str | os.PathLike[str] | VectorLike
KnownDistribution: TypeAlias = Callable[[], tuple[Tensor, Target | None, str]]


def choose_logit_prior(
    given: LogitPrior,
    names: ClassNames,
    known: KnownClasses,
    *,
    smoothing: float,
    labelled: tuple[Tensor, Tensor] | None,
    unlabelled: KnownDistribution,
) -> tuple[Tensor, str]:
    """Return the logit prior, positive, shape (C,), and where it comes from.

    Args:
        given: See :func:`tailshift.retarget`.
        names: Names of the model's classes.
        known: The classes that can occur.
        smoothing: Added to each training count.
        labelled: Logits (n, C) and labels (n,), if there are any.
        unlabelled: Returns logits (N, C), their class distribution if it is known, and
            what they are called in messages.
    """
    num_classes = len(names.names)
    if not isinstance(given, str | os.PathLike):
        found = priors.as_prior(
            given, name="logit_prior", num_classes=num_classes, positive=True
        )
        return found, "as given."
    text = os.fspath(given)
    if text == "uniform":
        return priors.uniform(num_classes), (
            "assumed uniform. Give training counts (`logit_prior`, --logit-prior "
            "counts.csv) if you have them."
        )
    if text == "measured":
        return _measured(known, labelled)
    for method in get_args(PriorMethod):
        if text == method:
            return _estimated(method, names, unlabelled)
    if not os.path.exists(text):  # noqa: PTH110 (a name was meant, perhaps)
        raise FileNotFoundError(
            "`logit_prior` must be 'uniform', 'measured', "
            f"{', '.join(map(repr, PRIOR_METHODS))}, a file of training counts or a "
            f"prior, but there is no file {text}."
        )
    found, _ = counts_prior(text, names, smoothing=smoothing, allow_unknown=False)
    return found, f"the counts in {text}."


def _measured(
    known: KnownClasses, labelled: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, str]:
    """Measure it on labels; classes that cannot occur keep the uniform share."""
    if labelled is None:
        raise ValueError(
            "`logit_prior` 'measured' needs labels. Give labelled rows (`labels`, "
            "--labels), or 'mean' or 'transport', which need none."
        )
    f, y = labelled
    rows = torch.isin(y, known.ids)
    if not rows.any():
        raise ValueError("`labels` has no label of the classes in `classes`.")
    position = torch.full((known.num_classes,), -1)
    position[known.ids] = torch.arange(len(known.ids))
    found = measure_logit_prior(
        known.logits(f[rows]).double(),
        position[y[rows]],
        priors.uniform(len(known.ids)),
    )
    share = len(known.ids) / known.num_classes
    prior = known.expand(share * found.prior.double(), 1 / known.num_classes)
    return prior / prior.sum(), f"measured on {int(rows.sum())} labelled rows."


def _estimated(
    method: PriorMethod, names: ClassNames, unlabelled: KnownDistribution
) -> tuple[Tensor, str]:
    f, distribution, which = unlabelled()
    num_classes = len(names.names)
    if distribution is None and method != "mean":
        raise ValueError(
            f"`logit_prior` {method!r} needs data of known distribution. Give `target` "
            "if it holds for the predictions, or `reference` and `reference_prior`."
        )
    r = priors.uniform(num_classes)
    if distribution is not None:
        r = target_prior(distribution, names)
    smooth = (len(f) * r + 1 / num_classes) / (len(f) + 1)
    assumption = f"the class distribution of the {which} is the given one"
    if method == "mean":
        assumption = f"the {which} follow the model's own prior"
    return estimate_logit_prior(f, smooth, method), (
        f"estimated without labels ({method}), assuming that {assumption}."
    )
