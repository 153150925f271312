"""Old names work for one release, with a warning that names the new one."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tailshift as ts
from tailshift.estimators import ESTIMATORS
from tailshift.methods import Method

LOGITS, LABELS = torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1])
P = torch.tensor([0.75, 0.25]).double()
OLD: dict[str, Any] = {"trained_prior": P}

CALLS: dict[str, Callable[[], Any]] = {
    "post_compensate": lambda: ts.post_compensate(LOGITS, **OLD, target_prior=P),
    "PostCompensated": lambda: (
        ts.PostCompensated(nn.Identity(), **OLD, target_prior=P).logit_prior
    ),
    "Predictions": lambda: ts.Predictions(LOGITS, LABELS, **OLD).logit_prior,
    "from_probs": lambda: (
        ts.Predictions.from_probs(LOGITS.softmax(1), LABELS, **OLD).logit_prior
    ),
    "PriorShiftClassifier": lambda: (
        ts.sklearn.PriorShiftClassifier(None, **OLD).logit_prior
    ),
    **{
        name: lambda name=name: ESTIMATORS.get(name)(**OLD).logit_prior  # type: ignore[misc]
        for name in ESTIMATORS
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_renamed_arguments__old_name_is_taken_with_a_warning(name: str) -> None:
    with pytest.warns(DeprecationWarning, match="`trained_prior`.*Use `logit_prior`"):
        result = CALLS[name]()
    expected = LOGITS if name == "post_compensate" else P
    assert torch.equal(result, expected)


def test_renamed_attribute__gives_the_new_one_with_a_warning() -> None:
    model = ts.PostCompensated(nn.Identity(), logit_prior=P, target_prior=P)
    for value in (model, ts.Predictions(LOGITS, LABELS, logit_prior=P)):
        with pytest.warns(DeprecationWarning, match="Use `logit_prior`"):
            assert torch.equal(value.trained_prior, P)


def test_post_compensated__reads_a_state_with_the_old_key() -> None:
    model = ts.PostCompensated(nn.Identity(), logit_prior=P, target_prior=P)
    state = model.state_dict()
    extra = state["_extra_state"]
    extra["trained_prior"] = extra.pop("logit_prior").flip(0)
    model.load_state_dict(state)
    assert torch.equal(model.logit_prior, P.flip(0))


def test_predictions__reads_an_archive_with_the_old_key(tmp_path: Any) -> None:
    path = tmp_path / "old.npz"
    np.savez(path, logits=LOGITS, labels=LABELS, trained_prior=P)
    assert torch.equal(ts.Predictions.load(path).logit_prior, P)


def test_method__of_a_plugin_may_state_the_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="Use `logit_prior`"):

        @dataclass(frozen=True)
        class Old(Method):
            def trained_prior(self, class_counts: Tensor) -> Tensor:
                return P

    assert torch.equal(Old().logit_prior(torch.tensor([3, 1])), P)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tailshift.FeatureBank", "tailshift.FeatureCache"),
        ("tailshift.PriorBook", "tailshift.SitePriors"),
        ("tailshift.carried_prior", "tailshift.measure_logit_prior"),
        ("tailshift.features", "tailshift.extract_features"),
        ("tailshift.load", "tailshift.load_run"),
        ("tailshift.estimators.PriorBook", "tailshift.estimators.SitePriors"),
        ("tailshift.data.FeatureBank", "tailshift.data.FeatureCache"),
        ("tailshift.runs.load", "tailshift.runs.load_run"),
        ("tailshift.training.load", "tailshift.training.load_run"),
    ],
)
def test_package__old_names_give_the_new_with_a_warning(old: str, new: str) -> None:
    module, _, name = old.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"`{old}` is deprecated.*`{new}`"):
        value = getattr(import_module(module), name)
    assert value is getattr(import_module(module), new.rpartition(".")[2])


def test_package__dir_shows_public_names_only() -> None:
    assert dir(ts) == sorted([*ts.__all__, "__version__"])
