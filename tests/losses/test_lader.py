"""LADER against the hand, a double loop and the published formulation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift import priors
from tailshift.losses import lader

MODES = ["paper", "self_normalised", "all_classes", "official"]


@pytest.mark.parametrize(
    ("mode", "t_0", "t_1", "num_classes_counted"),
    [
        ("paper", 1.25, 2.5, 1),
        ("self_normalised", 2.0, 4.0, 1),
        ("all_classes", 1.25, 2.5, 2),
        ("official", 1.25, 10.0, 2),
    ],
)
def test_lader__worked_example(mode, t_0, t_1, num_classes_counted):
    """Two samples of class 0, p_s = (0.8, 0.2), e^f = ((1, 1), (3, 7)).

    - paper: weights p_u/p_s(y_i) = 0.625 for both, so e^T_0 = (1 + 3)/2 · 0.625 = 1.25
      (and e^T_1 = 2.5, but class 1 is absent);
    - self-normalised: the weights sum to 1.25 instead of 2, so e^T_0 = 2;
    - all classes: those of the paper, and the absent class stays with e^T_1 = 2.5;
    - official: the weight of the column, 0.625 and 2.5: e^T_0 = 1.25, and the absent
      class stays with e^T_1 = (1 + 7)/2 · 2.5 = 10.

    The mean of f over class 0 is log(3)/2.
    """
    logits = torch.tensor([[1.0, 1.0], [3.0, 7.0]], dtype=torch.float64).log()
    labels, lam = torch.tensor([0, 0]), 0.5
    t = [math.log(t_0), math.log(t_1)]
    parts = [-math.log(3) / 2 + t[0] + lam * t[0] ** 2, t[1] + lam * t[1] ** 2]
    alpha_c = [0.8, 0.2]
    expected = sum(alpha_c[c] * parts[c] for c in range(num_classes_counted))
    value = lader(logits, labels, [0.8, 0.2], lam=lam, mode=mode)
    assert value.item() == pytest.approx(expected, abs=1e-12)


def _reference_lader(f, y, p_s, *, lam, mode, alpha_c):
    """Equations 15 and 16, term by term."""
    num_samples, num_classes = len(f), len(p_s)
    loss = 0.0
    for c in range(num_classes):
        own = [f[i][c] for i in range(num_samples) if y[i] == c]
        if not own and mode not in ("all_classes", "official"):
            continue
        total = norm = 0.0
        for i in range(num_samples):
            weight = (1 / num_classes) / p_s[c if mode == "official" else y[i]]
            total += weight * math.exp(f[i][c])
            norm += weight if mode == "self_normalised" else 1.0
        t = math.log(total / norm)
        positive = sum(own) / len(own) if own else 0.0
        loss += alpha_c[c] * (-positive + t + lam * t**2)
    return loss


def _numerical_gradient(f, *args, step=1e-5, **kwargs):
    gradient = [[0.0] * len(row) for row in f]
    for i in range(len(f)):
        for c in range(len(f[0])):
            values = []
            for sign in (1, -1):
                moved = [list(row) for row in f]
                moved[i][c] += sign * step
                values.append(_reference_lader(moved, *args, **kwargs))
            gradient[i][c] = (values[0] - values[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weighted", [False, True], ids=["p_s", "class_weights"])
@settings(derandomize=True, deadline=None, max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 20))
def test_lader__agrees_with_the_loop(mode, weighted, seed, num_samples, num_classes):
    g = torch.Generator().manual_seed(seed)
    f = 2 * torch.randn(num_samples, num_classes, generator=g, dtype=torch.float64)
    y = torch.randint(num_classes, (num_samples,), generator=g)
    p_s = torch.rand(num_classes, generator=g, dtype=torch.float64) ** 3 + 1e-3
    p_s /= p_s.sum()
    alpha_c = torch.rand(num_classes, generator=g).double() if weighted else p_s
    reference = {"lam": 0.3, "mode": mode, "alpha_c": alpha_c.tolist()}
    plain = (f.tolist(), y.tolist(), p_s.tolist())

    f.requires_grad_()
    weights = alpha_c if weighted else None
    value = lader(f, y, p_s, lam=0.3, mode=mode, class_weights=weights)
    value.backward()
    assert value.item() == pytest.approx(
        _reference_lader(*plain, **reference), abs=1e-10
    )
    expected = f.new_tensor(_numerical_gradient(*plain, **reference))
    torch.testing.assert_close(f.grad, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 30), (20, 6)])
def test_lader__gradient_is_exact(mode, shape):
    num_samples, num_classes = shape
    f = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    y = torch.randint(num_classes, (num_samples,))
    p_s = priors.from_counts(torch.arange(num_classes) + 1)
    assert torch.autograd.gradcheck(lambda f: lader(f, y, p_s, lam=0.2, mode=mode), f)


def _published_lader(logits, labels, p_s, lam):
    """The authors' code in other words, its 1e-8 and 1e-9 included."""
    num_samples, num_classes = logits.shape
    mask = labels == torch.arange(num_classes)[:, None]  # (C, N)
    positive = (logits.T * mask).sum(1) / (mask.sum(1) + 1e-8)
    weighted = logits - (p_s + 1e-9).log() + math.log(1 / num_classes + 1e-9)
    t = torch.logsumexp(weighted, 0) - math.log(num_samples)
    return -((positive - t - lam * t**2) * p_s).sum()


