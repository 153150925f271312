import itertools
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tailshift import Predictions, evaluate, load_recipe, load_run
from tailshift.evaluation.results import (
    COLUMNS,
    add_results,
    keep_logits,
    read_results,
    result_rows,
    training_command,
)
from tailshift.storage import write_json

RESULTS = Path(__file__).parents[2] / "results"
KEPT = Path(__file__).parents[1] / "data" / "kept"


def test_result_rows__say_where_a_number_comes_from(digits_run):
    uniform, backward = result_rows(digits_run, ["uniform", "backward:10"])
    assert tuple(sorted(uniform)) == tuple(sorted(COLUMNS))
    assert uniform["method"] == digits_run.config.method_name
    assert uniform["target"] == "uniform"
    assert (uniform["num_samples"], uniform["num_effective"]) == ("500", "500")
    assert uniform["subset_hash"] == digits_run.facts.data_fingerprint
    assert 0 <= float(backward["compensated"]) <= 100
    used = sum(record["processor_seconds"] for record in digits_run.metrics)
    assert uniform["processor_minutes"] == f"{used / 60:.1f}"


def test_result_rows__say_the_effective_number_of_samples(digits_run):
    test = digits_run.predictions("test")
    uneven = replace(test, logits=test.logits[10:], labels=test.labels[10:])
    records = evaluate(uneven, ["uniform", "backward:10"])
    rows = result_rows(digits_run, records=records)
    assert [row["num_samples"] for row in rows] == ["490", "490"]
    assert [row["num_effective"] for row in rows] == [
        f"{record.num_effective:.1f}" for record in records[::2]
    ]
    assert float(rows[1]["num_effective"]) < 400


@pytest.mark.parametrize("path", sorted(RESULTS.glob("**/*_lt.csv")))
def test_read_results__that_are_kept(path, digits_run, tmp_path):
    """Some were written before rows had all columns, and take new rows all the same."""
    kept = read_results(path)
    assert len(kept) == len(path.read_text(encoding="utf-8").splitlines()) - 1
    assert {tuple(row) for row in kept} == {COLUMNS}
    grown = tmp_path / "results.csv"
    grown.write_bytes(path.read_bytes())
    added = result_rows(digits_run, ["uniform"])[0] | {"recipe": "mine"}
    add_results(grown, [added])
    assert read_results(grown) == [*kept, added]


def test_read_results__of_version_0_1():
    [row, *_] = read_results(KEPT / "results_v0_1.csv")
    assert (row["num_effective"], row["processor_minutes"]) == ("", "")
    assert row["minutes"] != ""


def test_add_results__replaces_rows_with_the_same_key(digits_run, tmp_path):
    path = tmp_path / "results.csv"
    rows = result_rows(digits_run, ["uniform", "backward:10"])
    add_results(path, rows)
    changed = rows[0] | {"raw": "12.34"}
    add_results(path, [changed])
    assert read_results(path) == [changed, rows[1]]


def test_add_results__keeps_a_run_whose_other_settings_differ(digits_run, tmp_path):
    """A change of the optimiser is another run, though its method is the same."""
    path = tmp_path / "results.csv"
    optim = digits_run.config.optim.model_copy(update={"weight_decay": 0.25})
    config = digits_run.config.model_copy(update={"optim": optim})
    other = replace(digits_run, config=config)
    rows = [result_rows(run, ["uniform"])[0] for run in (digits_run, other)]
    for row in rows:
        add_results(path, [row])
    assert read_results(path) == rows
    assert rows[1]["settings"].endswith(" optim.weight_decay=0.25 train.epochs=2")
    assert len({keep_logits(run, tmp_path) for run in (digits_run, other)}) == 2


def test_read_results__refuses_other_columns(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="columns") as error:
        read_results(path)
    assert str(error.value) == (
        f"{path} must have the columns {', '.join(COLUMNS)}, but has a, b."
    )


def test_keep_logits__halves_what_was_saved(digits_run, tmp_path):
    path = keep_logits(digits_run, tmp_path / "logits")
    assert path.name == "digits_lt-lade-paper-train.epochs2-seed0.safetensors"
    kept, whole = Predictions.load(path), digits_run.predictions("test")
    assert kept.logits.dtype == torch.float16
    torch.testing.assert_close(kept.logits.float(), whole.logits, rtol=1e-3, atol=1e-3)
    assert torch.equal(kept.labels, whole.labels)
    assert kept.class_names == whole.class_names


def test_keep_logits__keeps_whole_what_half_precision_cannot_hold(
    digits_run, tmp_path, monkeypatch
):
    diverged = digits_run.predictions("test")
    diverged = replace(diverged, logits=diverged.logits - 2e7)
    monkeypatch.setattr(type(digits_run), "predictions", lambda *_: diverged)
    kept = Predictions.load(keep_logits(digits_run, tmp_path / "logits"))
    assert torch.equal(kept.logits, diverged.logits)


