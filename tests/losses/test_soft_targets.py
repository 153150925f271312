"""Soft targets are expectations over labels."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tailshift import priors
from tailshift.losses import (
    CrossEntropyLoss,
    FocalLoss,
    LADELoss,
    SoftTargetLoss,
    cross_entropy_loss,
    focal_loss,
    soft_target_loss,
)

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
TARGETS = torch.rand(6, 4, generator=torch.Generator().manual_seed(1)).double()
TARGETS /= TARGETS.sum(1, keepdim=True)


def _reference_soft(loss, logits, targets):
    losses = []
    for f, q in zip(logits, targets, strict=True):
        each = [loss(f[None], torch.tensor([c])).item() for c in range(len(q))]
        losses.append(sum(q[c].item() * each[c] for c in range(len(q))))
    return logits.new_tensor(losses)


def test_soft_target_loss__worked_example():
    """Targets ½, ½ on logits log 3 and 0: ½ log 4/3 + ½ log 4."""
    logits = torch.tensor([[3.0, 1.0]]).log()
    loss = soft_target_loss(CrossEntropyLoss(), logits, torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(loss, torch.tensor([4 / 3, 4.0]).log().mean())


def test_soft_target_loss__of_cross_entropy_is_torchs():
    torch.testing.assert_close(
        soft_target_loss(CrossEntropyLoss(), LOGITS, TARGETS),
        F.cross_entropy(LOGITS, TARGETS),
    )


@pytest.mark.parametrize(
    "loss",
    [FocalLoss(), partial(focal_loss, reduction="none")],
    ids=["closed form", "repeated rows"],
)
def test_soft_target_loss__agrees_with_the_loop(loss):
    losses = soft_target_loss(loss, LOGITS, TARGETS, reduction="none")
    expected = _reference_soft(focal_loss, LOGITS, TARGETS)
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(SoftTargetLoss(loss)(LOGITS, TARGETS), expected.mean())


def test_soft_target_loss__of_hard_targets_is_the_loss():
    labels = torch.arange(6) % 4
    torch.testing.assert_close(
        soft_target_loss(FocalLoss(), LOGITS, F.one_hot(labels, 4)),
        focal_loss(LOGITS, labels),
    )


def test_soft_target_loss__says_what_is_wrong():
    with pytest.raises(ValueError, match=r"^`") as error:
        soft_target_loss(CrossEntropyLoss(), LOGITS, TARGETS[:, :3])
    assert str(error.value) == (
        "`targets` must have shape (6, 4), but has shape (6, 3)."
    )
    with pytest.raises(ValueError, match=r"^`") as error:
        soft_target_loss(cross_entropy_loss, LOGITS, TARGETS)
    assert str(error.value) == (
        "`loss` must give one value per sample, but gave shape () for 24. "
        "Make it with reduction='none'."
    )
    with pytest.raises(TypeError) as kind:
        soft_target_loss(
            LADELoss(priors.uniform(4), alpha=0.1, lam=0.1), LOGITS, TARGETS
        )
    assert str(kind.value) == (
        "`loss` must be a mean over samples, but LADELoss looks at the whole batch. "
        "Use mixup_loss or smoothed_loss."
    )