def test_lader__official_is_the_published_one():
    logits = torch.randn(32, 10, dtype=torch.float64)
    labels = torch.randint(7, (32,))  # three classes are absent
    p_s = priors.from_counts(priors.long_tailed_counts(500, 100, 10))
    value = lader(logits, labels, p_s, lam=0.1, mode="official")
    expected = _published_lader(logits, labels, p_s, lam=0.1)
    assert value.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_lader__permuting_classes_changes_nothing(mode):
    logits = torch.randn(9, 5, dtype=torch.float64)
    labels, p_s = torch.arange(9) % 4, priors.from_counts([50, 20, 10, 5, 1])
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(
        lader(
            logits[:, order], order.argsort()[labels], p_s[order], lam=0.1, mode=mode
        ),
        lader(logits, labels, p_s, lam=0.1, mode=mode),
    )


@pytest.mark.parametrize("mode", MODES)
def test_lader__permuting_samples_changes_nothing(mode):
    logits = torch.randn(9, 40, dtype=torch.float64)
    labels, p_s = torch.arange(9) % 4, priors.from_counts(torch.arange(40) + 1)
    torch.testing.assert_close(
        lader(logits.flip(0), labels.flip(0), p_s, lam=0.1, mode=mode),
        lader(logits, labels, p_s, lam=0.1, mode=mode),
    )


@pytest.mark.parametrize("mode", ["paper", "self_normalised"])
def test_lader__leaves_absent_classes_alone(mode):
    logits = torch.randn(6, 5, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 1, 3])
    lader(logits, labels, priors.uniform(5), lam=0.1, mode=mode).backward()
    assert (logits.grad[:, [2, 4]] == 0).all()


@pytest.mark.parametrize("mode", ["all_classes", "official"])
def test_lader__all_classes_push_absent_ones_down(mode):
    """Gradient descent takes T_c of an absent class towards −1/(2λ)."""
    logits = torch.zeros(6, 5, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 1, 3])
    lader(logits, labels, priors.uniform(5), lam=0.1, mode=mode).backward()
    assert (logits.grad[:, [2, 4]] > 0).all()


@pytest.mark.parametrize("mode", MODES[:-1])
def test_lader__uniform_prior_makes_the_modes_equal(mode):
    """All weights are 1, and every class is in the batch."""
    logits, labels = torch.randn(10, 5, dtype=torch.float64), torch.arange(10) % 5
    torch.testing.assert_close(
        lader(logits, labels, priors.uniform(5), lam=0.1, mode=mode),
        lader(logits, labels, priors.uniform(5), lam=0.1, mode="official"),
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lam": -0.1}, "`lam` must be finite and not negative, but is -0.1."),
        (
            {"lam": math.nan},
            "`lam` must be finite and not negative, but is nan.",
        ),
        (
            {"lam": 0.1, "mode": "offical"},
            "`mode` must be 'paper', 'self_normalised', 'all_classes' or 'official', "
            "but is 'offical'.",
        ),
        (
            {"lam": 0.1, "class_weights": [1.0, 2.0]},
            "`class_weights` must have shape (3,), one for each entry of "
            "`source_prior`, but has shape (2,).",
        ),
        (
            {"lam": 0.1, "class_weights": [1.0, 2.0, -3.0]},
            "`class_weights` must be finite and not negative, but is -3 for class 2.",
        ),
    ],
)
def test_lader__says_what_is_wrong(settings, sentence):
    with pytest.raises(ValueError, match=r"^`") as error:
        lader(torch.zeros(2, 3), torch.tensor([0, 1]), [0.5, 0.3, 0.2], **settings)
    assert str(error.value) == sentence