def test_keep_logits__refuses_a_file_in_place_of_a_folder(digits_run, tmp_path):
    (tmp_path / "logits").touch()
    with pytest.raises(NotADirectoryError) as error:
        keep_logits(digits_run, tmp_path / "logits")
    assert str(error.value) == f"{tmp_path}/logits is a file, but must be a folder."


@pytest.mark.parametrize(
    ("recipe", "overrides", "command"),
    [
        ("digits_lt", [], "tailshift train digits_lt"),
        (
            "digits_lt",
            ["method.name=lade", "method.mode=official", "seed=2"],
            "tailshift train digits_lt --set method.name=lade --set seed=2 "
            "--set method.mode=official",
        ),
        (
            "cifar100_lt_ir100_lade_quick",
            [],
            "tailshift train cifar100_lt_ir100_lade_quick --data-root DIR",
        ),
        (
            "digits_lt",
            ["optim.milestones=[3, 5]", "train.drop_last=true", "data.profile=step"],
            "tailshift train digits_lt --set data.profile=step "
            "--set 'optim.milestones=[3, 5]' --set train.drop_last=true",
        ),
        (
            "cifar100_lt_ir100_lade_quick",
            ["train.ema=none"],
            "tailshift train cifar100_lt_ir100_lade_quick --set train.ema=none "
            "--data-root DIR",
        ),
        (
            "places_lt_lade",  # another network begins without its weights
            ["model.name=timm:resnet50"],
            "tailshift train places_lt_lade --set model.name=timm:resnet50 "
            "--data-root DIR",
        ),
        ("own_images", [], "tailshift train own_images --data folder:PATH"),
        (
            "own_images",
            ["data.name=csv", "data.flip=true"],
            "tailshift train own_images --set data.flip=true --data csv:PATH",
        ),
    ],
)
def test_training_command__names_what_differs_from_the_recipe(
    recipe, overrides, command
):
    config = load_recipe(recipe, overrides)
    assert training_command(config) == command
    assert load_recipe(recipe, _settings(command)) == config


def test_training_command__of_a_file_of_ones_own_is_complete(tmp_path):
    """Every setting is in it: the file may have changed, or be gone."""
    file = tmp_path / "my recipe.toml"
    file.write_text(
        'extends = "cifar100_lt_ir100_lade"\n'
        "[optim]\nmilestones = [3, 5]\n[train]\nprecision = '16-mixed'\n",
        encoding="utf-8",
    )
    config = load_recipe(file, ["seed=1", "method.alpha=0.5"])
    command = training_command(config)
    assert command.startswith("tailshift train 'my recipe.toml' --set data.name=")
    assert command.endswith(" --data-root DIR")
    file.write_text("", encoding="utf-8")
    assert load_recipe(file, _settings(command)) == config


def _settings(command):
    """Return the settings of a command, as a shell would give them to it."""
    words = shlex.split(command)
    settings = [b for a, b in itertools.pairwise(words) if a == "--set"]
    own = [b for a, b in itertools.pairwise(words) if a == "--data"]
    return [*(f"data.name={form.partition(':')[0]}" for form in own), *settings]


def test_result_rows__of_files_that_lack_values(run_copy):
    """Made by another version, or by hand: what is not known is left empty."""
    write_json(run_copy / "environment.json", {"commit": None})
    (run_copy / "metrics.jsonl").write_text(
        '{"epoch": 1}\n{"epoch": 2, "seconds": 3}\n'
    )
    row = result_rows(load_run(run_copy), ["uniform"])[0]
    assert (row["commit"], row["hardware"], row["torch"]) == ("None", "None", "None")
    assert row["minutes"] == ""


HEADING = ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            HEADING + "x" * 200_000,
            "PATH is not a CSV file (field larger than field limit (131072)).",
        ),
        (
            HEADING + "a,b\n",
            f"PATH must have {len(COLUMNS)} values a row, but row 1 has 2.",
        ),
        (
            "\udcff",
            "`PATH` must be text in UTF-8, but byte 0 is not. Save it as UTF-8.",
        ),
    ],
)
def test_read_results__strange_files(content, message, tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=r"results\.csv") as error:
        read_results(path)
    assert str(error.value) == message.replace("PATH", str(path))


def test_add_results__no_formula_reaches_a_spreadsheet(digits_run, tmp_path):
    path = tmp_path / "results.csv"
    row = result_rows(digits_run, ["uniform"])[0] | {"recipe": "=cmd\x1b[31m()"}
    for _ in range(2):  # the row is found again
        add_results(path, [row])
    assert [found["recipe"] for found in read_results(path)] == ["'=cmd\\x1b[31m()"]
