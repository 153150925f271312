"""The paper's grid search over α and λ of LADE, on a validation split.

The score is the mean over the classes of the accuracy on each, of logits compensated to
the uniform prior: an estimate of the accuracy on the uniform test set that the paper's
tables show, whatever the label distribution of the validation split (CIFAR-100-LT's is
held out of the training images and as long-tailed as they are). No score ever depends
on a test image.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
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
from tailshift.runs.directory import check_same_config
from tailshift.runs.run import FACTS, Run, load
from tailshift.storage import atomic_write, make_folder, naming_file
from tailshift.training.jobs import Failure, Job, num_at_once, run_jobs
from tailshift.training.train import train, with_validation


@dataclass(frozen=True)
class Trial:
    """One setting and what it scored.

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
    """Return the trial with the highest score, the first of equal ones."""
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


class Journal:
    """A grid search in a journal file; one process at a time works on it.

    Args:
        path: The file; it is made if there is none.
        grid: Values of ``alpha`` and of ``lam``.
        config: What is searched for, ready for JSON: a journal that was started with
            another one is refused.
    """

    def __init__(
        self,
        path: Path,
        grid: Mapping[str, Sequence[float]],
        config: Mapping[str, Any],
    ) -> None:
        self._optuna = _import_optuna()
        self.grid = {name: list(grid[name]) for name in ("alpha", "lam")}
        make_folder(path.parent)
        self._path = path
        with naming_file(path):
            self._study = self._open(path)
            self._check_same(path, {"config": config, "grid": self.grid})

    def __len__(self) -> int:
        """Return the number of settings in the grid."""
        return math.prod(len(values) for values in self.grid.values())

    @property
    def left(self) -> list[tuple[float, float]]:
        """Settings that have not been tried, by α and then λ."""
        tried = {(trial.alpha, trial.lam) for trial in self.trials}
        grid = itertools.product(self.grid["alpha"], self.grid["lam"])
        return [setting for setting in grid if setting not in tried]

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What has been tried, by α and then λ."""
        closed = [t for t in self._study.get_trials() if t.state.is_finished()]
        trials = [
            Trial(
                trial.params["alpha"],
                trial.params["lam"],
                math.nan if trial.value is None else trial.value,
            )
            for trial in closed
        ]
        return tuple(sorted(trials, key=lambda trial: (trial.alpha, trial.lam)))

    def add(self, trial: Trial) -> None:
        """Write a trial down, as failed if its score is NaN."""
        is_failed, state = math.isnan(trial.score), self._optuna.trial.TrialState
        categories = self._optuna.distributions.CategoricalDistribution
        closed = self._optuna.trial.create_trial(
            params={"alpha": trial.alpha, "lam": trial.lam},
            distributions={name: categories(v) for name, v in self.grid.items()},
            value=None if is_failed else trial.score,
            state=state.FAIL if is_failed else state.COMPLETE,
        )
        with naming_file(self._path):
            self._study.add_trial(closed)

    def _open(self, path: Path) -> Any:
        _drop_cut_line(path)
        storages = self._optuna.storages
        backend = storages.journal.JournalFileBackend(str(path))
        try:
            return self._optuna.create_study(
                study_name="tailshift",
                storage=storages.JournalStorage(backend),
                direction="maximize",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a whole journal ({error}). Move it away to begin anew."
            ) from None

    def _check_same(self, path: Path, search: Mapping[str, Any]) -> None:
        asked = json.loads(json.dumps(search))  # a tuple comes back as a list
        begun = self._study.user_attrs.get("search", asked)
        for name in asked:
            if begun[name] != asked[name]:
                raise ValueError(
                    f"{path} was started with another {name}. Resume with the one "
                    "that it was started with, or name another folder (--output)."
                )
        self._study.set_user_attr("search", asked)


def _drop_cut_line(path: Path) -> None:
    """Cut off what a killed process wrote of the last line; its setting comes again."""
    if not path.is_file():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with atomic_write(path) as temporary:
            temporary.write_bytes(whole)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ModuleNotFoundError(
            "`tune` needs Optuna, which is not installed. Install tailshift[tune]."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


GRID = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
"""The default values of α, and of λ."""

JOURNAL = "journal.log"
"""Optuna's record of the search."""

