"""The settings that a search has tried: Optuna's journal, which survives a stop."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    """In [0, 1], higher is better; NaN where training diverged."""

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


class Journal:
    """A grid search in a journal file; one process at a time works on it.

    Args:
        path: The file; it is begun where there is none.
        grid: Values of ``alpha`` and of ``lam``.
        config: What is searched for, ready for JSON: a journal that was begun with
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
        self._sampler = self._optuna.samplers.GridSampler(self.grid, seed=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._study = self._open(path)
        self._check_same(path, {"config": config, "grid": self.grid})

    def __len__(self) -> int:
        """Return the number of settings in the grid."""
        return math.prod(len(values) for values in self.grid.values())

    @property
    def is_complete(self) -> bool:
        """Whether every setting has been tried."""
        return bool(self._sampler.is_exhausted(self._study))

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

    def ask(self) -> tuple[Any, float, float]:
        """Open a trial; return it with its α and λ.

        One that is never told stays open, and its setting comes up again at the end.
        """
        trial = self._study.ask()
        alpha, lam = (trial.suggest_categorical(k, v) for k, v in self.grid.items())
        return trial, alpha, lam

    def tell(self, trial: Any, score: float) -> None:
        """Close a trial with its score, as failed if that is NaN."""
        state = self._optuna.trial.TrialState
        is_failed = math.isnan(score)
        # After the last setting the sampler stops an Optuna loop, and there is none.
        with suppress(RuntimeError):
            self._study.tell(
                trial,
                None if is_failed else score,
                state=state.FAIL if is_failed else state.COMPLETE,
            )

    def _open(self, path: Path) -> Any:
        storages = self._optuna.storages
        backend = storages.journal.JournalFileBackend(str(path))
        try:
            return self._optuna.create_study(
                study_name="tailshift",
                storage=storages.JournalStorage(backend),
                sampler=self._sampler,
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
                    f"{path} was begun with another {name}. Go on with the one that it "
                    "was begun with, or name another folder (--output)."
                )
        self._study.set_user_attr("search", asked)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ModuleNotFoundError(
            "`tune` needs Optuna, which is not installed. Install tailshift[tune]."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
