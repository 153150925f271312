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
    assert journal.left == SETTINGS
    for number, (alpha, lam) in enumerate(reversed(SETTINGS), start=1):
        journal.add(Trial(alpha, lam, alpha + lam))
        assert journal.left == SETTINGS[:-number]
    assert len(journal) == 6
    assert _settings(journal) == SETTINGS
    assert journal.trials[-1] == Trial(0.1, 1.0, 1.1)


@pytest.mark.parametrize("num_done", [0, 1, 5])
def test_journal__goes_on_after_an_interruption(tmp_path: Path, num_done: int) -> None:
    first = _open(tmp_path / "journal.log")
    for setting in SETTINGS[:num_done]:
        first.add(Trial(*setting, 0.5))
    second = _open(tmp_path / "journal.log")
    assert len(second.trials) == num_done
    assert second.left == SETTINGS[num_done:]


def test_journal__of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Its trials were opened by a sampler; the last was never closed."""
    import optuna

    path = tmp_path / "journal.log"
    _open(path)
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    study = optuna.load_study(
        study_name="tailshift",
        storage=optuna.storages.JournalStorage(backend),
        sampler=optuna.samplers.GridSampler(GRID, seed=0),
    )
    trials = [study.ask() for _ in range(3)]
    asked = [
        tuple(trial.suggest_categorical(name, GRID[name]) for name in GRID)
        for trial in trials
    ]
    for trial in trials[:2]:
        study.tell(trial, 0.5)
    journal = _open(path)
    assert journal.left == [one for one in SETTINGS if one not in asked[:2]]


def test_journal__keeps_a_failure(tmp_path: Path) -> None:
    journal = _open(tmp_path / "journal.log", {"alpha": [1.0], "lam": [0.5]})
    journal.add(Trial(1.0, 0.5, math.nan))
    assert journal.left == []
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


def test_journal__on_a_full_disk(tmp_path: Path) -> None:
    """Files may not grow, as on a disk that has no more room."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "journal.log"
    journal = _open(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        with pytest.raises(OSError, match="large") as error:
            journal.add(Trial(*SETTINGS[0], 0.5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(error.value) == f"{path} cannot be written (File too large)."
    assert _open(path).left == SETTINGS


def test_journal__that_was_cut_short(tmp_path: Path) -> None:
    """The line under way is dropped, and its setting comes up again."""
    path = tmp_path / "journal.log"
    journal = _open(path)
    journal.add(Trial(*SETTINGS[0], 0.5))
    journal.add(Trial(*SETTINGS[1], 0.5))
    path.write_bytes(path.read_bytes()[:-7])
    journal = _open(path)
    assert _settings(journal) == SETTINGS[:1]
    assert journal.left == SETTINGS[1:]
