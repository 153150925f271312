"""OLTR's centroid loss against every distance one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift.losses import centroid_loss


def _reference_centroid_loss(x, y, c, *, margin, hinge_weight):
    def squared(a, b):
        return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))

    attract = sum(squared(x[i], c[y[i]]) for i in range(len(x))) / (2 * len(x))
    others = sum(
        squared(x[i], c[k]) for i in range(len(x)) for k in range(len(c)) if k != y[i]
    )
    return attract + hinge_weight * max(0, margin - others / (len(x) * len(c)))


def test_centroid_loss__worked_example():
    """Own distance² 1, the other's 4: ½ · 1 + 0.01 · (10 − 4/2)."""
    loss = centroid_loss(
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([0]),
        torch.tensor([[0.0, 0.0], [1.0, 2.0]]),
    )
    assert loss.item() == pytest.approx(0.58)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 7), st.floats(0.0, 40.0)
)
def test_centroid_loss__agrees_with_the_loop(seed, num_samples, num_classes, margin):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 5, generator=g).double() + 3
    c = torch.randn(num_classes, 5, generator=g).double()
    y = torch.randint(num_classes, (num_samples,), generator=g)
    loss = centroid_loss(x, y, c, margin=margin, hinge_weight=0.3)
    expected = _reference_centroid_loss(
        x.tolist(), y.tolist(), c.tolist(), margin=margin, hinge_weight=0.3
    )
    assert loss.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("margin", [10.0, 1000.0], ids=["far", "near"])
def test_centroid_loss__gradient_of_features_and_centroids(margin):
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    c = 3 * torch.randn(5, 4, dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 2, 4, 4])
    assert torch.autograd.gradcheck(
        lambda x, c: centroid_loss(x, y, c, margin=margin), (x, c.requires_grad_())
    )


def test_centroid_loss__is_exact_far_from_the_origin():
    """The usual ‖x‖² + ‖c‖² − 2xc would leave no digit in float32."""
    x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([0])
    c = torch.tensor([[0.5, 0.0], [0.0, 2.0]])
    torch.testing.assert_close(
        centroid_loss(x + 8192, y, c + 8192), centroid_loss(x, y, c)
    )


def test_centroid_loss__half_precision_is_widened():
    x, c = torch.randn(3, 4), torch.randn(2, 4)
    y = torch.tensor([0, 1, 1], dtype=torch.uint8)
    x_half = x.bfloat16().requires_grad_()
    loss = centroid_loss(x_half, y, c.bfloat16())
    assert loss.dtype == torch.float32
    loss.backward()
    assert x_half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(loss, centroid_loss(x, y, c), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("x", "y", "c", "settings", "sentence"),
    [
        (
            (0, 4),
            0,
            (3, 4),
            {},
            "`features` must have shape (N, D) and not be empty, but has shape (0, 4).",
        ),
        (
            (2, 4),
            3,
            (3, 4),
            {},
            "`labels` must have shape (2,), one for each row of `features`, "
            "but has shape (3,).",
        ),
        (
            (2, 4),
            2,
            (3, 5),
            {},
            "`centroids` must have shape (C, 4), as wide as `features`, "
            "but has shape (3, 5).",
        ),
        (
            (2, 4),
            2,
            (3, 4),
            {"margin": -1.0},
            "`margin` must be finite and not negative, but is -1.0.",
        ),
        (
            (2, 4),
            2,
            (3, 4),
            {"hinge_weight": -1.0},
            "`hinge_weight` must be finite and not negative, but is -1.0.",
        ),
    ],
)
def test_centroid_loss__says_what_is_wrong(x, y, c, settings, sentence):
    labels = torch.zeros(y, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^`") as error:
        centroid_loss(torch.zeros(x), labels, torch.zeros(c), **settings)
    assert str(error.value) == sentence
