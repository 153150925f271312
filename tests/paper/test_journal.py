"""The journal: every setting once, and on from where it was left."""

import math
import sys
from pathlib import Path

import pytest

from tailshift.paper.tune import Journal, Trial, best_trial

GRID = {"alpha": [0.01, 0.1], "lam": [0.1, 0.5, 1.0]}
SETTINGS = [(alpha, lam) for alpha in GRID["alpha"] for lam in GRID["lam"]]


def _open(path: Path, grid: dict[str, list[float]] = GRID, epochs: int = 2) -> Journal:
    return Journal(path, grid, {"epochs": epochs})


def _settings(journal: Journal) -> list[tuple[float, float]]:
    return [(trial.alpha, trial.lam) for trial in journal.trials]


def test_journal__asks_for_every_setting_once(tmp_path: Path) -> None:
    journal = _open(tmp_path / "new" / "journal.log")
    asked = []
    while not journal.is_complete:
        trial, alpha, lam = journal.ask()
        asked.append((alpha, lam))
        journal.tell(trial, alpha + lam)
    assert len(asked) == len(journal) == 6
    assert sorted(asked) == SETTINGS == _settings(journal)
    assert journal.trials[-1] == Trial(0.1, 1.0, 1.1)


@pytest.mark.parametrize("num_done", [0, 1, 5])
def test_journal__goes_on_after_an_interruption(tmp_path: Path, num_done: int) -> None:
    first = _open(tmp_path / "journal.log")
    for _ in range(num_done):
        trial, _, _ = first.ask()
        first.tell(trial, 0.5)
    first.ask()  # never told: the process was stopped
    second = _open(tmp_path / "journal.log")
    assert len(second.trials) == num_done
    asked = 0
    while not second.is_complete:
        trial, _, _ = second.ask()
        second.tell(trial, 0.5)
        asked += 1
    assert asked == 6 - num_done
    assert _settings(second) == SETTINGS


def test_journal__keeps_a_failure(tmp_path: Path) -> None:
    journal = _open(tmp_path / "journal.log", {"alpha": [1.0], "lam": [0.5]})
    trial, _, _ = journal.ask()
    journal.tell(trial, math.nan)
    assert journal.is_complete
    [failed] = journal.trials
    assert (failed.alpha, failed.lam, math.isnan(failed.score)) == (1.0, 0.5, True)
    assert str(failed) == "α = 1, λ = 0.5: diverged"


def test_journal__refuses_another_search(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    _open(path)
    with pytest.raises(ValueError, match="config") as error:
        _open(path, epochs=3)
    ending = (
        "Resume with the one that it was started with, or name another folder "
        "(--output)."
    )
    assert str(error.value) == f"{path} was started with another config. {ending}"
    with pytest.raises(ValueError, match="grid") as error:
        _open(path, {"alpha": [0.01], "lam": [0.1]})
    assert str(error.value) == f"{path} was started with another grid. {ending}"


def test_journal__refuses_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_text("what\nis this?\n", encoding="utf-8")
    with pytest.raises(ValueError, match="journal") as error:
        _open(path)
    assert str(error.value) == (
        f"{path} is not a whole journal (Expecting value: line 1 column 1 (char 0)). "
        "Move it away to begin anew."
    )


def test_journal__says_how_to_install_optuna(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ModuleNotFoundError) as error:
        _open(tmp_path / "journal.log")
    assert str(error.value) == (
        "`tune` needs Optuna, which is not installed. Install tailshift[tune]."
    )
    assert list(tmp_path.iterdir()) == []


def test_best_trial__is_the_first_of_equal_ones() -> None:
    trials = [Trial(0.01, 0.1, math.nan), Trial(0.01, 0.5, 0.8), Trial(0.1, 0.1, 0.8)]
    assert best_trial(trials) == trials[1]


def test_best_trial__needs_one_that_did_not_diverge() -> None:
    with pytest.raises(ValueError, match="diverged") as error:
        best_trial([Trial(0.1, 0.1, math.nan)])
    assert str(error.value) == (
        "training diverged with every setting of the grid. Lower optim.lr."
    )


def test_journal__that_was_cut_short(tmp_path: Path) -> None:
    """The line under way is dropped, and its setting comes up again."""
    path = tmp_path / "journal.log"
    journal = _open(path)
    tried = {journal.ask()[1:]}
    trial, *setting = journal.ask()
    journal.tell(trial, 0.5)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    journal = _open(path)
    assert journal.trials == ()
    while not journal.is_complete:
        trial, *setting = journal.ask()
        tried.add(tuple(setting))
        journal.tell(trial, 0.5)
    assert len(journal.trials) == len(journal) == len(tried)
