"""OLTR's centroid loss against every distance one by one."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift.losses import centroid_loss, centroid_pull
from tailshift.processes import Processes


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
    """The centre loss is left out of the centroids': with it, all is the gradient."""
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    c = 3 * torch.randn(5, 4, dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 2, 4, 4])

    def completed(x, c):
        pull = (x.detach() - c[y]).square().sum(1).mean() / 2
        return centroid_loss(x, y, c, margin=margin) + pull - pull.detach()

    assert torch.autograd.gradcheck(completed, (x, c.requires_grad_()))


def _reference_pull(x, y, c):
    """The update rule of the authors' code, class by class."""
    gradient = [[0.0] * len(c[0]) for _ in c]
    for k, centroid in enumerate(c):
        own = [x[i] for i in range(len(x)) if y[i] == k]
        for d in range(len(centroid)):
            total = sum(centroid[d] - row[d] for row in own)
            gradient[k][d] = total / (1 + len(own)) / len(x)
    return torch.tensor(gradient, dtype=torch.float64)


def test_centroid_pull__gradient_agrees_with_the_loop():
    """Whatever the centre loss counts; the value is 0, and features stay."""
    x = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    c = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 0, 0, 1, 2, 4, 4])
    pull = centroid_pull(x, y, c)
    assert pull.item() == 0
    pull.backward()
    assert x.grad is None
    torch.testing.assert_close(
        c.grad, _reference_pull(x.tolist(), y.tolist(), c.tolist()), rtol=0, atol=1e-14
    )


@dataclass(frozen=True)
class _Two(Processes):
    """One of two processes, which knows the labels that both would gather."""

    gathered: tuple[int, ...] = ()

    def labels(self, labels):
        return torch.tensor(self.gathered)

    def sum(self, values):
        return values.new_tensor(float(sum(y >= 0 for y in self.gathered)))


@pytest.mark.parametrize("parts", [([0, 0, 1], [0, 4, 4]), ([0, 2, 2, 1], [])])
def test_centroid_pull__processes_average_to_the_whole(parts):
    y = parts[0] + parts[1]
    longest = max(map(len, parts))
    gathered = tuple(k for part in parts for k in part + [-1] * (longest - len(part)))
    x, c = torch.randn(len(y), 3).double(), torch.randn(5, 3).double()
    gradients = []
    for rows, part in zip(x.split([len(part) for part in parts]), parts, strict=True):
        own = c.clone().requires_grad_()
        labels = torch.tensor(part, dtype=torch.int64)
        processes = _Two(world_size=2, gathered=gathered)
        centroid_pull(rows, labels, own, processes=processes).backward()
        gradients.append(own.grad)
    expected = _reference_pull(x.tolist(), y, c.tolist())
    torch.testing.assert_close(sum(gradients) / 2, expected, rtol=0, atol=1e-14)


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
