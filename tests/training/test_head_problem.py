"""The loss of a head over all features, and its minimisation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from tailshift.data import FeatureSplit
from tailshift.losses import BalancedSoftmaxLoss, CrossEntropyLoss, LADELoss
from tailshift.models import CosineHead, LinearHead
from tailshift.training import head_problem
from tailshift.training.head_problem import HeadProblem, Samples
from tailshift.training.weight_decay import DECAYS, choose_decay

COUNTS = (60, 30, 15, 8)
DIM, DECAY = 6, 0.02


PRIOR = torch.tensor(COUNTS).double() / sum(COUNTS)


LOSSES = {
    "softmax": CrossEntropyLoss(),
    "balanced_softmax": BalancedSoftmaxLoss(PRIOR),
    "lade": LADELoss(PRIOR, alpha=0.3, lam=0.05),
    "lade official": LADELoss(PRIOR, alpha=0.3, lam=0.05, mode="official"),
}


def _split(views: int = 1, seed: int = 0) -> FeatureSplit:
    """Return half-precision features of classes that overlap, (views, N, d)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    means = torch.randn(len(COUNTS), DIM, generator=torch.Generator().manual_seed(9))
    noise = torch.randn(views, len(labels), DIM, generator=generator)
    scales = torch.logspace(-1, 1, DIM)
    return FeatureSplit(((means[labels] + noise) * scales + 3).half(), labels)


def _samples(split: FeatureSplit) -> Samples:
    return Samples(split, torch.arange(len(split)), len(COUNTS))


def _whole(split: FeatureSplit) -> tuple[Tensor, Tensor]:
    """Return all views as standardised float64 features, and their labels."""
    x = split.features.double().flatten(0, 1)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    return x, split.labels.repeat(len(split.features))


def _reference_loss(name: str, f: Tensor, y: Tensor) -> Tensor:
    """The losses as the paper writes them, over all samples, with loops."""
    if name == "softmax":
        return F.cross_entropy(f, y)
    loss = F.cross_entropy(f + PRIOR.log(), y)
    if not name.startswith("lade"):
        return loss
    num_classes = f.shape[1]
    for c in range(num_classes):
        weights = 1 / (num_classes * PRIOR[y])
        if name == "lade official":
            weights = torch.full_like(weights, 1 / (num_classes * float(PRIOR[c])))
        t = (weights * f[:, c].exp()).mean().log()
        own = f[y == c, c].mean()
        loss = loss + 0.3 * PRIOR[c] * (t + 0.05 * t**2 - own)
    return loss


def _reference_minimum(
    objective: Callable[[Tensor], Tensor], start: Tensor
) -> tuple[Tensor, float]:
    """Return SciPy's minimiser of a function of float64 variables, and the minimum."""

    def evaluate(values: Any) -> tuple[float, Any]:
        v = torch.from_numpy(values).requires_grad_()
        value = objective(v)
        value.backward()  # type: ignore[no-untyped-call]
        assert v.grad is not None
        return value.item(), v.grad.numpy()

    found = minimize(
        evaluate,
        start.double().flatten().numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9},
    )
    return torch.from_numpy(found.x), float(found.fun)


