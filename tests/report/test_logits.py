"""Logits made elsewhere become runs, with a name, a seed and a prior."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report.runs import is_logits_file, run_from_logits


def _save(path: Path, **fields: object) -> Path:
    arrays = {"logits": np.eye(3, dtype=np.float32), "labels": np.arange(3)}
    np.savez(path, **(arrays | fields))
    return path


def test_run_from_logits__named_after_the_file(tmp_path: Path) -> None:
    path = _save(tmp_path / "gradient boosting.npz")
    run = run_from_logits(path)
    assert (run.method, run.seed, run.name) == ("gradient boosting", 0, str(path))
    assert run.predictions.logits.tolist() == torch.eye(3).tolist()
    assert run.predictions.logit_prior is None


def test_run_from_logits__name_and_seed(tmp_path: Path) -> None:
    path = _save(tmp_path / "forest-seed12.npz")
    assert run_from_logits(path).method == "forest"
    run = run_from_logits(f"My = model={path}")
    assert (run.method, run.seed) == ("My = model", 12)
    odd = _save(tmp_path / "a=b.npz")
    assert run_from_logits(str(odd)).method == "a=b"  # the file, as it is named


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("source", [0.5, 0.25, 0.25]), ("uniform", [1 / 3] * 3), (None, None)],
)
def test_run_from_logits__prior_where_the_file_has_none(
    tmp_path: Path, asked: str | None, expected: list[float] | None
) -> None:
    path = _save(tmp_path / "a.npz", source_counts=np.array([2, 1, 1]))
    prior = run_from_logits(path, logit_prior=asked).predictions.logit_prior
    assert (None if prior is None else prior.tolist()) == expected


def test_run_from_logits__the_file_knows_better(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    prior = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    Predictions(torch.eye(3), torch.arange(3), logit_prior=prior).save(path)
    run = run_from_logits(path, logit_prior="uniform")
    assert run.predictions.logit_prior.tolist() == prior.tolist()


def test_run_from_logits__no_counts_to_take_the_prior_from(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="source_counts") as error:
        run_from_logits(path, logit_prior="source")
    assert str(error.value) == (
        "`logit_prior` 'source' is the prior of the training set, but "
        f"{path} holds no `source_counts`. Add them to the file."
    )


def test_is_logits_file(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.npz")
    assert is_logits_file(str(path))
    assert is_logits_file(f"My model={path}")
    assert not is_logits_file(str(tmp_path))
    assert is_logits_file(f"My model={tmp_path / 'missing.npz'}")
    assert not is_logits_file(str(tmp_path / "missing"))
