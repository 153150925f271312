"""Training in stages: what is kept, what is counted, where a first stage comes from."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tailshift as ts
from tailshift.data import DigitsLT
from tailshift.metrics import class_groups, group_accuracy
from tailshift.models import NormedLinearHead
from tailshift.models.heads import normed_linear
from tailshift.runs.files import CHECKPOINT, WEIGHTS
from tailshift.storage import write_json

TinyConfig = Callable[..., ts.RunConfig]
SECOND = {
    "crt": ("method.epochs=2",),
    "lws": ("method.epochs=2",),
    "tau_norm": (),
    "ncm": (),
}


def _weights(run: ts.Run, prefix: str = "") -> dict[str, Tensor]:
    weights = load_file(run.directory / WEIGHTS)
    return {k: v for k, v in weights.items() if k.startswith(prefix)}


def _assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> ts.Run:
    """Return a finished run of Softmax on the digits; read only."""
    config = ts.load_recipe("digits_lt", ["train.epochs=2"])
    return ts.train(config, output=tmp_path_factory.mktemp("stages") / "softmax")


@pytest.mark.parametrize("method", SECOND)
def test_stages__the_frozen_backbone_is_softmax_s_to_the_last_bit(
    method: str, softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    """Weights and batch statistics, after two stages of two epochs."""
    config = tiny_config(f"method.name={method}", *SECOND[method])
    run = ts.train(config, output=tmp_path / "run")
    backbone = _weights(run, "backbone.")
    assert any("running_mean" in name for name in backbone)
    _assert_equal(backbone, _weights(softmax, "backbone."))
    epochs = [1, 2, 3, 4] if SECOND[method] else [1, 2]
    assert [record["epoch"] for record in run.metrics] == epochs
    assert run.facts.epochs_done == len(epochs)
    assert run.facts.stage == 1


def test_stages__only_what_the_stage_trains_is_changed(
    softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    run = ts.train(tiny_config("method.name=lws"), output=tmp_path / "run")
    head, before = _weights(run, "head."), _weights(softmax, "head.")
    assert torch.equal(head["head.linear.weight"], before["head.weight"])
    assert torch.equal(head["head.linear.bias"], before["head.bias"])
    assert not torch.equal(head["head.scales"], torch.ones(10))


@pytest.mark.parametrize("method", ["lws", "ncm", "tau_norm"])
@pytest.mark.parametrize("what", ["run", "weights"])
def test_start_from__equals_both_stages_in_one_run(
    method: str, what: str, softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    config = tiny_config(f"method.name={method}")
    whole = ts.train(config, output=tmp_path / "whole")
    source = softmax.directory / ("" if what == "run" else WEIGHTS)
    started = ts.train(
        tiny_config(f"method.name={method}", f"train.start_from={source}"),
        output=tmp_path / "started",
    )
    _assert_equal(_weights(started), _weights(whole))
    assert torch.equal(started.predictions().logits, whole.predictions().logits)
    second = [r["loss"] for r in whole.metrics[2:]]
    assert [record["loss"] for record in started.metrics] == second
    assert [r["epoch"] for r in started.metrics] == list(range(1, len(second) + 1))


def test_start_from__a_fresh_classifier_goes_on_the_given_backbone(
    softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    config = tiny_config("method.name=crt", f"train.start_from={softmax.directory}")
    run = ts.train(config, output=tmp_path / "run")
    _assert_equal(_weights(run, "backbone."), _weights(softmax, "backbone."))
    assert not torch.equal(run.model.head.weight, softmax.model.head.weight)


@pytest.mark.parametrize("method", ["ncm", "lws"])
def test_start_from__resumed_before_the_first_checkpoint_is_the_same(
    method: str, softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    """The new head must take over from the run again."""
    config = tiny_config(
        f"method.name={method}", f"train.start_from={softmax.directory}"
    )
    run = ts.train(config, output=tmp_path / "run")
    expected = _weights(run)
    (run.directory / CHECKPOINT).unlink()
    (run.directory / WEIGHTS).unlink()
    run = ts.train(config, output=tmp_path / "run", resume=True)
    _assert_equal(_weights(run), expected)


def _refusal(
    error: type[Exception], tmp_path: Path, config: ts.RunConfig, **settings: object
) -> str:
    with pytest.raises(error) as refused:
        ts.train(config, output=tmp_path / "refused", **settings)  # type: ignore[arg-type] # data
    assert not (tmp_path / "refused" / CHECKPOINT).exists()
    return str(refused.value)


def test_start_from__not_finished(
    softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    source = Path(shutil.copytree(softmax.directory, tmp_path / "source"))
    facts = softmax.facts.model_copy(update={"state": "interrupted"})
    write_json(source / "run.json", facts.model_dump(mode="json"))
    config = tiny_config("method.name=crt", f"train.start_from={source}")
    assert _refusal(ValueError, tmp_path, config) == (
        f"`train.start_from` (--from) {source} must be a finished run, but is "
        "interrupted."
    )


def test_start_from__another_model(
    softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    start = f"train.start_from={softmax.directory}"
    config = tiny_config("method.name=crt", start, "model.name=resnet32")
    assert _refusal(ValueError, tmp_path, config) == (
        f"`train.start_from` (--from) {softmax.directory} must have the model "
        "resnet32, but has digits_net."
    )


def test_start_from__other_images(
    softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    start = f"train.start_from={softmax.directory}"
    config = tiny_config("method.name=crt", start, "data.imbalance_ratio=5")
    assert _refusal(ValueError, tmp_path, config) == (
        f"`train.start_from` (--from) {softmax.directory} must be trained on the same "
        "images, but its class counts differ from those of digits_lt."
    )


def test_start_from__a_method_of_one_stage(
    softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    config = tiny_config("method.name=lade", f"train.start_from={softmax.directory}")
    assert _refusal(ValueError, tmp_path, config) == (
        f"`train.start_from` (--from) {softmax.directory} must be a run on features "
        "(model.frozen=true) with its network, since lade has one stage, but is not. "
        "Drop it, or name such a run."
    )


def test_start_from__nothing_there(tmp_path: Path, tiny_config: TinyConfig) -> None:
    config = tiny_config("method.name=crt", f"train.start_from={tmp_path / 'none'}")
    assert _refusal(FileNotFoundError, tmp_path, config) == (
        "`train.start_from` (--from) must be a run or a file of weights, but there is "
        f"no {tmp_path / 'none'}."
    )


def test_start_from__weights_of_another_network(
    tmp_path: Path, tiny_config: TinyConfig
) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"head.weight": torch.zeros(10, 128)}, path)
    config = tiny_config("method.name=crt", f"train.start_from={path}")
    assert _refusal(ValueError, tmp_path, config) == (
        f"{path} holds the weights of another network than the recipe names."
    )


@pytest.fixture
def seen_by_tau(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Return what τ is chosen on, as it happens."""
    seen = []
    best_tau = normed_linear.best_tau

    def choose(weight: Tensor, features: Tensor, labels: Tensor) -> float:
        seen.append((features, labels))
        return best_tau(weight, features, labels)

    monkeypatch.setattr(normed_linear, "best_tau", choose)
    return seen


