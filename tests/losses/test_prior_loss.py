"""The prior inside a loss module."""

import copy

import numpy as np
import pytest
import torch

from tailshift.losses import BalancedSoftmaxLoss, LADELoss
from tailshift.losses.base import PriorLoss


@pytest.mark.parametrize(
    "prior",
    [[0.75, 0.25], np.array([0.75, 0.25]), torch.tensor([0.75, 0.25])],
    ids=["list", "array", "tensor"],
)
def test_prior_loss__takes_lists_arrays_and_tensors(prior):
    module = PriorLoss(prior)
    assert module.source_prior.tolist() == [0.75, 0.25]
    assert module.source_prior.dtype == torch.float64


def test_prior_loss__keeps_its_prior_in_half_precision():
    tail = 1e-8  # 0 in float16
    loss = LADELoss([1 - tail, tail], alpha=0.1, lam=0.1)
    logits, labels = torch.tensor([[0.5, 2.0]]), torch.tensor([1])
    expected = loss(logits, labels)
    assert loss.half().source_prior.dtype == torch.float64
    assert loss.to(torch.bfloat16)(logits, labels) == expected


def test_prior_loss__moves_and_is_saved():
    loss = LADELoss([0.75, 0.25], alpha=0.1, lam=0.1, class_weights=[1, 2])
    assert set(loss.state_dict()) == {"source_prior", "class_weights"}
    moved = copy.deepcopy(loss).to("meta")
    assert moved.source_prior.device.type == "meta"
    assert moved.class_weights.device.type == "meta"
    other = LADELoss([0.5, 0.5], alpha=0.1, lam=0.1)
    other.load_state_dict(loss.state_dict())
    assert other.source_prior.tolist() == [0.75, 0.25]
    assert other.class_weights.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("make", [BalancedSoftmaxLoss, PriorLoss])
def test_prior_loss__checks_values_once_when_made(make):
    with pytest.raises(ValueError, match=r"^`") as error:
        make([0.5, 0.4])
    assert str(error.value) == (
        "`source_prior` must sum to 1, but sums to 0.9000 (2 classes). "
        "Build it with priors.from_counts(counts)."
    )


def test_prior_loss__refuses_a_class_without_samples():
    with pytest.raises(ValueError, match=r"^`") as error:
        PriorLoss([1.0, 0.0])
    assert str(error.value) == (
        "`source_prior` must be positive for every class, but is 0 for class 1 "
        "(2 classes). Drop the class or give it a sample."
    )
