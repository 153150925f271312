"""Runs made elsewhere: a file of logits and labels, as reports take them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from tailshift.predictions import Predictions
from tailshift.priors import from_counts, uniform
from tailshift.report.run import ReportRun

CarriedPrior: TypeAlias = Literal["source", "uniform"]
"""What a file may leave unsaid: the prior of the training set, or the uniform one."""


def run_from_logits(
    file: str | Path, *, trained_prior: CarriedPrior | None = None
) -> ReportRun:
    """Return the predictions in a file as a run to report on.

    Args:
        file: A path for :meth:`Predictions.load`, or ``"NAME=PATH"``. Without a name
            the file's own is shown; one that ends in ``-seed1`` gives the seed.
        trained_prior: The prior that the logits carry, where the file does not say.

    Example:
        >>> from tempfile import mkdtemp
        >>> import torch
        >>> path = Path(mkdtemp()) / "forest-seed2.safetensors"
        >>> Predictions(torch.eye(2), torch.arange(2)).save(path)
        >>> run = run_from_logits(path)
        >>> run.method, run.seed
        ('forest', 2)
    """
    name, path = _split(str(file))
    predictions = Predictions.load(path)
    if trained_prior is not None and predictions.trained_prior is None:
        predictions = _with_prior(predictions, trained_prior, path)
    stem, seed = _seed(path.stem)
    return ReportRun(name or stem, seed, predictions, name=str(path))


def is_logits_file(file: str) -> bool:
    """Say whether this is a file, with or without ``NAME=`` before it."""
    return _split(file)[1].is_file()


def _split(file: str) -> tuple[str, Path]:
    name, _, path = file.rpartition("=")
    if not name or Path(file).exists():
        return "", Path(file)
    return name, Path(path)


def _seed(stem: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)-seed(\d+)", stem)
    return (match[1], int(match[2])) if match else (stem, 0)


def _with_prior(
    predictions: Predictions, trained_prior: CarriedPrior, path: Path
) -> Predictions:
    if trained_prior == "uniform":
        return replace(predictions, trained_prior=uniform(predictions.num_classes))
    if predictions.source_counts is None:
        raise ValueError(
            "`trained_prior` 'source' is the prior of the training set, but "
            f"{path} holds no `source_counts`. Add them to the file."
        )
    return replace(predictions, trained_prior=from_counts(predictions.source_counts))