INTERRUPTED = "interrupted: the same command resumes where this one stopped."


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
    jobs: int = 1,
    announce: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Train every setting of the grid; return the scores and the best setting's run.

    If the data has no validation split, a tenth of the training images of each
    class is held out, and the best setting is trained again on all. The search is kept
    in ``output/journal.log``: after an interruption the same call resumes it.

    Args:
        config: A recipe of LADE.
        output: The folder of the search.
        data_root: The folder that holds the data, if it is read from disk.
        alphas: Values of α.
        lams: Values of λ.
        jobs: Number of settings that are trained at once, each in a process of its own
            if there are several; 0 is one for each GPU or core.
        announce: Called with a sentence before and after each setting.
    """
    grid = {"alpha": _check_grid("alphas", alphas), "lam": _check_grid("lams", lams)}
    check_can_be_tuned(config)
    folder = Path(output)
    root = Path(data_root) if data_root is not None else None
    whole = config.data.load(root=root, seed=config.seed)
    journal = Journal(folder / JOURNAL, grid, config.to_mapping())
    is_held_out = whole.val is None
    data = with_validation(whole, seed=config.seed) if is_held_out else whole
    planned = [
        Job(
            with_setting(config, *setting, is_held_out=is_held_out),
            _directory(folder, *setting),
            is_held_out,
        )
        for setting in journal.left
    ]

    def note(job: Job, score: float) -> None:
        trial = Trial(*_setting(job), score)
        journal.add(trial)
        announce(f"{len(journal.trials)} of {len(journal)}: {trial}")

    at_once = num_at_once(jobs, len(planned))
    if at_once > 1:
        _score_at_once(planned, at_once, root, note)
    else:
        for job in planned:
            announce("training α = {:g}, λ = {:g}".format(*_setting(job)))
            note(job, _score(job, data))
    best = best_trial(journal.trials)
    directory = _directory(folder, best.alpha, best.lam)
    if is_held_out:
        announce(f"training α = {best.alpha:g}, λ = {best.lam:g} on all images")
        setting = with_setting(config, best.alpha, best.lam)
        directory = _finished_run(setting, whole, folder / "best").directory
    trials = tuple(_with_error(trial, best, folder) for trial in journal.trials)
    return Tuning(trials, best, load(directory))


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

    Higher is better, in [0, 1]; classes without a sample are skipped.

    Example:
        >>> f = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.6, 0.0]])
        >>> labels = torch.tensor([0, 0, 0, 1])
        >>> source = torch.tensor([0.75, 0.25], dtype=torch.float64)
        >>> validation_score(Predictions(f, labels, trained_prior=source))
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
    """Return which samples are right if compensated to uniform, and their weights."""
    f, y = predictions.logits.float(), predictions.labels  # (N, C), (N,)
    uniform = priors.uniform(predictions.num_classes)
    if predictions.trained_prior is not None:
        p = predictions.trained_prior
        f = post_compensate(f, trained_prior=p, target_prior=uniform)
    n = torch.bincount(y, minlength=predictions.num_classes)  # (C,)
    is_right = (f.argmax(dim=1) == y).double()
    return is_right, 1 / (n[y] * (n > 0).sum()).double()


def _with_error(trial: Trial, best: Trial, folder: Path) -> Trial:
    """Return the trial with its error; without, if its run is gone or diverged."""
    directory = _directory(folder, trial.alpha, trial.lam)
    if trial == best or math.isnan(trial.score) or not (directory / FACTS).is_file():
        return trial
    own, winner = load(directory), load(_directory(folder, best.alpha, best.lam))
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
    """Train settings in processes of their own; note the score of each as it ends."""

    def note_end(job: Job, failure: Failure | None) -> None:
        if failure is None:
            note(job, validation_score(load(job.directory).predictions("val")))
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
    """Return the run in a directory, trained to its end."""
    if (directory / FACTS).is_file() and load(directory).is_finished:
        check_same_config(directory, config)
        return load(directory)
    run = train(config, output=directory, resume=True, data=data)
    if not run.is_finished:
        raise KeyboardInterrupt(INTERRUPTED)
    return run
