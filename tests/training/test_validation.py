"""Validation in training: what is recorded, what is kept, when training stops."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tailshift as ts
from tailshift import storage
from tailshift.config import ConfigError
from tailshift.runs.files import BEST, CHECKPOINT
from tailshift.training import recorder
from tailshift.training.recorder import Recorder

TinyConfig = Callable[..., ts.RunConfig]
KEPT = Path(__file__).parent.parent / "data" / "kept" / "run_v0_1"


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Tensor]]]:
    """Give the epochs these scores; returns the weights that they were given for."""

    def score(*scores: float) -> list[dict[str, Tensor]]:
        seen: list[dict[str, Tensor]] = []
        left = list(scores)

        def validate(fabric: Any, model: Any, *args: Any) -> dict[str, float]:
            seen.append({k: v.clone() for k, v in model.state_dict().items()})
            return {"val_balanced_accuracy": left.pop(0)}

        monkeypatch.setattr(recorder, "validate", validate)
        return seen

    return score


def _same(run: ts.Run, weights: dict[str, Tensor]) -> bool:
    state = run.model.state_dict()
    return all(torch.equal(state[key], value) for key, value in weights.items())


def test_train__records_the_accuracy_on_the_validation_images(
    tmp_path: Path, tiny_config: TinyConfig
) -> None:
    """The last epoch's is that of the saved logits, class by class."""
    run = ts.train(tiny_config("train.epochs=6"), output=tmp_path / "run")
    assert len([m for m in run.metrics if "val_accuracy" in m]) == 6
    kept, last = run.predictions("val"), run.metrics[-1]
    answers, labels = kept.logits.argmax(1).tolist(), kept.labels.tolist()
    hits = [answer == label for answer, label in zip(answers, labels, strict=True)]
    assert last["val_accuracy"] == pytest.approx(sum(hits) / len(hits))
    recalls = []
    for c in set(labels):
        own = [hit for hit, label in zip(hits, labels, strict=True) if label == c]
        recalls.append(sum(own) / len(own))
    expected = sum(recalls) / len(recalls)
    assert last["val_balanced_accuracy"] == pytest.approx(expected)
    for name, members in run.groups.items():
        chosen = [h for h, y in zip(hits, labels, strict=True) if y in members.tolist()]
        key = f"val_accuracy_{name}"
        assert (key in last) == bool(chosen)
        if chosen:
            assert last[key] == pytest.approx(sum(chosen) / len(chosen))


@pytest.mark.parametrize("method", ["lade", "crt", "causal_norm"])
def test_train__validation_does_not_change_training(
    tmp_path: Path, tiny_config: TinyConfig, method: str
) -> None:
    config = tiny_config(f"method.name={method}")
    data = config.data.load(root=None, seed=0)
    runs = [
        ts.train(config, output=tmp_path / name, data=part)
        for name, part in {
            "with": data,
            "without": dataclasses.replace(data, val=None),
        }.items()
    ]
    assert "val_accuracy" in runs[0].metrics[0]
    assert "val_accuracy" not in runs[1].metrics[0]
    assert _same(runs[0], runs[1].model.state_dict())


def test_train__keeps_the_best_epoch(
    tmp_path: Path,
    tiny_config: TinyConfig,
    scored: Callable[..., list[dict[str, Tensor]]],
) -> None:
    """The first of equal ones."""
    seen = scored(0.1, 0.5, 0.3, 0.5)
    config = tiny_config("train.epochs=4", "train.keep=best")
    run = ts.train(config, output=tmp_path / "run")
    assert (run.facts.kept_epoch, run.facts.epochs_done) == (2, 4)
    assert _same(run, seen[1])
    assert not _same(run, seen[3])
    again = ts.train(config, output=tmp_path / "run", resume=True)  # evaluates only
    assert (len(seen), again.facts.kept_epoch, _same(again, seen[1])) == (4, 2, True)


@pytest.mark.parametrize("keep", ["last", "best"])
def test_train__stops_early(
    tmp_path: Path,
    tiny_config: TinyConfig,
    scored: Callable[..., list[dict[str, Tensor]]],
    keep: str,
) -> None:
    seen = scored(0.1, 0.5, 0.5, 0.4)
    config = tiny_config("train.epochs=9", "train.patience=2", f"train.keep={keep}")
    for resume in (False, True):  # one that has stopped is not gone on with
        run = ts.train(config, output=tmp_path / "run", resume=resume)
        assert (run.is_finished, run.facts.epochs_done, len(seen)) == (True, 4, 4)
        assert run.facts.kept_epoch == (2 if keep == "best" else None)
        assert _same(run, seen[1 if keep == "best" else 3])


