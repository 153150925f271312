"""The paper's grid search over α and λ of LADE, on a validation split.

The score is the mean over the classes of the accuracy on each, of logits compensated to
the uniform prior: an estimate of the accuracy on the uniform test set that the paper's
tables show, whatever the label distribution of the validation split (CIFAR-100-LT's is
held out of the training images and as long-tailed as they are). No score ever depends
on a test image.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailshift import priors
from tailshift.compensation import post_compensate
from tailshift.config import RunConfig
from tailshift.data import LongTailedData
from tailshift.methods import LADE
from tailshift.predictions import Predictions
from tailshift.training.directory import check_same_config
from tailshift.training.hold_out import with_validation
from tailshift.training.journal import Journal, Trial, best_trial
from tailshift.training.run import FACTS, Run, load
from tailshift.training.train import train

GRID = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
"""The default values of α, and of λ."""

HELD_OUT = 0.1
"""Share of the training images that is held out where there is no validation split."""

JOURNAL = "journal.log"
"""Optuna's record of the search."""

INTERRUPTED = "interrupted: the same command goes on where this one stopped."


@dataclass(frozen=True)
class Tuning:
    """A finished search."""

    trials: tuple[Trial, ...]
    """By α, then by λ."""
    best: Trial
    """The highest score; of equal ones that with the smallest α, then λ."""
    run: Run
    """The best setting, trained on all training images."""


def tune(
    config: RunConfig,
    *,
    output: str | Path,
    data_root: str | Path | None = None,
    alphas: Sequence[float] = GRID,
    lams: Sequence[float] = GRID,
    announce: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Train every setting of the grid; return the scores and the best setting's run.

    Where the data has no validation split, a tenth of the training images of each
    class is held out, and the best setting is trained again on all. The search is kept
    in ``output/journal.log``: after an interruption the same call goes on with it.

    Args:
        config: A recipe of LADE.
        output: The folder of the search.
        data_root: The folder that holds the data, where it is read from disk.
        alphas: Values of α.
        lams: Values of λ.
        announce: Told of each setting, before and after.
    """
    grid = {"alpha": _check_grid("alphas", alphas), "lam": _check_grid("lams", lams)}
    check_can_be_tuned(config)
    folder = Path(output)
    root = Path(data_root) if data_root is not None else None
    whole = config.data.load(root=root, seed=config.seed)
    journal = Journal(folder / JOURNAL, grid, config.to_mapping())
    is_held_out = whole.val is None
    data = with_validation(whole, HELD_OUT, seed=config.seed) if is_held_out else whole
    while not journal.is_complete:
        trial, alpha, lam = journal.ask()
        setting = with_setting(config, alpha, lam, is_held_out=is_held_out)
        announce(f"training α = {alpha:g}, λ = {lam:g}")
        score = _score(setting, data, _directory(folder, alpha, lam))
        journal.tell(trial, score)
        announce(f"{len(journal.trials)} of {len(journal)}: {Trial(alpha, lam, score)}")
    best = best_trial(journal.trials)
    directory = _directory(folder, best.alpha, best.lam)
    if is_held_out:
        announce(f"training α = {best.alpha:g}, λ = {best.lam:g} on all images")
        setting = with_setting(config, best.alpha, best.lam)
        directory = _finished_run(setting, whole, folder / "best").directory
    return Tuning(journal.trials, best, load(directory))


def check_can_be_tuned(config: RunConfig) -> None:
    """Refuse what has no α and λ, and the data that the paper did not tune on."""
    if not isinstance(config.method, LADE):
        raise ValueError(
            f"`recipe` must train LADE, whose α and λ are searched, but "
            f"{config.recipe} trains {config.method.title}. Set method.name=lade."
        )
    if config.data_name == "inaturalist2018":
        raise ValueError(
            "`recipe` must have data to validate on, but iNaturalist 2018 has none "
            "beside its test images. The paper took the α and λ found on ImageNet-LT: "
            "tune imagenet_lt_lade_180ep, then train with --set method.alpha=… "
            "--set method.lam=…."
        )


def with_setting(
    config: RunConfig, alpha: float, lam: float, *, is_held_out: bool = False
) -> RunConfig:
    """Return the configuration with another α and λ.

    A run without the held-out images is no run of the recipe: its ``recipe`` says so.
    """
    assert isinstance(config.method, LADE)
    changes: dict[str, Any] = {
        "method": dataclasses.replace(config.method, alpha=alpha, lam=lam)
    }
    if is_held_out:
        changes["recipe"] = f"{config.recipe}_held_out"
    return config.model_copy(update=changes)


def validation_score(predictions: Predictions) -> float:
    """Return the mean accuracy over the classes, compensated to the uniform prior.

    Higher is better, in [0, 1]; classes without a sample are left out.

    Example:
        >>> f = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.6, 0.0]])
        >>> labels = torch.tensor([0, 0, 0, 1])
        >>> source = torch.tensor([0.75, 0.25], dtype=torch.float64)
        >>> validation_score(Predictions(f, labels, trained_prior=source))
        0.5
    """
    f, y = predictions.logits.float(), predictions.labels  # (N, C), (N,)
    uniform = priors.uniform(predictions.num_classes)
    if predictions.trained_prior is not None:
        p = predictions.trained_prior
        f = post_compensate(f, trained_prior=p, target_prior=uniform)
    is_right = (f.argmax(dim=1) == y).double()
    n = torch.bincount(y, minlength=predictions.num_classes)  # (C,)
    right = torch.bincount(y, weights=is_right, minlength=len(n))
    return float((right[n > 0] / n[n > 0]).mean())


def _check_grid(name: str, values: Sequence[float]) -> list[float]:
    grid = [float(value) for value in values]
    if not grid or not all(0 <= value < math.inf for value in grid):
        raise ValueError(
            f"`{name}` must be one or more finite numbers >= 0, but is {grid}."
        )
    return sorted(set(grid))


def _directory(folder: Path, alpha: float, lam: float) -> Path:
    return folder / "trials" / f"alpha{alpha:g}-lam{lam:g}"


def _score(config: RunConfig, data: LongTailedData, directory: Path) -> float:
    try:
        run = _finished_run(config, data, directory)
    except FloatingPointError:
        return math.nan
    return validation_score(run.predictions("val"))


def _finished_run(config: RunConfig, data: LongTailedData, directory: Path) -> Run:
    """Return the run in a directory, trained to its end."""
    if (directory / FACTS).is_file() and load(directory).is_finished:
        check_same_config(directory, config)
        return load(directory)
    run = train(config, output=directory, resume=True, data=data)
    if not run.is_finished:
        raise KeyboardInterrupt(INTERRUPTED)
    return run