def test_tau_norm__tau_is_chosen_on_the_validation_images(
    tmp_path: Path, tiny_config: TinyConfig, seen_by_tau: list[tuple[Tensor, Tensor]]
) -> None:
    run = ts.train(tiny_config("method.name=tau_norm"), output=tmp_path / "run")
    [(features, labels)] = seen_by_tau
    val = run.config.data.load(root=None, seed=0).val
    assert val is not None
    assert torch.equal(labels, val.labels)
    assert run.source_counts[0] == 100  # nothing was held out
    head = run.model.head
    assert isinstance(head, NormedLinearHead)
    logits = run.predictions("val").logits
    torch.testing.assert_close(head(features), logits)


def test_tau_norm__holds_images_out_where_none_are_for_validation(
    tmp_path: Path, tiny_config: TinyConfig, seen_by_tau: list[tuple[Tensor, Tensor]]
) -> None:
    whole = DigitsLT().load(root=None, seed=0)
    assert whole.val is not None
    empty = dataclasses.replace(
        whole.val, images=whole.val.images[:0], labels=whole.val.labels[:0]
    )
    for number, val in enumerate((None, empty)):
        data = dataclasses.replace(whole, val=val)
        settings = ("method.name=tau_norm", "method.tau=held_out", "train.epochs=1")
        config = tiny_config(*settings)
        run = ts.train(config, output=tmp_path / f"run{number}", data=data)
        _, labels = seen_by_tau[number]
        used = run.source_counts
        assert torch.equal(used + labels.bincount(minlength=10), whole.class_counts)
        assert len(labels) < len(whole.test)  # and so are not the test images
        assert run.predictions("val").labels.tolist() == labels.tolist()


