"""Certificates: what is expected without labels, how surely, and when it is refused."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from tailshift import Predictions, certify, post_compensate, priors
from tailshift.estimators import certificate as module
from tailshift.estimators.adaptation import default_estimator
from tailshift.estimators.likelihood import maximise_jointly
from tailshift.estimators.posteriors import Posteriors

FIGURES = ("accuracy", "macro_recall", "ece", "nll")


def _held_out(mixture, num_samples=600, seed=100):
    f, y = mixture.draw(mixture.source_prior, num_samples, seed=seed)
    return Predictions(f, y, (1e6 * mixture.source_prior).long(), mixture.source_prior)


def _mixture(mixture, num_classes=4):
    return mixture(num_classes, imbalance_ratio=5.0, sharpness=1.5)


def test_combined__by_hand():
    """3 of 4 labels are right, posteriors say a half: (3 + 20 · 0.5) / 24."""
    sums, counts = torch.tensor([[[3.0], [0.0]]]), torch.tensor([[4.0, 0.0]])
    by_class = torch.tensor([[[0.5], [0.7]]])
    found = module._combined(sums, counts, by_class, k=20.0)
    torch.testing.assert_close(found, torch.tensor([[[13 / 24], [0.7]]]))


def test_p_value__by_hand():
    """Found is 3 above 0; of 4 replicates only 6.5 is as far from what was found."""
    drawn = torch.tensor([[3.0], [4.0], [2.0], [6.5]]).double()
    deviation = drawn.std(dim=0)
    found = torch.tensor([3.0]).double()
    nothing = torch.zeros(1).double()
    assert module._p_value(found, drawn, nothing) == 2 / 5
    # What labels and posteriors disagree by counts as error: 3 becomes less.
    assert module._p_value(found, drawn, 3 * deviation) == 4 / 5


def _reference(held_out, x, q):
    """Return accuracy, macro recall, ECE, NLL and recalls, sample by sample."""
    f, y = held_out.logits.double(), held_out.labels
    estimator = default_estimator(held_out)
    estimator.fit(f, y)
    p, m = estimator.posterior(x), estimator.posterior(held_out.logits).mean(dim=0)
    trained, k, num_classes = estimator.trained_prior_, 20.0, len(q)
    a, a_h = (
        post_compensate(g.double(), trained_prior=trained, target_prior=q).softmax(1)
        for g in (x, f)
    )
    mass, hits, losses = (torch.zeros(num_classes).double() for _ in range(3))
    gaps = [0.0] * 20
    for i in range(len(x)):
        r = q / m * p[i]
        r = r / r.sum()
        top = int(a[i].argmax())
        gaps[math.ceil(a[i, top].item() * 20) - 1] += (r[top] - a[i, top]).item()
        hits[top] += r[top]
        mass += r
        losses -= r * a[i].log()
    recall, loss = torch.zeros(num_classes).double(), torch.zeros(num_classes).double()
    for c in range(num_classes):
        own = a_h[y == c]
        right = (own.argmax(dim=1) == c).double().sum()
        recall[c] = (right + k * hits[c] / mass[c]) / (len(own) + k)
        loss[c] = (k * losses[c] / mass[c] - own[:, c].log().sum()) / (len(own) + k)
    ece = sum(map(abs, gaps)) / len(x)
    return (q @ recall).item(), recall.mean().item(), ece, (q @ loss).item(), recall


def test_certify__is_the_sum_over_samples(mixture):
    mixture = _mixture(mixture)
    held_out, q = _held_out(mixture), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    x, _ = mixture.draw(q, 300, seed=1)
    found = certify(held_out, x, q, level=0, num_replicates=2)
    *expected, recall = _reference(held_out, x, q)
    values = [getattr(found, name) for name in FIGURES]
    assert values == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(found.recall, recall, rtol=1e-4, atol=1e-5)
    *expected, _ = _reference(held_out, x, mixture.source_prior)
    # As trained, answers are for the source prior, but the target is the same.
    assert found.as_trained.accuracy != pytest.approx(expected[0], rel=1e-3)
    assert found.gain == pytest.approx(found.accuracy - found.as_trained.accuracy)


def test_newton__is_the_step_of_autograd():
    z = torch.randn(30, 3).double().log_softmax(dim=1)
    y = torch.arange(30) % 3

    def losses(x):
        return F.cross_entropy(x[0].exp() * z + x[1:], y, reduction="none")

    start = torch.zeros(4).double()
    scores = torch.autograd.functional.jacobian(losses, start)  # (n, 1 + C)
    hessian = torch.autograd.functional.hessian(lambda x: losses(x).sum(), start)
    hessian[0, 0] -= scores[
        :, 0
    ].sum()  # a is a logarithm: the information is without it
    ridge = torch.diag(torch.tensor([0.01, 1.0, 1.0, 1.0]).double())
    found = module._newton(z, F.one_hot(y, 3).double())
    torch.testing.assert_close(found, -torch.linalg.solve(hessian + ridge, scores.T))


def test_maximise__is_the_joint_likelihood(mixture):
    """One replicate with all weights 1 is what columns with shared posteriors find."""
    mixture = _mixture(mixture)
    held_out = _held_out(mixture)
    x, _ = mixture.draw(priors.uniform(4), 400, seed=1)
    estimator = default_estimator(held_out)
    estimator.fit(held_out.logits, held_out.labels)
    estimator.estimate(x)
    p, p_h = estimator.posterior(x), estimator.posterior(held_out.logits)
    q, m = mixture.source_prior, p_h.mean(dim=0)
    expected = maximise_jointly(
        Posteriors.of(p),
        Posteriors.of(p_h),
        start=q[:, None],
        denominator=m[:, None],
        pseudo_counts=torch.zeros(4, 1).double(),
    ).x[:4, 0]
    weights = module._Weights(
        torch.ones(1, 400), torch.ones(1, 600), torch.zeros(1), torch.zeros(1, 4)
    )
    found, _ = module._maximise(
        p.float()[None], p_h.float()[None], weights, q[None], m[None]
    )
    torch.testing.assert_close(found[0], expected, rtol=0.0, atol=0.01)


def test_certify__a_prior_that_is_known(mixture):
    """It has no interval; the source prior gains nothing, for sure."""
    mixture = _mixture(mixture)
    p_s = mixture.source_prior
    x, _ = mixture.draw(p_s, 300, seed=1)
    found = certify(_held_out(mixture), x, p_s, num_replicates=20)
    torch.testing.assert_close(found.prior_interval, p_s.repeat(2, 1))
    assert (found.gain, found.gain_interval) == (0.0, (0.0, 0.0))
    assert vars(found.as_trained)["accuracy"] == found.accuracy
    by_name = certify(_held_out(mixture), x, "source", num_replicates=20)
    assert by_name.accuracy == pytest.approx(found.accuracy, abs=1e-4)


def test_certify__the_order_of_classes_and_a_constant_do_not_matter(mixture):
    mixture = _mixture(mixture)
    held_out, order = _held_out(mixture), torch.tensor([2, 0, 3, 1])
    x, _ = mixture.draw(priors.uniform(4), 300, seed=1)
    first = certify(held_out, x, num_replicates=20)
    again = certify(
        Predictions(
            held_out.logits[:, order] + 7,
            order.argsort()[held_out.labels],
            held_out.source_counts[order],
            held_out.trained_prior[order],
        ),
        x[:, order] + 7,
        num_replicates=20,
    )
    for name in FIGURES:
        assert getattr(again, name) == pytest.approx(getattr(first, name), abs=1e-3)
    torch.testing.assert_close(again.recall, first.recall[order], rtol=0, atol=2e-3)
    assert again.assumption_p_value == pytest.approx(first.assumption_p_value, abs=0.1)


def test_certify__figures_lie_in_their_intervals(mixture):
    mixture = _mixture(mixture)
    x, y = mixture.draw(priors.uniform(4), 500, seed=1)
    found = certify(_held_out(mixture), x, num_replicates=50)
    for model in (found, found.as_trained):
        for name in FIGURES:
            low, high = getattr(model, f"{name}_interval")
            assert 0 <= low < getattr(model, name) < high
        low, high = model.recall_interval
        assert bool(((low <= model.recall) & (model.recall <= high)).all())
    low, high = found.prior_interval
    assert bool(((low <= found.target_prior) & (found.target_prior <= high)).all())
    answer = post_compensate(
        x, trained_prior=mixture.source_prior, target_prior=found.target_prior
    )
    truth = (answer.argmax(dim=1) == y).double().mean().item()
    assert found.accuracy_interval[0] < truth < found.accuracy_interval[1]
    assert found.reason == (
        "the target looks like a mixture of the source's classes "
        f"(p = {found.assumption_p_value:.2f}): the figures hold as far as it is one."
    )


def test_certify__refuses_an_unseen_class(mixture):
    """A fifth of the target is of a class that the source does not have."""
    mixture = _mixture(mixture)
    held_out = _held_out(mixture)
    x, _ = mixture.draw(priors.uniform(4), 500, seed=1)
    x[:100] = x[:100].roll(1, dims=0) / 5  # far from every mean, and sure of none
    found = certify(held_out, x, num_replicates=100)
    assert found.is_refused
    assert found.assumption_p_value == 1 / 101
    assert found.reason == (
        "the target does not look like any mixture of the source's classes "
        "(p = 0.010): no figure can be given."
    )
    for model in (found, found.as_trained):
        assert all(math.isnan(getattr(model, name)) for name in FIGURES)
        assert bool(model.recall.isnan().all())
    assert bool(found.target_prior.isnan().all())
    kept = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (kept["accuracy"], kept["accuracy_interval"]) == (None, [None, None])
    assert kept["as_trained"]["recall"] == [None] * 4
    assert certify(held_out, x, priors.uniform(4), num_replicates=100).reason == (
        "the target does not look like the given mixture of the source's classes "
        "(p = 0.010): no figure can be given."
    )


def test_certify__one_sample_and_impossible_classes():
    """Logits of −inf and a class without held-out samples leave figures finite."""
    f = torch.tensor([[2.0, 0.0, -torch.inf], [0.0, 2.0, -torch.inf]]).repeat(20, 1)
    held_out = Predictions(f, torch.arange(40) % 2, trained_prior=[0.5, 0.4, 0.1])
    with pytest.warns(UserWarning, match="fewer than 5 samples of 1 of 3 classes"):
        found = certify(held_out, f[:1], level=0, num_replicates=10)
    assert all(math.isfinite(getattr(found, name)) for name in FIGURES)
    assert bool(found.recall.isfinite().all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": 1.0}, "`level` must lie in [0, 1), but is 1."),
        ({"num_replicates": 1}, "`num_replicates` must be at least 2, but is 1."),
        (
            {"target_logits": torch.zeros(3, 2)},
            "`target_logits` has 2 classes, but `held_out` has 3. Both must come from "
            "one model.",
        ),
    ],
)
def test_certify__refuses_settings(settings, message):
    held_out = Predictions(torch.eye(3), torch.arange(3))
    with pytest.raises(ValueError, match=r".") as error:
        certify(**({"held_out": held_out, "target_logits": torch.eye(3)} | settings))
    assert str(error.value) == message


@pytest.mark.slow
def test_certify__covers_and_seldom_cries_wolf(mixture):
    """Of 60 draws, nearly all intervals hold the truth, and few are refused."""
    mixture = _mixture(mixture, num_classes=6)
    covered, refused = 0, 0
    for seed in range(60):
        target = mixture.source_prior[torch.randperm(6)]
        x, _ = mixture.draw(target, 500, seed=2 * seed)
        held_out = _held_out(mixture, 1000, seed=2 * seed + 1)
        found = certify(held_out, x, level=0, num_replicates=99, seed=seed)
        f, y = mixture.draw(target, 10_000, seed=1000 + seed)
        answer = f + found.target_prior.log() - mixture.source_prior.log()
        truth = (answer.argmax(dim=1) == y).double().mean().item()
        low, high = found.accuracy_interval
        covered += low <= truth <= high
        refused += found.assumption_p_value <= 0.05
    assert covered >= 53
    assert refused <= 7