def test_train__best_is_of_the_last_stage(
    tmp_path: Path,
    tiny_config: TinyConfig,
    scored: Callable[..., list[dict[str, Tensor]]],
) -> None:
    seen = scored(0.9, 0.1, 0.3, 0.2, 0.2)
    settings = ("method.name=crt", "method.epochs=5", "train.patience=2")
    config = tiny_config(*settings, "train.keep=best")
    run = ts.train(config, output=tmp_path / "run")
    assert (run.facts.kept_epoch, run.facts.epochs_done) == (3, 5)
    assert _same(run, seen[2])


class _Killed(BaseException):
    """Stands for a kill: nothing in the package handles it."""


@pytest.mark.parametrize(
    "place", ["save_checkpoint", "_append", "_stop_without_progress"]
)
def test_train__killed_beside_the_best_weights_ends_the_same(
    tmp_path: Path,
    tiny_config: TinyConfig,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """Killed in each epoch, once before the best weights have their checkpoint."""
    settings = ("train.epochs=5", "train.keep=best", "train.checkpoint_every=3")
    config = tiny_config(*settings)
    reference = ts.train(config, output=tmp_path / "reference")
    method = getattr(Recorder, place)
    killed: set[int] = set()

    def kill(self: Recorder, *args: Any) -> None:
        if self.epochs_done not in killed:
            killed.add(self.epochs_done)
            raise _Killed
        method(self, *args)

    monkeypatch.setattr(Recorder, place, kill)
    for _ in range(12):
        try:
            run = ts.train(config, output=tmp_path / "run", resume=True)
            break
        except _Killed:
            continue
    assert len(killed) >= 3
    assert run.facts == reference.facts
    assert _same(run, reference.model.state_dict())
    scores = [[m["val_balanced_accuracy"] for m in r.metrics] for r in (run, reference)]
    assert scores[0] == scores[1]


def test_train__best_weights_of_another_epoch(
    tmp_path: Path, tiny_config: TinyConfig
) -> None:
    config = tiny_config("train.keep=best")
    run = ts.train(config, output=tmp_path / "run")
    best = run.directory / BEST
    for path in run.directory.glob("best*"):
        path.unlink()
    with pytest.raises(ValueError, match="must have") as error:
        ts.train(config, output=run.directory, resume=True)
    assert str(error.value) == (
        f"{best} must have the weights of the best epoch, {run.facts.kept_epoch}, "
        "but has not. Start the run again with --force."
    )
    assert ts.train(config, output=run.directory, force=True).is_finished


def test_train__nothing_to_choose_by(tmp_path: Path, tiny_config: TinyConfig) -> None:
    config = tiny_config("train.patience=3")
    data = dataclasses.replace(config.data.load(root=None, seed=0), val=None)
    with pytest.raises(ValueError, match="patience") as error:
        ts.train(config, output=tmp_path / "run", data=data)
    assert str(error.value) == (
        "`train.patience` needs validation images, but is 3 and digits_lt has none. "
        "Drop it, or hold images out with training.with_validation "
        "(data.val_fraction for image folders and lists)."
    )
    assert not (tmp_path / "run").exists()


def test_config__a_last_stage_without_epochs(tiny_config: TinyConfig) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_config("method.name=ncm", "train.keep=best")
    assert error.value.faults == (
        "`train.keep` must be left out, since the last stage of ncm has no epochs to "
        "choose from, but is 'best'.",
    )


def test_train__resumes_a_run_from_before_there_was_a_choice(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "run")
    run = ts.load_run(tmp_path / "run")
    assert (run.config.train.keep, run.config.train.patience) == ("last", None)
    assert "keep" not in storage.read_json(run.directory / "config.json")["train"]
    again = ts.train(run.config, output=run.directory, resume=True)
    assert (again.is_finished, again.facts.kept_epoch) == (True, None)


def test_train__resumed_fetches_no_weights(
    tmp_path: Path, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint fills the network: nothing is trained from scratch."""
    monkeypatch.setattr(
        "tailshift.models.timm_backbone.hub_is_reachable", lambda: False
    )
    settings = ("model.name=timm:test_resnet", "model.pretrained=if_available")
    config = tiny_config(*settings, "train.epochs=1")
    with pytest.warns(UserWarning, match="training from scratch"):
        run = ts.train(config, output=tmp_path / "run")
    assert (run.directory / CHECKPOINT).is_file()
    assert ts.train(config, output=run.directory, resume=True).is_finished