def test_tau_norm__is_chosen_on_training_images_without_holding_any_out(
    tmp_path: Path, tiny_config: TinyConfig, seen_by_tau: list[tuple[Tensor, Tensor]]
) -> None:
    data = dataclasses.replace(DigitsLT().load(root=None, seed=0), val=None)
    config = tiny_config("method.name=tau_norm", "train.epochs=1")
    run = ts.train(config, output=tmp_path / "run", data=data)
    [(_, labels)] = seen_by_tau
    assert torch.equal(labels, data.train.labels)
    assert run.source_counts.tolist() == data.class_counts.tolist()


def test_tau_norm__groups_are_those_of_all_training_images(
    tmp_path: Path, tiny_config: TinyConfig
) -> None:
    """Digit 3 has 21 images, so it is no class of few, although 19 are trained on."""
    whole = DigitsLT(imbalance_ratio=100).load(root=None, seed=0)
    data = dataclasses.replace(whole, val=None)
    expected = {k: v.tolist() for k, v in class_groups(data.class_counts).items()}
    settings = ("method.name=tau_norm", "method.tau=held_out", "train.epochs=1")
    run = ts.train(tiny_config(*settings), output=tmp_path / "run", data=data)
    trained = class_groups(run.source_counts)
    assert {k: v.tolist() for k, v in trained.items()} != expected
    assert {k: v.tolist() for k, v in run.groups.items()} == expected
    predictions = run.predictions()
    assert torch.equal(predictions.group_counts, data.class_counts)
    [raw, _] = ts.evaluate(predictions, ["uniform"])
    truly = group_accuracy(predictions.logits, predictions.labels, data.class_counts)
    assert {group: getattr(raw, group) for group in truly} == pytest.approx(
        truly, nan_ok=True
    )


def test_tau_norm__a_given_tau_holds_nothing_out(
    tmp_path: Path, tiny_config: TinyConfig, seen_by_tau: list[tuple[Tensor, Tensor]]
) -> None:
    data = dataclasses.replace(DigitsLT().load(root=None, seed=0), val=None)
    config = tiny_config("method.name=tau_norm", "method.tau=0.7", "train.epochs=1")
    run = ts.train(config, output=tmp_path / "run", data=data)
    assert not seen_by_tau
    assert run.source_counts.tolist() == data.class_counts.tolist()
    assert run.model.head.tau.item() == pytest.approx(0.7)


def test_tau_norm__from_a_run_that_has_trained_on_all_images(
    softmax: ts.Run, tmp_path: Path, tiny_config: TinyConfig
) -> None:
    data = dataclasses.replace(DigitsLT().load(root=None, seed=0), val=None)
    start = f"train.start_from={softmax.directory}"
    config = tiny_config("method.name=tau_norm", "method.tau=held_out", start)
    assert _refusal(ValueError, tmp_path, config, data=data) == (
        "`method.tau` is chosen on validation images, but the data has none that the "
        "first stage did not train on. Set it, such as to 1, or train the first stage "
        "in this run (without --from)."
    )


def test_train__many_classes_without_training_images(
    tmp_path: Path, tiny_config: TinyConfig
) -> None:
    data = DigitsLT().load(root=None, seed=0)
    keep = (data.train.labels < 3).nonzero().flatten()
    lacking = dataclasses.replace(data, train=data.train.subset(keep))
    assert _refusal(ValueError, tmp_path, tiny_config(), data=lacking) == (
        "every class of digits_lt must have a training image, but 3, 4, 5, 6, 7 and 2 "
        "more has none: no method can learn it. Leave the class out."
    )
