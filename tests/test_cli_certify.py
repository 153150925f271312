"""`tailshift certify`: what it prints, writes and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailshift as ts
from tailshift import Predictions, Run

Command = Callable[..., Any]
HELD, NEW = "held.safetensors", "new.npy"


@pytest.fixture
def samples(tmp_path: Path) -> tuple[Predictions, np.ndarray]:
    """Write held-out logits of three classes, one with a name of markup, and others."""
    torch.manual_seed(3)
    logits = torch.randn(1000, 3).mul(2)
    labels = torch.distributions.Categorical(logits=logits).sample()
    names = ("cat", "<b>dog</b>", "[red]eel")
    held_out = Predictions(logits[:600], labels[:600], class_names=names)
    held_out.save(tmp_path / HELD)
    unlabelled = logits[600:][labels[600:] > 0].numpy()
    np.save(tmp_path / NEW, unlabelled)
    return held_out, unlabelled


def test_certify__prints_a_table_and_writes_json(
    tailshift: Command, samples: tuple[Predictions, np.ndarray]
) -> None:
    result = tailshift("certify", HELD, "--unlabelled", NEW, "-o", "found.json")
    found = ts.certify(*samples)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == (
        f"600 labelled samples held out, {len(samples[1])} unlabelled, 3 classes"
    )
    assert lines[1] == found.reason
    [accuracy] = [line for line in lines if line.strip().startswith("accuracy, %")]
    low, high = (100 * end for end in found.accuracy_interval)
    assert f" {100 * found.accuracy:.1f} ({low:.1f} to {high:.1f})" in accuracy
    kept = json.loads(Path("found.json").read_text())
    assert kept["class_names"] == ["cat", "<b>dog</b>", "[red]eel"]
    assert kept["accuracy"] == found.accuracy
    assert kept["as_trained"]["nll_interval"] == list(found.as_trained.nll_interval)
    assert kept["prior_interval"] == found.prior_interval.tolist()
    assert kept["is_refused"] is False


def test_certify_and_estimate__print_json_and_take_an_estimator(
    tailshift: Command, samples: tuple[Predictions, np.ndarray]
) -> None:
    words = (HELD, "--unlabelled", NEW, "--estimator", "em", "--json")
    certified = json.loads(tailshift("certify", *words).out)
    assert certified["accuracy"] == ts.certify(*samples, estimator="em").accuracy
    estimated = json.loads(tailshift("estimate", *words).out)
    found = ts.adapt(*samples, estimator="em")
    assert estimated["estimated_prior"] == found.estimated_prior.tolist()
    assert (estimated["decision"], estimated["gain"]) == (found.decision, found.gain)
    wrong = tailshift("estimate", *words[:-2], "emm")
    assert (wrong.code, "did you mean 'em'?" in wrong.err) == (2, True)


def test_certify__writes_a_page_without_script_or_network(
    tailshift: Command, samples: tuple[Predictions, np.ndarray]
) -> None:
    words = ("certify", HELD, "--unlabelled", NEW, "--target", "knock_out:cat")
    assert tailshift(*words, "-o", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "&lt;b&gt;dog&lt;/b&gt;" in page
    assert "default-src 'none'" in page
    assert page.count('<svg class="bar"') == 3
    again = tailshift(*words, "-o", "page.html")
    assert (again.code, again.out) == (2, "")


def test_certify__refused_it_gives_no_figure(
    tailshift: Command, samples: tuple[Predictions, np.ndarray]
) -> None:
    torch.manual_seed(1)
    np.save("strange.npy", torch.randn(400, 3).mul(0.3).add(4).numpy())
    words = ("certify", HELD, "--unlabelled", "strange.npy")
    result = tailshift(*words, "-o", "page.html")
    assert result.code == 3
    assert result.out.splitlines()[1:] == [
        "the samples do not look like any mixture of the known classes (p = 0.005): no "
        "figure can be given."
    ]
    page = Path("page.html").read_text()
    assert "<h1>No certificate</h1>" in page
    assert "<table" not in page
    tailshift(*words, "-o", "none.json")
    assert json.loads(Path("none.json").read_text())["accuracy"] is None


@pytest.mark.filterwarnings("ignore::tailshift.estimators.FewSamplesWarning")
def test_certify__a_run_on_its_test_logits(tailshift: Command, digits_run: Run) -> None:
    test = digits_run.directory / "predictions" / "test.safetensors"
    result = tailshift("certify", digits_run.directory, "--unlabelled", test)
    assert result.code == 0
    assert "500 unlabelled, 10 classes" in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("-o", "found.txt", "--unlabelled", NEW),
            "`--output` must end in .html or .json, but is 'found.txt'.",
        ),
        (
            ("--unlabelled", "none.npy"),
            "There is no file none.npy of unlabelled logits.",
        ),
        (
            ("--unlabelled", "."),
            "`unlabelled` . are images, which only the model of a run can judge. "
            "Name a run directory, or give a file of logits.",
        ),
    ],
)
def test_certify__refuses_with_a_sentence(
    tailshift: Command,
    samples: tuple[Predictions, np.ndarray],
    words: tuple[str, ...],
    message: str,
) -> None:
    assert tailshift("certify", HELD, *words) == (2, "", f"error: {message}\n")


def test_certify__help_ends_with_an_example(tailshift: Command) -> None:
    printed = " ".join(tailshift("certify", "--help").out.split())
    assert "Example: tailshift certify runs/digits_lt/lade-seed0" in printed
