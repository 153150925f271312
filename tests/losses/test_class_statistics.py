"""The sums of a batch, and how several processes add them up."""

import pytest
import torch

from tailshift import priors
from tailshift.losses import lader
from tailshift.losses.class_statistics import (
    ClassStatistics,
    class_statistics,
    log_probs_and_statistics,
)
from tailshift.losses.lader import importance_weights, lader_from_statistics


def test_class_statistics__worked_example():
    """Weights 1 and 3 on logits (0, log 2) and (0, log 4): sums 4 and 1·2 + 3·4."""
    logits = torch.tensor([[1.0, 2.0], [1.0, 4.0]]).log()
    log_weights = torch.tensor([1.0, 3.0]).log()
    statistics = class_statistics(logits, torch.tensor([1, 1]), log_weights)
    torch.testing.assert_close(statistics.log_sum_exp.exp(), torch.tensor([4.0, 14.0]))
    torch.testing.assert_close(
        statistics.positive_sums, torch.tensor([0.0, 8.0]).log().clamp(min=0)
    )
    assert statistics.counts.tolist() == [0.0, 2.0]


def _batch(num_samples, num_classes):
    g = torch.Generator().manual_seed(num_samples)
    f = torch.randn(num_samples, num_classes, generator=g, dtype=torch.float64)
    y = torch.randint(num_classes, (num_samples,), generator=g)
    return f.requires_grad_(), y, torch.randn(num_samples, generator=g).double()


@pytest.mark.parametrize("shape", [(4, 20), (12, 3)], ids=["picked", "all"])
def test_class_statistics__agrees_with_torch(shape):
    f, y, log_w = _batch(*shape)
    log_sum_exp, positive_sums, _ = class_statistics(f, y, log_w, is_present_only=True)
    expected = torch.logsumexp(f + log_w[:, None], 0)
    torch.testing.assert_close(log_sum_exp[y], expected[y])
    for c in range(shape[1]):
        torch.testing.assert_close(positive_sums[c], f[y == c, c].sum())


@pytest.mark.parametrize("with_rows", [True, False])
@pytest.mark.parametrize("picked", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (4, 20), (12, 3)])
def test_log_probs_and_statistics__gradient(shape, picked, with_rows):
    f, y, log_w = _batch(*shape)
    log_p_s = torch.rand(shape[1]).double().log() if with_rows else None

    def sums(logits):
        log_probs, statistics = log_probs_and_statistics(
            logits, y, log_p_s, log_w, is_present_only=picked
        )
        return log_probs, *statistics[:2]

    assert torch.autograd.gradcheck(sums, f)


def test_class_statistics__cannot_be_differentiated_twice():
    f, y, log_w = _batch(4, 3)
    value = class_statistics(f, y, log_w).log_sum_exp.square().sum()
    (gradient,) = torch.autograd.grad(value, f, create_graph=True)
    with pytest.raises(RuntimeError) as error:
        gradient.sum().backward()
    assert str(error.value) == (
        "trying to differentiate twice a function that was marked with "
        "@once_differentiable"
    )


@pytest.mark.parametrize(
    "mode", ["paper", "self_normalised", "all_classes", "official"]
)
@pytest.mark.parametrize("num_classes", [3, 40])
def test_class_statistics__two_processes_make_one_batch(mode, num_classes):
    f, y, _ = _batch(10, num_classes)
    p_s = priors.from_counts(torch.arange(num_classes) + 1)
    log_p_s = p_s.log()
    parts = []
    for rows in (slice(0, 4), slice(4, 10)):
        log_w, _ = importance_weights(y[rows], log_p_s, mode=mode)
        parts.append(class_statistics(f[rows], y[rows], log_w))
    first, second = parts
    together = ClassStatistics(
        torch.logaddexp(first.log_sum_exp, second.log_sum_exp),
        first.positive_sums + second.positive_sums,
        first.counts + second.counts,
    )
    split = lader_from_statistics(together, log_p_s, p_s, lam=0.3, mode=mode)
    whole = lader(f, y, p_s, lam=0.3, mode=mode)
    torch.testing.assert_close(split, whole)
    torch.testing.assert_close(
        torch.autograd.grad(split, f), torch.autograd.grad(whole, f)
    )
