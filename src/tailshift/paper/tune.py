"""The paper's grid search over α and λ of LADE, on a validation split.

The score is the class-balanced accuracy of logits re-targeted to the uniform prior. It
estimates the accuracy on the uniform test set that the paper's tables show, for any
class distribution of the validation split. (CIFAR-100-LT's validation images are held
out of the training images and as long-tailed as they are.) No score depends on a test
image.
"""

import dataclasses
import itertools
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
from tailshift.runs.directory import check_same_config, is_run_directory
from tailshift.runs.files import FACTS, FAILURE
from tailshift.runs.run import Run, load_run
from tailshift.training.jobs import Failure, Job, num_at_once, run_jobs
from tailshift.training.resolve import with_validation
from tailshift.training.train import train


@dataclass(frozen=True)
class Trial:
    """One setting and its score.

    Example:
        >>> print(Trial(alpha=0.1, lam=0.01, score=0.454))
        α = 0.1, λ = 0.01: 45.4 %
    """

    alpha: float
    lam: float
    score: float
    """In [0, 1], higher is better; NaN if training diverged."""
    error: float = math.nan
    """Standard error of the difference to the best score; NaN if it is not known."""

    def __str__(self) -> str:
        score = "diverged" if math.isnan(self.score) else f"{100 * self.score:.1f} %"
        return f"α = {self.alpha:g}, λ = {self.lam:g}: {score}"


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest score; of equal scores the first."""
    scored = [trial for trial in trials if not math.isnan(trial.score)]
    if not scored:
        raise ValueError(
            "training diverged with every setting of the grid. Lower optim.lr."
        )
    return max(scored, key=lambda trial: trial.score)


def is_told_apart(trial: Trial, best: Trial) -> bool:
    """Return whether a score is more than two standard errors below the best one.

    Example:
        >>> is_told_apart(Trial(0.1, 0.5, 0.40, error=0.02), Trial(1.0, 0.5, 0.43))
        False
    """
    return best.score - trial.score > 2 * trial.error


GRID = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
"""The default values of α, and of λ."""

INTERRUPTED = "interrupted: run the same command again to resume."


@dataclass(frozen=True)
class Tuning:
    """A finished search."""

    trials: tuple[Trial, ...]
    """By α, then by λ."""
    best: Trial
    """Highest score; of equal scores the trial with the smallest α, then λ."""
    run: Run
    """The best setting, trained on all training images."""


def tune(
    config: RunConfig,
    *,
    output: str | Path,
    data_root: str | Path | None = None,
    alphas: Sequence[float] = GRID,
    lams: Sequence[float] = GRID,
    jobs: int = 1,
    announce: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Train every setting of the grid; return the scores and the best setting's run.

    If the data has no validation split, a tenth of the training images of each
    class is held out, and the best setting is trained again on all. Each setting is a
    run in ``output/trials``: after an interruption the same call resumes the search,
    and a call with more values trains the new settings only.

    Args:
        config: A recipe of LADE.
        output: The folder of the search.
        data_root: The folder that holds the data, if the data is read from disk.
        alphas: Values of α.
        lams: Values of λ.
        jobs: Number of settings that are trained at the same time, each in its own
            process; 0 means one per GPU or core.
        announce: Called with a sentence before and after each setting.
    """
    alphas, lams = _check_grid("alphas", alphas), _check_grid("lams", lams)
    check_can_be_tuned(config)
    folder = Path(output)
    root = Path(data_root) if data_root is not None else None
    whole = config.data.load(root=root, seed=config.seed)
    is_held_out = whole.val is None
    data = with_validation(whole, seed=config.seed) if is_held_out else whole
    grid = [
        Job(
            with_setting(config, alpha, lam, is_held_out=is_held_out),
            _directory(folder, alpha, lam),
            is_held_out,
        )
        for alpha, lam in itertools.product(alphas, lams)
    ]
    done = {
        job.directory: trial
        for job in grid
        if (trial := _recorded_trial(job)) is not None
    }

    def note(job: Job, score: float) -> None:
        done[job.directory] = trial = Trial(*_setting(job), score)
        announce(f"{len(done)} of {len(grid)}: {trial}")

    missing = [job for job in grid if job.directory not in done]
    at_once = num_at_once(jobs, len(missing))
    if at_once > 1:
        _score_at_once(missing, at_once, root, note)
    else:
        for job in missing:
            announce("training α = {:g}, λ = {:g}".format(*_setting(job)))
            note(job, _score(job, data))
    trials = [done[job.directory] for job in grid]
    best = best_trial(trials)
    directory = _directory(folder, best.alpha, best.lam)
    if is_held_out:
        announce(f"training α = {best.alpha:g}, λ = {best.lam:g} on all images")
        setting = with_setting(config, best.alpha, best.lam)
        directory = _finished_run(setting, whole, folder / "best").directory
    with_errors = tuple(_with_error(trial, best, folder) for trial in trials)
    return Tuning(with_errors, best, load_run(directory))


def _recorded_trial(job: Job) -> Trial | None:
    """Return the trial of a run that has finished or diverged; None for other runs."""
    if not is_run_directory(job.directory):
        return None
    check_same_config(job.directory, job.config)
    if (job.directory / FAILURE).is_file():
        return Trial(*_setting(job), math.nan)
    if not _is_finished(job.directory):
        return None
    score = validation_score(load_run(job.directory).predictions("val"))
    return Trial(*_setting(job), score)


def _is_finished(directory: Path) -> bool:
    return (directory / FACTS).is_file() and load_run(directory).is_finished


