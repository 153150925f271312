"""A run directory gives back what was trained, and says what it lacks."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tailshift as ts
from tailshift.runs.files import load_weights, save_weights
from tailshift.storage import read_json, write_json


def _test_images(run: ts.Run) -> torch.Tensor:
    """Return the test images as the model takes them: (pixel/255 − mean)/std."""
    data = run.config.data.load(root=None, seed=run.config.seed)
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    return (data.test.images / 255 - mean) / std


def test_run__model_gives_the_saved_logits(digits_run: ts.Run) -> None:
    run = ts.load_run(digits_run.directory)
    assert not run.model.training
    with torch.inference_mode():
        logits = run.model(_test_images(run))
    torch.testing.assert_close(logits, run.predictions("test").logits)


def test_run__predictions_carry_the_priors(digits_run: ts.Run) -> None:
    test, val = digits_run.predictions(), digits_run.predictions("val")
    assert test.logits.shape == (500, 10)
    assert test.class_names == tuple("0123456789") == digits_run.class_names
    assert test.logit_prior is not None
    assert test.source_counts is not None
    assert test.logit_prior.tolist() == [0.1] * 10
    assert test.source_counts.tolist() == [100, 64, 41, 27, 17, 11, 7, 4, 3, 2]
    assert len(val.labels) < len(test.labels)


def test_run__of_focal_gives_log_posteriors(
    tiny_config: Callable[..., ts.RunConfig], tmp_path: Path
) -> None:
    """So does an early run, whose saved logits are as the loss saw them."""
    run = ts.train(tiny_config("method.name=focal"), output=tmp_path / "run")
    images = _test_images(run)
    with torch.inference_mode():
        raw = run.model.head(run.model.backbone(images))
        answered = run.model(images)
    expected = ts.losses.focal_log_posteriors(raw)
    torch.testing.assert_close(answered, expected)
    torch.testing.assert_close(run.predictions().logits, expected)
    path = run.directory / "predictions" / "test.safetensors"
    replace(run.predictions(), logits=raw).save(path, overwrite=True)
    facts = read_json(run.directory / "run.json")
    del facts["log_posteriors"]
    write_json(run.directory / "run.json", facts)
    loaded = ts.load_run(run.directory)
    torch.testing.assert_close(loaded.predictions().logits, expected)
    assert max(ts.export(run, tmp_path / "model.onnx").values()) < 1e-5


def test_run__retarget_is_the_formula(digits_run: ts.Run) -> None:
    p_t = ts.priors.from_counts([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    images = _test_images(digits_run)[:16]
    with torch.inference_mode():
        answered = digits_run.retarget(p_t)(images)
        expected = digits_run.model(images) + p_t.float().log()
    torch.testing.assert_close(answered.softmax(-1), expected.softmax(-1))


@pytest.mark.filterwarnings("ignore::tailshift.estimators.FewSamplesWarning")
def test_run__retarget_adapts_with_the_validation_logits(run_copy: Path) -> None:
    run = ts.load_run(run_copy)
    module = run.retarget(ts.priors.uniform(10))
    images = _test_images(run)[-100:]  # the two rarest digits
    module.adapt(images.split(50))
    logits = run.predictions("test").logits[-100:]
    expected = ts.adapt(run.predictions("val"), logits).target_prior
    torch.testing.assert_close(module.target_prior, expected, atol=1e-4, rtol=0)
    (run_copy / "predictions" / "val.safetensors").unlink()
    assert run.retarget(ts.priors.uniform(10)).estimator is None


def test_run__says_what_was_asked_for_and_what_happened(digits_run: ts.Run) -> None:
    assert digits_run.is_finished
    assert digits_run.config.method_name == "lade"
    assert digits_run.environment["packages"]["tailshift"] == ts.__version__
    assert [record["epoch"] for record in digits_run.metrics] == [1, 2]
    assert list(digits_run.metrics[0]) == [
        "epoch",
        "loss",
        "train_accuracy",
        "lr",
        "seconds",
        "processor_seconds",
        "images_per_second",
        "val_accuracy",
        "val_balanced_accuracy",
        "val_accuracy_medium",
        "val_accuracy_few",
    ]


def test_run__metrics_leave_out_a_line_cut_off(run_copy: Path) -> None:
    whole = ts.load_run(run_copy).metrics
    with (run_copy / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')
    assert ts.load_run(run_copy).metrics == whole
    (run_copy / "metrics.jsonl").unlink()
    assert ts.load_run(run_copy).metrics == []


def test_load__takes_relative_paths(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_copy.parent)
    assert ts.load_run("run").predictions().num_classes == 10
    monkeypatch.chdir(run_copy)
    assert ts.load_run(".").is_finished


def test_load__no_such_folder(tmp_path: Path) -> None:
    path = tmp_path / "nothing"
    with pytest.raises(FileNotFoundError) as error:
        ts.load_run(path)
    assert str(error.value) == f"there is no run directory {path}."
    path.touch()
    with pytest.raises(FileNotFoundError) as error:
        ts.load_run(path)
    assert str(error.value) == f"there is no run directory {path}."


def test_load__not_a_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        ts.load_run(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} is not a run directory: it has no config.json. "
        "`tailshift train` makes one."
    )


def test_load__config_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": "bert", "seed": 0}')
    with pytest.raises(ValueError, match="damaged") as error:
        ts.load_run(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'config.json'} is damaged: "
        f"`data.name` is missing. Known: {', '.join(ts.data.DATASETS)} "
        f"`method.name` is missing. Known: {', '.join(ts.methods.METHODS)} "
        "`model` must be a table of settings, but is 'bert'. "
        "`optim.lr` is missing. "
        "`train.epochs` is missing. `train.batch_size` is missing."
    )


@pytest.mark.parametrize("name", ["config.json", "run.json"])
def test_load__json_cut_off(run_copy: Path, name: str) -> None:
    path = run_copy / name
    path.write_text(path.read_text()[:30])
    with pytest.raises(ValueError, match="JSON") as error:
        ts.load_run(run_copy)
    assert str(error.value).startswith(f"{path} is not valid JSON (")
    path.write_text("[]")
    with pytest.raises(ValueError, match="JSON") as error:
        ts.load_run(run_copy)
    assert str(error.value) == f"{path} must hold a JSON object, but does not."


def test_load__without_facts(run_copy: Path) -> None:
    (run_copy / "run.json").unlink()
    with pytest.raises(FileNotFoundError) as error:
        ts.load_run(run_copy)
    assert str(error.value) == (
        f"{run_copy} was cut off before training began: it has no run.json. "
        f"Resume with `tailshift train --resume --output {run_copy}`."
    )


def test_load__with_facts_missing(run_copy: Path) -> None:
    facts = read_json(run_copy / "run.json")
    del facts["state"], facts["class_names"]
    write_json(run_copy / "run.json", facts)
    with pytest.raises(ValueError, match="damaged") as error:
        ts.load_run(run_copy)
    assert str(error.value) == (
        f"{run_copy / 'run.json'} is damaged: it lacks class_names, state. "
        "Train the run again with --force."
    )


def test_run__facts_are_typed_and_keep_what_they_do_not_know(run_copy: Path) -> None:
    path = run_copy / "run.json"
    written = read_json(path) | {"site": "north"}
    write_json(path, written)
    run = ts.load_run(run_copy)
    assert json.loads(run.facts.model_dump_json(exclude_unset=True)) == written
    assert run.source_counts.tolist() == written["source_counts"]
    torch.testing.assert_close(
        run.source_prior, run.source_counts / run.source_counts.sum().double()
    )
    assert run.logit_prior.tolist() == pytest.approx([0.1] * 10)  # LADE's
    assert torch.cat(list(run.groups.values())).sort().values.tolist() == list(
        range(10)
    )


def test_run__model_first_asked_for_in_inference_mode(run_copy: Path) -> None:
    run = ts.load_run(run_copy)
    with torch.inference_mode():
        model = run.model
    assert not any(weight.is_inference() for weight in model.state_dict().values())


def test_run__retargets_to_a_name(digits_run: ts.Run) -> None:
    model = digits_run.retarget("backward:10")
    expected = ts.priors.from_counts(10.0 ** torch.linspace(0, 1, 10).double())
    torch.testing.assert_close(model.target_prior.sort().values, expected)
    assert model.target_prior.argmin() == digits_run.source_counts.argmax()
    model.set_target_prior("source")
    assert torch.equal(model.target_prior, digits_run.source_prior)


def test_run__without_weights(run_copy: Path) -> None:
    (run_copy / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError) as error:
        _ = ts.load_run(run_copy).model
    assert str(error.value) == (
        f"{run_copy} has no weights yet. Finish it with "
        f"`tailshift train --resume --output {run_copy}`."
    )


def test_run__with_weights_cut_off(run_copy: Path) -> None:
    path = run_copy / "weights.safetensors"
    os.truncate(path, 1000)
    with pytest.raises(ValueError, match="whole") as error:
        _ = ts.load_run(run_copy).model
    assert str(error.value).startswith(f"{path} is not a whole safetensors file (")


def test_run__with_other_weights(run_copy: Path) -> None:
    path = run_copy / "weights.safetensors"
    save_weights(path, nn.Linear(2, 2))
    with pytest.raises(ValueError, match="another network") as error:
        _ = ts.load_run(run_copy).model
    assert str(error.value) == (
        f"{path} holds the weights of another network than the recipe names."
    )


def test_run__without_predictions(run_copy: Path) -> None:
    (run_copy / "predictions" / "test.safetensors").unlink()
    with pytest.raises(FileNotFoundError) as error:
        ts.load_run(run_copy).predictions()
    assert str(error.value) == (
        f"{run_copy} has no logits of split 'test', only of: val. Finish it with "
        f"`tailshift train --resume --output {run_copy}`."
    )


def test_run__with_predictions_cut_off(run_copy: Path) -> None:
    path = run_copy / "predictions" / "test.safetensors"
    os.truncate(path, 1000)
    with pytest.raises(ValueError, match="cut short") as error:
        ts.load_run(run_copy).predictions()
    assert str(error.value) == f"{path} is no safetensors file or is cut short."


def test_run__quotes_a_path_with_spaces(run_copy: Path) -> None:
    moved = run_copy.rename(run_copy.parent / "my run")
    (moved / "run.json").unlink()
    with pytest.raises(FileNotFoundError) as error:
        ts.load_run(moved)
    assert str(error.value).endswith(f"`tailshift train --resume --output '{moved}'`.")


def test_save_weights__of_a_network_that_shares_some(tmp_path: Path) -> None:
    shared = nn.Linear(3, 3)
    save_weights(tmp_path / "w.safetensors", nn.Sequential(shared, shared))
    other = nn.Linear(3, 3)
    load_weights(tmp_path / "w.safetensors", nn.Sequential(other, other))
    assert torch.equal(shared.weight, other.weight)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"class_names": 3}, "`class_names` must be a valid tuple, but is 3"),
        ({"class_names": []}, "`class_names` must have at least 1 entries, but is []"),
        (
            {"in_channels": 10**9, "image_size": "8"},
            "`in_channels` must be at most 1048576, but is 1000000000 and `image_size` "
            "must be a valid integer, but is '8'",
        ),
        ({"image_size": 0}, "`image_size` must be at least 1, but is 0"),
        ({"image_size": 60_000}, "`image_size` must be at most 2048, but is 60000"),
        (
            {"preparation": {"image_size": 60_000}},
            "`preparation` must be a preparation (`image_size` must be in 1..2048, but "
            "is 60000), but is {'image_size': 60000}",
        ),
        (
            {"class_names": ["kea"] * 10},
            "`class_names` must be names that differ, but is ['kea', 'kea', 'kea', "
            "'kea', 'kea', 'kea', ...]",
        ),
        (
            {"source_counts": [1, 2]},
            "`source_counts` must be 10 counts, not all 0, but is [1, 2]",
        ),
        (
            {"source_counts": [0] * 10},
            "`source_counts` must be 10 counts, not all 0, but is "
            "[0, 0, 0, 0, 0, 0, ...]",
        ),
        ({"full_counts": [1]}, "`full_counts` must be 10 counts, but is [1]"),
        (
            {"mean": [0.5, 0.5]},
            "`mean` must be one number per channel (1), or one for all, but is "
            "[0.5, 0.5]",
        ),
        ({"mean": [math.nan]}, "`mean.0` must be a finite number, but is nan"),
        ({"mean": [math.inf]}, "`mean.0` must be a finite number, but is inf"),
        ({"std": "0.5"}, "`std` must be a valid tuple, but is '0.5'"),
        ({"std": [0.0]}, "`std.0` must be greater than 0, but is 0.0"),
        ({"std": [math.nan]}, "`std.0` must be a finite number, but is nan"),
        ({"epochs_done": None}, "`epochs_done` must be a valid integer, but is None"),
        ({"stage": 5}, "`stage` must be less than 1, but is 5"),
    ],
)
def test_load__with_facts_that_cannot_be(
    run_copy: Path, changes: dict[str, object], named: str
) -> None:
    path = run_copy / "run.json"
    write_json(path, read_json(path) | changes)
    with pytest.raises(ValueError, match="damaged") as error:
        ts.load_run(run_copy)
    assert str(error.value) == (
        f"{path} is damaged: {named}. Train the run again with --force."
    )


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"val_balanced_accuracy": 1}', "`epoch` is missing"),
        ('{"epoch": 0}', "`epoch` must be at least 1, but is 0"),
        (
            '{"epoch": 1, "skipped_images": "x"}',
            "`skipped_images` must be a valid integer, but is 'x'",
        ),
        (
            '{"epoch": 1, "val_balanced_accuracy": NaN}',
            "`val_balanced_accuracy` must be a finite number, but is nan",
        ),
        (
            '{"epoch": 1, "seconds": "3"}',
            "`seconds` must be a valid number, but is '3'",
        ),
        (
            '{"epoch": 1, "processor_seconds": "3"}',
            "`processor_seconds` must be a valid number, but is '3'",
        ),
    ],
)
def test_run__with_strange_metrics(run_copy: Path, line: str, fault: str) -> None:
    path = run_copy / "metrics.jsonl"
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match="damaged") as error:
        _ = ts.load_run(run_copy).metrics
    assert str(error.value) == (
        f"{path} is damaged: in line 3 {fault}. Train the run again with --force."
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"packages": []}, "`packages` must be a valid dictionary, but is []"),
        (
            {"packages": {"torch": 2}},
            "`packages.torch` must be a valid string, but is 2",
        ),
        (
            {"packages": {"a\nb": 2}},
            "`'packages.a\\nb'` must be a valid string, but is 2",
        ),
        ({"commit": 7}, "`commit` must be a valid string, but is 7"),
    ],
)
def test_run__with_a_strange_environment(
    run_copy: Path, content: dict[str, object], fault: str
) -> None:
    path = run_copy / "environment.json"
    write_json(path, content)
    with pytest.raises(ValueError, match="damaged") as error:
        _ = ts.load_run(run_copy).environment
    assert str(error.value) == (
        f"{path} is damaged: {fault}. Train the run again with --force."
    )


@pytest.mark.parametrize("line", ["{", "3", "[" * 100_000])
def test_run__with_damaged_metrics(run_copy: Path, line: str) -> None:
    path = run_copy / "metrics.jsonl"
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match="damaged") as error:
        _ = ts.load_run(run_copy).metrics
    assert str(error.value) == f"{path} is damaged: line 3 is not a JSON object."
    path.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="UTF-8") as error:
        _ = ts.load_run(run_copy).metrics
    assert str(error.value) == (
        f"`{path}` must be text in UTF-8, but byte 0 is not. Save it as UTF-8."
    )
