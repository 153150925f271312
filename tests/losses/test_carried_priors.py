"""Which prior the logits carry: at log p(x|y) + log p_trained no gradient is left.

The losses are summed over a whole small population, so what is zero is the expected
gradient and not that of a sample.
"""

import pytest
import torch

from tailshift import priors
from tailshift.losses import (
    CrossEntropyLoss,
    LogitAdjustedLoss,
    WeightedCrossEntropyLoss,
    class_balanced_weights,
)
from tailshift.losses.base import as_loss

COUNTS = [300, 40, 6]
P_S = priors.from_counts(COUNTS)
WEIGHTS = class_balanced_weights(COUNTS)


def _expected_gradient(loss, p_trained):
    likelihood = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).double()
    likelihood /= likelihood.sum(0)  # p(x|y) of eight values of x
    f = (likelihood.log() + p_trained.log()).requires_grad_()
    (likelihood * P_S * as_loss(loss).class_losses(f)).sum().backward()
    return f.grad


@pytest.mark.parametrize(
    ("loss", "carried"),
    [
        (CrossEntropyLoss(), P_S),
        (WeightedCrossEntropyLoss(WEIGHTS), P_S * WEIGHTS / (P_S * WEIGHTS).sum()),
        (LogitAdjustedLoss(P_S, tau=0.4), P_S**0.6 / (P_S**0.6).sum()),
        (LogitAdjustedLoss(P_S, tau=1.5), P_S**-0.5 / (P_S**-0.5).sum()),
    ],
    ids=["cross_entropy", "weighted", "logit_adjusted", "logit_adjusted beyond 1"],
)
def test_losses__carry_the_prior_that_is_said(loss, carried):
    gradient = _expected_gradient(loss, carried)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)
    assert _expected_gradient(loss, P_S.flip(0)).abs().max() > 1e-3