def check_can_be_tuned(config: RunConfig) -> None:
    """Reject methods without α and λ, and data without validation images."""
    if not isinstance(config.method, LADE):
        raise ValueError(
            f"`recipe` must train LADE, but {config.recipe} trains "
            f"{config.method.title}. Set method.name=lade."
        )
    if config.data_name == "inaturalist2018":
        raise ValueError(
            "`recipe` must have validation data, but iNaturalist 2018 has none. The "
            "paper used the α and λ found on ImageNet-LT: tune imagenet_lt_lade_180ep, "
            "then train with --set method.alpha=… --set method.lam=…."
        )


def with_setting(
    config: RunConfig, alpha: float, lam: float, *, is_held_out: bool = False
) -> RunConfig:
    """Return the configuration with another α and λ.

    A run without the held-out images is not a run of the recipe, so ``recipe``
    gets the ending ``_held_out``.
    """
    assert isinstance(config.method, LADE)
    changes: dict[str, Any] = {
        "method": dataclasses.replace(config.method, alpha=alpha, lam=lam)
    }
    if is_held_out:
        changes["recipe"] = f"{config.recipe}_held_out"
    return config.model_copy(update=changes)


def validation_score(predictions: Predictions) -> float:
    """Return the class-balanced accuracy, re-targeted to the uniform prior.

    Higher is better, in [0, 1]; classes without a sample are skipped.

    Example:
        >>> f = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.6, 0.0]])
        >>> labels = torch.tensor([0, 0, 0, 1])
        >>> source = torch.tensor([0.75, 0.25], dtype=torch.float64)
        >>> validation_score(Predictions(f, labels, logit_prior=source))
        0.5
    """
    is_right, w = _balanced(predictions)
    return float(w @ is_right)


def difference_error(one: Predictions, other: Predictions) -> float:
    r"""Return the standard error of the difference of two validation scores.

    The same images are paired. If the two are equally good, the differences
    :math:`d_i \in \{-1, 0, 1\}` have mean 0, and the error is

    .. math:: \sqrt{\textstyle\sum_i w_i^2 d_i^2}

    with the weights :math:`w_i` of the score, each class counting the same. Unlike an
    error by class it is defined if a class has one image.

    Example:
        >>> f, y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), [0, 0, 1]
        >>> one = Predictions(f, torch.tensor(y))
        >>> other = Predictions(f.flip(1), torch.tensor(y))
        >>> round(difference_error(one, other) ** 2, 4)  # 2 · (1/4)² + (1/2)²
        0.375
    """
    (right, w), (other_right, _) = _balanced(one), _balanced(other)
    return float((w * (right - other_right)).norm())


def _balanced(predictions: Predictions) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which re-targeted predictions are right, and their weights."""
    f, y = predictions.logits.float(), predictions.labels  # (N, C), (N,)
    uniform = priors.uniform(predictions.num_classes)
    if predictions.logit_prior is not None:
        p = predictions.logit_prior
        f = post_compensate(f, logit_prior=p, target_prior=uniform)
    n = torch.bincount(y, minlength=predictions.num_classes)  # (C,)
    is_right = (f.argmax(dim=1) == y).double()
    return is_right, 1 / (n[y] * (n > 0).sum()).double()


def _with_error(trial: Trial, best: Trial, folder: Path) -> Trial:
    """Return the trial with its error, if its run exists and did not diverge."""
    directory = _directory(folder, trial.alpha, trial.lam)
    if trial == best or math.isnan(trial.score) or not (directory / FACTS).is_file():
        return trial
    own = load_run(directory)
    winner = load_run(_directory(folder, best.alpha, best.lam))
    error = difference_error(own.predictions("val"), winner.predictions("val"))
    return dataclasses.replace(trial, error=error)


def _check_grid(name: str, values: Sequence[float]) -> list[float]:
    grid = [float(value) for value in values]
    if not grid or not all(0 <= value < math.inf for value in grid):
        raise ValueError(
            f"`{name}` must be one or more finite numbers >= 0, but is {grid}."
        )
    return sorted(set(grid))


def _directory(folder: Path, alpha: float, lam: float) -> Path:
    return folder / "trials" / f"alpha{alpha:g}-lam{lam:g}"


def _setting(job: Job) -> tuple[float, float]:
    """Return α and λ of a run."""
    assert isinstance(job.config.method, LADE)
    return job.config.method.alpha, job.config.method.lam


def _score(job: Job, data: LongTailedData) -> float:
    try:
        run = _finished_run(job.config, data, job.directory)
    except FloatingPointError:
        return math.nan
    return validation_score(run.predictions("val"))


def _score_at_once(
    jobs: Sequence[Job],
    at_once: int,
    data_root: Path | None,
    note: Callable[[Job, float], None],
) -> None:
    """Train settings in separate processes; note each score when its run ends."""

    def note_end(job: Job, failure: Failure | None) -> None:
        if failure is None:
            note(job, validation_score(load_run(job.directory).predictions("val")))
        elif failure.is_diverged:
            note(job, math.nan)

    failures = run_jobs(
        jobs,
        at_once,
        data_root=data_root,
        resume=True,
        advice=INTERRUPTED,
        on_end=note_end,
    )
    faults = [str(failure) for failure in failures if not failure.is_diverged]
    if faults:
        raise ChildProcessError("\n".join(faults))


def _finished_run(config: RunConfig, data: LongTailedData, directory: Path) -> Run:
    """Return the finished run of a directory; train or resume it if necessary."""
    if _is_finished(directory):
        check_same_config(directory, config)
        return load_run(directory)
    run = train(config, output=directory, resume=True, data=data)
    if not run.is_finished:
        raise KeyboardInterrupt(INTERRUPTED)
    return run