def test_solve__is_scikit_learns_logistic_regression() -> None:
    split, head = _split(), LinearHead(DIM, len(COUNTS))
    problem = HeadProblem(head, CrossEntropyLoss(), _samples(split))
    problem.solve(DECAY, 300)
    problem.put_back()
    x, y = _whole(split)
    theirs = LogisticRegression(C=1 / (DECAY * len(x)), tol=1e-10, max_iter=10_000)
    theirs.fit(x.numpy(), y.numpy())
    ours = head(split.take(torch.arange(len(split)))).softmax(1).detach()
    torch.testing.assert_close(
        ours, torch.from_numpy(theirs.predict_proba(x)).float(), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("name", ["balanced_softmax", "lade", "lade official"])
@pytest.mark.parametrize("views", [1, 2])
def test_solve__is_the_naive_minimum_over_all_views(name: str, views: int) -> None:
    split, head = _split(views), LinearHead(DIM, len(COUNTS))
    problem = HeadProblem(head, LOSSES[name], _samples(split))
    reached = problem.solve(DECAY, 300)
    x, y = _whole(split)

    def logits(v: Tensor) -> Tensor:
        w, b = v[:-4].view(-1, DIM), v[-4:]
        return x @ w.T + b

    def objective(v: Tensor) -> Tensor:
        penalty = DECAY / 2 * v[: -len(COUNTS)].square().sum()
        return _reference_loss(name, logits(v), y) + penalty

    best, least = _reference_minimum(objective, torch.zeros(len(COUNTS) * (DIM + 1)))
    assert math.isclose(reached, least, rel_tol=1e-3)
    problem.put_back()
    features = split.features.float().flatten(0, 1)
    torch.testing.assert_close(
        head(features).softmax(1).detach(),
        logits(best).softmax(1).float(),
        atol=3e-3,
        rtol=0,
    )


def _directions(split: FeatureSplit) -> tuple[Tensor, Tensor]:
    """Return all views as float64 features of length 1, and their labels."""
    x = F.normalize(split.features.double().flatten(0, 1), dim=1)
    return x, split.labels.repeat(len(split.features))


@pytest.mark.parametrize("most", [2**20, 20 * len(COUNTS)])
def test_head_problem__a_cosine_head_starts_from_the_class_means(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Whatever the chunks; a class without samples keeps the start that it has."""
    monkeypatch.setattr(head_problem, "MOST_LOGITS", most)
    split, head = _split(views=2), CosineHead(DIM, len(COUNTS) + 1, scale=8.0)
    drawn = head.weight.detach().clone()
    samples = Samples(split, torch.arange(len(split)), len(COUNTS) + 1)
    HeadProblem(head, CrossEntropyLoss(), samples)
    x, y = _directions(split)
    means = torch.stack([x[y == c].mean(0) for c in range(len(COUNTS))])
    expected = torch.cat([F.normalize(means, dim=1).float(), drawn[-1:]])
    torch.testing.assert_close(head.weight.detach(), expected)


def test_solve__a_cosine_head_ends_as_low_as_from_drawn_weights() -> None:
    """The start is lower than any of ten drawn ones, and so is the end, or as low."""
    split, head = _split(), CosineHead(DIM, len(COUNTS), scale=8.0)
    x, y = _directions(split)

    def objective(v: Tensor) -> Tensor:
        w = F.normalize(v.double().view(-1, DIM), dim=1)
        return F.cross_entropy(8 * x @ w.T, y)

    problem = HeadProblem(head, CrossEntropyLoss(), _samples(split))
    start = head.weight.detach().clone()
    reached = problem.solve(DECAY, 300)
    drawn = [CosineHead(DIM, len(COUNTS)).weight.detach() for _ in range(10)]
    assert objective(start) < min(map(objective, drawn))
    least = min(_reference_minimum(objective, v)[1] for v in (start, *drawn))
    assert reached <= least * 1.01
    assert math.isclose(reached, float(objective(head.weight.detach())), rel_tol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_solve__does_not_depend_on_the_chunks(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    x, y = _whole(_split())
    split = FeatureSplit(x.float()[None], y)
    f = torch.nn.Linear(DIM, len(COUNTS), dtype=torch.float64)
    expected = _reference_loss(name, f(x), y)
    expected.backward()  # type: ignore[no-untyped-call]
    for most in (2**20, 20 * len(COUNTS)):
        monkeypatch.setattr(head_problem, "MOST_LOGITS", most)
        head = LinearHead(DIM, len(COUNTS))
        problem = HeadProblem(head, LOSSES[name], _samples(split))
        head.weight.data, head.bias.data = f.weight.data.float(), f.bias.data.float()
        loss = problem.accumulate()
        assert math.isclose(loss, expected.item(), rel_tol=1e-5)
        assert f.weight.grad is not None
        torch.testing.assert_close(
            head.weight.grad, f.weight.grad.float(), atol=1e-6, rtol=1e-4
        )


def test_choose_decay__has_the_lowest_loss_of_the_held_out_classes() -> None:
    split = _split()
    rows = torch.arange(len(split))
    held_out, rest = rows[rows % 4 == 0], rows[rows % 4 != 0]
    samples = Samples(split, rest, len(COUNTS))
    log_prior = torch.zeros(len(COUNTS))

    def problem() -> HeadProblem:
        return HeadProblem(LinearHead(DIM, len(COUNTS)), LOSSES["lade"], samples)

    def naive(decay: float) -> float:
        one = problem()
        one.solve(decay, 300)
        one.put_back()
        log_p = one.head(split.take(held_out)).log_softmax(1).detach()
        y = split.labels[held_out]
        return float(np.mean([-log_p[y == c, c].mean() for c in range(len(COUNTS))]))

    chosen = choose_decay(problem(), held_out, log_prior)
    losses = {decay: naive(decay) for decay in DECAYS}
    assert chosen == min(losses, key=losses.__getitem__)
