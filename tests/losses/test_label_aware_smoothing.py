"""Smoothing factors, soft labels, and any loss under them."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tailshift import priors
from tailshift.losses import (
    BalancedSoftmaxLoss,
    CrossEntropyLoss,
    FocalLoss,
    LabelAwareSmoothing,
    LADELoss,
    focal_loss,
    label_smoothing_factors,
    lade_ce_loss,
    lader,
    mixup_loss,
    smooth_labels,
    smoothed_loss,
    soft_target_loss,
)

COUNTS = [500, 120, 30, 5]
LOGITS = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3])


@pytest.mark.parametrize(
    ("shape", "middle"),
    [
        ("concave", math.sin(math.pi / 4)),
        ("linear", 0.5),
        ("convex", 1 - math.cos(math.pi / 4)),
    ],
)
def test_label_smoothing_factors__worked_example(shape, middle):
    """Counts 30, 20 and 10: the head, half way and the tail."""
    factors = label_smoothing_factors([30, 20, 10], head=0.5, tail=0.1, shape=shape)
    assert factors.dtype == torch.float64
    assert factors.tolist() == pytest.approx([0.5, 0.1 + 0.4 * middle, 0.1], abs=1e-12)


def test_label_smoothing_factors__follow_the_counts_not_the_order():
    factors = label_smoothing_factors([5, 500, 30])
    assert factors[1] > factors[2] > factors[0]


def test_label_smoothing_factors__equal_counts_and_absent_classes():
    assert label_smoothing_factors([7, 7, 7]).tolist() == pytest.approx([0.1] * 3)
    assert label_smoothing_factors([7, 0]).tolist() == pytest.approx([0.4, 0.1])


def test_smooth_labels__worked_example():
    """ε = 0.3 of three classes: 0.7 stays, 0.15 for each other one."""
    targets = smooth_labels(torch.tensor([1, 0]), [0.0, 0.3, 0.9])
    expected = torch.tensor([[0.15, 0.7, 0.15], [1.0, 0.0, 0.0]]).double()
    torch.testing.assert_close(targets, expected)


def _reference_smoothed(f, y, factors):
    total = 0.0
    for i in range(len(f)):
        log_sum = math.log(sum(math.exp(value) for value in f[i]))
        for c in range(len(f[i])):
            epsilon = factors[y[i]]
            q = 1 - epsilon if c == y[i] else epsilon / (len(f[i]) - 1)
            total += q * (log_sum - f[i][c])
    return total / len(f)


def test_smoothed_loss__agrees_with_the_loop():
    factors = label_smoothing_factors(COUNTS)
    loss = smoothed_loss(CrossEntropyLoss(), LOGITS, LABELS, factors)
    expected = _reference_smoothed(LOGITS.tolist(), LABELS.tolist(), factors.tolist())
    assert loss.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", [CrossEntropyLoss, FocalLoss])
def test_smoothed_loss__is_the_loss_of_soft_labels(loss, reduction):
    factors = label_smoothing_factors(COUNTS)
    targets = smooth_labels(LABELS, factors)
    torch.testing.assert_close(
        smoothed_loss(loss(reduction=reduction), LOGITS, LABELS, factors),
        soft_target_loss(loss(), LOGITS, targets, reduction=reduction),
    )


def test_smoothed_loss__takes_a_function_of_each_sample():
    factors = label_smoothing_factors(COUNTS)
    function = partial(focal_loss, reduction="none")
    torch.testing.assert_close(
        smoothed_loss(function, LOGITS, LABELS, factors).mean(),
        smoothed_loss(FocalLoss(), LOGITS, LABELS, factors),
    )


def test_smoothed_loss__of_balanced_softmax_shifts_the_logits():
    p_s, factors = priors.from_counts(COUNTS), label_smoothing_factors(COUNTS)
    torch.testing.assert_close(
        smoothed_loss(BalancedSoftmaxLoss(p_s), LOGITS, LABELS, factors),
        F.cross_entropy(LOGITS + p_s.log(), smooth_labels(LABELS, factors)),
    )


def test_smoothed_loss__of_lade_leaves_the_regulariser_alone():
    p_s, factors = priors.from_counts(COUNTS), label_smoothing_factors(COUNTS)
    loss = smoothed_loss(LADELoss(p_s, alpha=0.5, lam=0.1), LOGITS, LABELS, factors)
    targets = smooth_labels(LABELS, factors)
    smoothed_ce = F.cross_entropy(LOGITS + p_s.log(), targets)
    regulariser = 0.5 * lader(LOGITS, LABELS, p_s, lam=0.1)
    torch.testing.assert_close(loss, smoothed_ce + regulariser)
    assert smoothed_ce > lade_ce_loss(LOGITS, LABELS, p_s)


def test_smoothed_loss__factors_of_0_change_nothing():
    loss = smoothed_loss(CrossEntropyLoss(), LOGITS, LABELS, torch.zeros(4))
    assert loss == CrossEntropyLoss()(LOGITS, LABELS)


def test_label_aware_smoothing__can_be_mixed_up():
    loss = LabelAwareSmoothing(CrossEntropyLoss(), COUNTS)
    mixed = mixup_loss(loss, LOGITS, LABELS, LABELS.flip(0), 0.3)
    torch.testing.assert_close(
        mixed, 0.3 * loss(LOGITS, LABELS) + 0.7 * loss(LOGITS, LABELS.flip(0))
    )
    assert set(loss.state_dict()) == {"factors"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"head": 1.4}, "`head` must lie in [0, 1], but is 1.4."),
        ({"tail": -0.1}, "`tail` must lie in [0, 1], but is -0.1."),
        (
            {"shape": "round"},
            "`shape` must be 'concave', 'linear' or 'convex', but is 'round'.",
        ),
    ],
)
def test_label_smoothing_factors__say_what_is_wrong(settings, sentence):
    with pytest.raises(ValueError, match=r"^`") as error:
        label_smoothing_factors(COUNTS, **settings)
    assert str(error.value) == sentence


def test_smoothed_loss__says_what_is_wrong():
    with pytest.raises(ValueError, match=r"^`") as error:
        smoothed_loss(CrossEntropyLoss(), LOGITS, LABELS, [0.1, 0.2])
    assert str(error.value) == "`factors` has 2 entries but `logits` has 4 classes."
    with pytest.raises(ValueError, match=r"^`") as error:
        LabelAwareSmoothing(CrossEntropyLoss(), [5])
    assert str(error.value) == (
        "`factors` must be for at least 2 classes, but is for 1."
    )


def test_label_aware_smoothing__over_all_gives_the_label_its_share_too():
    """ε = 0.4 of four classes: 0.6 + 0.1 for the label, 0.1 for each other one."""
    loss = LabelAwareSmoothing(CrossEntropyLoss(), COUNTS, tail=0.4, over_all=True)
    targets = torch.full((7, 4), 0.1, dtype=torch.float64)
    targets[torch.arange(7), LABELS] += 0.6
    torch.testing.assert_close(
        loss(LOGITS, LABELS), F.cross_entropy(LOGITS, targets), atol=1e-12, rtol=0
    )
