"""The grid search over α and λ, on digits."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tailshift import Predictions, Run, RunConfig, load_recipe
from tailshift.data import DigitsLT, LongTailedData, MemorySplit
from tailshift.methods import LADE
from tailshift.paper import tune as module
from tailshift.paper.tune import (
    Trial,
    best_trial,
    check_can_be_tuned,
    difference_error,
    tune,
    validation_score,
)
from tailshift.runs.directory import begin_directory
from tailshift.runs.files import FAILURE
from tailshift.storage import write_json

TinyConfig = Callable[..., RunConfig]
LOAD = DigitsLT.load


@pytest.fixture
def config(tiny_config: TinyConfig) -> RunConfig:
    return tiny_config("method.name=lade", "train.epochs=1")


def _without_validation(
    self: DigitsLT, *, root: Path | None = None, seed: int = 0
) -> LongTailedData:
    return replace(LOAD(self, root=root, seed=seed), val=None)


def _settings(run: Run) -> tuple[float, float]:
    assert isinstance(run.config.method, LADE)
    return run.config.method.alpha, run.config.method.lam


def test_tune__scores_every_setting_on_the_validation_split(
    config: RunConfig, tmp_path: Path
) -> None:
    said: list[str] = []
    tuning = tune(
        config, output=tmp_path, alphas=[1, 0.1], lams=[0.5], announce=said.append
    )
    assert [(trial.alpha, trial.lam) for trial in tuning.trials] == [
        (0.1, 0.5),
        (1.0, 0.5),
    ]
    assert tuning.best == max(tuning.trials, key=lambda trial: trial.score)
    assert _settings(tuning.run) == (tuning.best.alpha, tuning.best.lam)
    winner = tuning.run.predictions("val")
    assert tuning.best.score == validation_score(winner)
    (other,) = [trial for trial in tuning.trials if trial != tuning.best]
    loser = module.load_run(tmp_path / "trials" / f"alpha{other.alpha:g}-lam0.5")
    assert other.error == difference_error(loser.predictions("val"), winner)
    assert tuning.run.config.recipe == "digits_lt"
    last = next(trial for trial in tuning.trials if str(trial) in said[-1])
    assert said[2:] == [
        f"training α = {last.alpha:g}, λ = 0.5",
        f"2 of 2: {last}",
    ]


def test_tune__holds_out_and_trains_the_best_on_all(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DigitsLT, "load", _without_validation)
    tuning = tune(config, output=tmp_path, alphas=[0.1], lams=[0.5])
    assert tuning.run.directory == tmp_path / "best"
    assert tuning.run.source_counts.sum() == 276
    assert tuning.run.config.recipe == "digits_lt"
    trial = module.load_run(tmp_path / "trials" / "alpha0.1-lam0.5")
    assert trial.source_counts.sum() == 276 - 30
    assert len(trial.predictions("val").labels) == 30
    assert trial.config.recipe == "digits_lt_held_out"


def test_tune__does_not_depend_on_the_test_split(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_with_false_labels(
        self: DigitsLT, *, root: Path | None = None, seed: int = 0
    ) -> LongTailedData:
        data = LOAD(self, root=root, seed=seed)
        assert isinstance(data.test, MemorySplit)
        return replace(data, test=replace(data.test, labels=data.test.labels.flip(0)))

    true = tune(config, output=tmp_path / "true", alphas=[0.1], lams=[0.5])
    monkeypatch.setattr(DigitsLT, "load", load_with_false_labels)
    false = tune(config, output=tmp_path / "false", alphas=[0.1], lams=[0.5])
    assert true.trials == false.trials


def test_tune__resumes_after_an_interruption(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[float, float]] = []
    train = module.train

    def interrupted_the_second_time(config: RunConfig, **settings: object) -> Run:
        run = train(config, **settings)  # type: ignore[arg-type] # passed through
        trained.append(_settings(run))
        stopped = run.facts.model_copy(update={"state": "interrupted"})
        return replace(run, facts=stopped) if trained[1:] else run

    monkeypatch.setattr(module, "train", interrupted_the_second_time)
    with pytest.raises(KeyboardInterrupt) as stop:
        tune(config, output=tmp_path, alphas=[0.1, 1], lams=[0.5])
    assert str(stop.value) == ("interrupted: run the same command again to resume.")
    monkeypatch.setattr(module, "train", train)
    tuning = tune(config, output=tmp_path, alphas=[0.1, 1], lams=[0.5])
    assert sorted(trained) == [(0.1, 0.5), (1.0, 0.5)]
    assert len(tuning.trials) == 2
    assert tune(config, output=tmp_path, alphas=[0.1, 1], lams=[0.5]) == tuning


def test_tune__trains_only_new_settings_of_a_larger_grid(
    config: RunConfig, tmp_path: Path
) -> None:
    first = tune(config, output=tmp_path, alphas=[0.1], lams=[0.5])
    said: list[str] = []
    second = tune(
        config, output=tmp_path, alphas=[0.1, 1], lams=[0.5], announce=said.append
    )
    old, new = second.trials
    assert (old.alpha, old.score) == (0.1, first.best.score)
    assert said == ["training α = 1, λ = 0.5", f"2 of 2: {new}"]


def test_tune__resumes_a_search_of_version_0_2(
    config: RunConfig, tmp_path: Path
) -> None:
    """Version 0.2 also wrote a journal, which is not needed."""
    first = tune(config, output=tmp_path, alphas=[0.1], lams=[0.5])
    (tmp_path / "journal.log").write_text("what\n", encoding="utf-8")
    assert tune(config, output=tmp_path, alphas=[0.1], lams=[0.5]) == first


def test_tune__skips_a_setting_that_diverged(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, trained = module.train, []

    def diverging(config: RunConfig, *, output: Path, **settings: object) -> Run:
        assert isinstance(config.method, LADE)
        trained.append(config.method.alpha)
        if config.method.alpha < 1:
            return train(config, output=output, **settings)  # type: ignore[arg-type]
        output.mkdir(parents=True)
        begin_directory(output, config)
        write_json(output / FAILURE, {"message": "the loss is nan"})
        raise FloatingPointError("the loss is nan")

    monkeypatch.setattr(module, "train", diverging)
    for _ in range(2):
        tuning = tune(config, output=tmp_path, alphas=[0.1, 1], lams=[0.5])
        assert tuning.best.alpha == 0.1
        assert math.isnan(tuning.trials[1].score)
        assert str(tuning.trials[1]) == "α = 1, λ = 0.5: diverged"
    assert trained == [0.1, 1]  # the second search trains nothing


def test_tune__refuses_a_trial_of_another_search(
    config: RunConfig, tmp_path: Path
) -> None:
    tune(config, output=tmp_path, alphas=[0.1], lams=[0.5])
    other = config.model_copy(update={"seed": 1})
    with pytest.raises(ValueError, match="seed") as error:
        tune(other, output=tmp_path, alphas=[0.1], lams=[0.5])
    assert str(error.value).startswith(
        f"{tmp_path / 'trials' / 'alpha0.1-lam0.5'} was started with seed = 0, but"
    )


def test_validation_score__by_hand() -> None:
    """Compensated by (log 3, 0), rows 0 to 2 stay class 0 and row 3 becomes class 1.

    Class 0 has 2 of 3 right, class 1 has 1 of 1, class 2 no sample: (2/3 + 1) / 2.
    """
    f = torch.tensor([[2.0, 0, 0], [2, 0, 0], [0, 2, 0], [1, 0, 0]])
    predictions = Predictions(
        f,
        torch.tensor([0, 0, 0, 1]),
        logit_prior=torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64),
    )
    assert validation_score(predictions) == pytest.approx((2 / 3 + 1) / 2)


def test_validation_score__is_the_accuracy_where_classes_are_equal(
    digits_run: Run,
) -> None:
    predictions = digits_run.predictions("test")
    right = predictions.logits.argmax(1) == predictions.labels
    assert validation_score(predictions) == pytest.approx(right.double().mean().item())


def test_difference_error__is_the_spread_of_differences_that_mean_nothing() -> None:
    """Two classifiers that are right by the same chance, on 2,000 sets of images.

    Class 0 has one image, as the rare classes of a long tail do.
    """
    n, chance = torch.tensor([1, 4, 40]), torch.tensor([0.3, 0.5, 0.8])
    y = torch.repeat_interleave(torch.arange(3), n)
    wrong = (y + 1) % 3
    generator = torch.Generator().manual_seed(0)

    def predict() -> Predictions:
        is_right = torch.rand(len(y), generator=generator) < chance[y]
        answers = torch.where(is_right, y, wrong)
        return Predictions(torch.nn.functional.one_hot(answers, 3).float(), y)

    pairs = [(predict(), predict()) for _ in range(2000)]
    differences = [validation_score(a) - validation_score(b) for a, b in pairs]
    spread = torch.tensor(differences).square().mean().sqrt()
    errors = torch.tensor([difference_error(a, b) for a, b in pairs])
    # The variance is estimated without bias, to 2,000 ** -0.5 of its size.
    torch.testing.assert_close(errors.square().mean().sqrt(), spread, rtol=0.05, atol=0)


@pytest.mark.parametrize(
    ("values", "came"),
    [([], "[]"), ([0.1, -1.0], "[0.1, -1.0]"), ([math.nan], "[nan]")],
)
def test_tune__refuses_a_bad_grid(
    config: RunConfig, tmp_path: Path, values: list[float], came: str
) -> None:
    with pytest.raises(ValueError, match="lams") as error:
        tune(config, output=tmp_path / "new", lams=values)
    assert str(error.value) == (
        f"`lams` must be one or more finite numbers >= 0, but is {came}."
    )
    assert not (tmp_path / "new").exists()


def test_check_can_be_tuned__refuses_other_methods() -> None:
    with pytest.raises(ValueError, match="LADE") as error:
        check_can_be_tuned(load_recipe("digits_lt"))
    assert str(error.value) == (
        "`recipe` must train LADE, but digits_lt trains Softmax. Set method.name=lade."
    )


def test_check_can_be_tuned__refuses_inaturalist() -> None:
    with pytest.raises(ValueError, match="iNaturalist") as error:
        check_can_be_tuned(load_recipe("inaturalist2018_lade"))
    assert str(error.value) == (
        "`recipe` must have validation data, but iNaturalist 2018 has none. The paper "
        "used the α and λ found on ImageNet-LT: tune imagenet_lt_lade_180ep, then "
        "train with --set method.alpha=… --set method.lam=…."
    )


def test_best_trial__is_the_first_of_equal_ones() -> None:
    trials = [Trial(0.01, 0.1, math.nan), Trial(0.01, 0.5, 0.8), Trial(0.1, 0.1, 0.8)]
    assert best_trial(trials) == trials[1]


def test_best_trial__needs_one_that_did_not_diverge() -> None:
    with pytest.raises(ValueError, match="diverged") as error:
        best_trial([Trial(0.1, 0.1, math.nan)])
    assert str(error.value) == (
        "training diverged with every setting of the grid. Lower optim.lr."
    )
