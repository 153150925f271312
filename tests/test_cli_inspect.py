"""The commands show, runs, list --json and evaluate --json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailshift as ts
from tailshift.metrics import accuracy

Command = Callable[..., Any]


def test_show__a_recipe_with_changes(tailshift: Command) -> None:
    result = tailshift("show", "digits_lt", "--set", "method.name=lade", "--json")
    assert (result.code, result.err) == (0, "")
    settings = {setting["name"]: setting for setting in json.loads(result.out)}
    assert settings["method.alpha"]["value"] == 0.1
    assert settings["method.alpha"]["description"]
    plain = tailshift("show", "digits_lt").out
    assert "optim.lr\t" in plain


def test_show__a_run_has_the_settings_it_was_trained_with(
    tailshift: Command, digits_run: ts.Run
) -> None:
    result = tailshift("show", digits_run.directory, "--json")
    shown = {one["name"]: one["value"] for one in json.loads(result.out)}
    assert shown["train.epochs"] == digits_run.config.train.epochs
    result = tailshift("show", digits_run.directory, "--set", "seed=1")
    assert result.code == 2
    assert "Leave `--set` out" in result.err


def test_runs__lists_state_and_accuracy(tailshift: Command, digits_run: ts.Run) -> None:
    result = tailshift("runs", digits_run.directory.parent, "--json")
    found = {run["directory"]: run for run in json.loads(result.out)}
    shown = found[str(digits_run.directory)]
    predictions = digits_run.predictions("test")
    assert (shown["state"], shown["recipe"]) == ("finished", "digits_lt")
    assert shown["accuracy"] == accuracy(predictions.logits, predictions.labels)
    assert shown["balanced_accuracy"] == pytest.approx(shown["accuracy"])  # balanced
    assert "finished" in tailshift("runs", digits_run.directory.parent).out


def test_runs__without_runs(tailshift: Command) -> None:
    Path("empty").mkdir()
    assert tailshift("runs", "empty") == (
        0,
        "",
        "note: there are no runs in empty. `tailshift train` makes one.\n",
    )
    assert tailshift("runs", "none").err == "error: There is no folder none.\n"


def test_list__filters_by_words_and_prints_json(tailshift: Command) -> None:
    result = tailshift("list", "recipes", "DIGITS", "--json")
    names = [entry["name"] for entry in json.loads(result.out)]
    assert "digits_lt" in names
    assert len(names) < len(json.loads(tailshift("list", "recipes", "--json").out))


def test_evaluate__json_has_every_metric(
    tailshift: Command, digits_run: ts.Run
) -> None:
    result = tailshift(
        "evaluate", digits_run.directory, "--target", "uniform", "--json"
    )
    found = {entry["metric"]: entry for entry in json.loads(result.out)}
    assert found["accuracy"]["target"] == "uniform"
    assert "nll" in found


def test_train__dry_run_prints_the_command_with_short_options(
    tailshift: Command,
) -> None:
    result = tailshift(
        *("train", "digits_lt", "--epochs", "2", "--lr", "0.07", "--batch-size", "16"),
        *("--device", "cpu", "--seeds", "0,1", "-o", "here", "--dry-run"),
    )
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    for setting in ("train.epochs=2", "optim.lr=0.07", "train.batch_size=16"):
        assert f"--set {setting}" in first
    assert "--set seed=1" in second
    assert not Path("here").exists()
