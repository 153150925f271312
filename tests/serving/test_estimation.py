"""Unlabelled logits from files, and what a shift in them is worth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tailshift import Predictions
from tailshift.priors import from_counts
from tailshift.serving import Unlabelled, estimate_shift, read_unlabelled

COUNTS = torch.tensor([600, 300, 100])


def _sample(counts: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits for the source prior, of Gaussian clouds, and labels."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    x = rng.normal(size=(len(y), len(counts))) + 1.5 * np.eye(len(counts))[y]
    log_p_s = np.log(COUNTS.numpy() / COUNTS.sum().item())
    return torch.from_numpy(1.5 * x + log_p_s).float(), torch.from_numpy(y)


@pytest.fixture
def held_out() -> Predictions:
    return Predictions(*_sample([300, 150, 50]), COUNTS, from_counts(COUNTS))


def test_estimate_shift__recovers_the_mix_and_most_of_the_gain(
    held_out: Predictions,
) -> None:
    logits, labels = _sample([50, 150, 600], seed=1)
    report = estimate_shift(held_out, Unlabelled(logits, labels))
    assert report.adaptation.is_adapted
    truth = torch.tensor([50, 150, 600]).double() / 800
    torch.testing.assert_close(report.true_prior, truth)
    assert (report.adaptation.estimated_prior - truth).abs().sum() < 0.1
    assert report.adaptation.interval.shape == (2, 3)
    scores = report.accuracies
    assert list(scores) == ["as trained", "estimated", "true"]
    assert scores["estimated"] > scores["as trained"] + 5
    assert abs(scores["estimated"] - scores["true"]) < 1


def test_estimate_shift__accuracy_by_hand(held_out: Predictions) -> None:
    logits, labels = _sample([50, 150, 600], seed=1)
    report = estimate_shift(held_out, Unlabelled(logits, labels))
    assert report.accuracies["as trained"] == pytest.approx(
        100 * (logits.argmax(1) == labels).double().mean().item()
    )


def test_estimate_shift__without_labels_or_shift(held_out: Predictions) -> None:
    report = estimate_shift(held_out, Unlabelled(_sample([600, 300, 100], seed=2)[0]))
    assert report.true_prior is None
    assert report.accuracies == {}
    assert not report.adaptation.is_adapted
    assert torch.equal(report.adaptation.target_prior, report.source_prior)


def test_estimate_shift__source_prior_of_held_out_labels_where_none_is_known() -> None:
    known = Predictions(*_sample([300, 150, 50]))
    report = estimate_shift(known, Unlabelled(*_sample([60, 30, 10], seed=2)))
    expected = torch.tensor([300.5, 150.5, 50.5]).double() / 501.5
    torch.testing.assert_close(report.source_prior, expected)
    torch.testing.assert_close(report.adaptation.target_prior, expected)


def test_estimate_shift__refuses_another_model(held_out: Predictions) -> None:
    with pytest.raises(ValueError, match="classes") as classes:
        estimate_shift(held_out, Unlabelled(torch.zeros(4, 5)))
    assert str(classes.value) == (
        "the unlabelled logits have 5 classes, but the held-out ones have 3. Both must "
        "come from one model."
    )
    other = torch.full((3,), 1 / 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="prior") as prior:
        estimate_shift(held_out, Unlabelled(torch.zeros(4, 3), logit_prior=other))
    assert str(prior.value) == (
        "the unlabelled logits carry another prior than the held-out ones. Both must "
        "come from one model."
    )


def test_read_unlabelled__every_form(tmp_path: Path) -> None:
    logits, labels = _sample([3, 2, 1])
    np.save(tmp_path / "a.npy", logits.numpy())
    np.savez(tmp_path / "b.npz", logits=logits)
    np.savez(tmp_path / "c.npz", probs=logits.softmax(-1))
    np.savez(tmp_path / "d.npz", logits=logits, labels=labels)
    Predictions(logits, labels, COUNTS, from_counts(COUNTS)).save(tmp_path / "e.st")
    found = {path.stem: read_unlabelled(path) for path in tmp_path.iterdir()}
    for name in "abde":
        assert torch.equal(found[name].logits, logits)
    torch.testing.assert_close(found["c"].logits, logits.log_softmax(-1))
    for name in "abc":
        assert found[name].labels is None
    for name in "de":
        assert torch.equal(found[name].labels, labels)
    assert found["e"].logit_prior is not None
    assert found["d"].logit_prior is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"labels": np.zeros(2, int)}, "it does not hold `logits` or `probs`."),
        ({"class_names": np.array(["a"])}, "it does not hold `logits`."),
        (
            {"logits": np.full((2, 2), np.nan)},
            "`logits` must be finite or −inf, but row 0 (from 0) holds nan.",
        ),
    ],
)
def test_read_unlabelled__refuses_a_file(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **content)
    with pytest.raises(ValueError, match="cannot be used") as error:
        read_unlabelled(path)
    assert str(error.value) == f"{path} cannot be used: {message}"


def test_read_unlabelled__refuses_what_is_no_array(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with pytest.raises(FileNotFoundError) as missing:
        read_unlabelled(path)
    assert str(missing.value) == f"There is no file {path} of unlabelled logits."
    path.write_text("text")
    with pytest.raises(ValueError, match="array") as error:
        read_unlabelled(path)
    assert str(error.value) == f"{path} is no .npy array of numbers or is cut short."


def test_read_unlabelled__a_header_that_declares_too_much(tmp_path: Path) -> None:
    """Eighty bytes of a file that claims four terabytes: refused, not allocated."""
    path = tmp_path / "huge.npy"
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 500)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(ValueError, match="npy") as error:
        read_unlabelled(path)
    assert str(error.value) == f"{path} is no .npy array of numbers or is cut short."
