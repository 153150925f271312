"""The paper's two theorems, and focal's, in a world small enough to know all about.

x takes twenty values, y four; p(x|y) > 0 and p_s(y) are ratios of integers. A batch
that holds each pair (x, y) as often as its integer says is the population itself, so
what the losses see are exact expectations and not samples. The logits are a free table.
"""

import pytest
import torch
from torch import Tensor

from tailshift import post_compensate, priors
from tailshift.losses import cross_entropy_loss, lade_loss, lader
from tailshift.methods import METHODS

NUM_VALUES, CLASS_COUNTS = 20, (400, 160, 60, 24)


def _world() -> Tensor:
    """Return how often each pair occurs, shape (20, 4), every entry at least 1."""
    g = torch.Generator().manual_seed(0)
    columns = []
    for count in CLASS_COUNTS:
        weights = torch.rand(NUM_VALUES, generator=g).double() ** 2
        spare = count - NUM_VALUES
        extra = (weights / weights.sum() * spare).floor().long()
        extra[0] += spare - extra.sum()
        columns.append(1 + extra)
    return torch.stack(columns, dim=1)


PAIRS = _world()
P_S = priors.from_counts(PAIRS.sum(0))
P_X_GIVEN_Y = PAIRS.double() / PAIRS.sum(0)  # (20, 4)
X = torch.arange(NUM_VALUES).repeat_interleave(PAIRS.sum(1))
Y = torch.cat([torch.arange(4).repeat_interleave(row) for row in PAIRS])


def _posterior(prior: Tensor) -> Tensor:
    """Return p(y|x) under a class prior, by Bayes' rule (Eq. 3)."""
    joint = P_X_GIVEN_Y * prior
    return joint / joint.sum(1, keepdim=True)


def _minimise(loss) -> Tensor:
    """Return the table of logits (20, 4) with the least loss."""
    table = torch.zeros(NUM_VALUES, 4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [table],
        max_iter=2000,
        tolerance_grad=1e-11,
        tolerance_change=0,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimiser.zero_grad()
        value = loss(table[X])  # (644, 4): one row a member of the population
        value.backward()
        return value

    optimiser.step(closure)
    return table.detach()


def test_world__is_the_population():
    assert len(X) == len(Y) == sum(CLASS_COUNTS)
    assert (PAIRS > 0).all()
    torch.testing.assert_close(priors.from_labels(Y, 4), P_S)


def test_theorem_1__compensated_softmax_is_the_target_posterior():
    logits = _minimise(lambda f: cross_entropy_loss(f, Y))
    torch.testing.assert_close(logits.softmax(1), _posterior(P_S), rtol=0, atol=1e-6)
    g = torch.Generator().manual_seed(1)
    for _ in range(5):
        p_t = torch.rand(4, generator=g).double()
        p_t /= p_t.sum()
        answer = post_compensate(logits, logit_prior=P_S, target_prior=p_t)
        torch.testing.assert_close(
            answer.softmax(1), _posterior(p_t), rtol=0, atol=1e-6
        )


def _disentangled() -> Tensor:
    """Return log p_u(x|y)/p_u(x), Eq. 8."""
    return (P_X_GIVEN_Y / P_X_GIVEN_Y.mean(1, keepdim=True)).log()


@pytest.mark.parametrize("mode", ["paper", "self_normalised"])
@pytest.mark.parametrize("lam", [0.01, 0.5])
def test_theorem_2__lader_disentangles_the_logits(mode, lam):
    logits = _minimise(lambda f: lader(f, Y, P_S, lam=lam, mode=mode))
    torch.testing.assert_close(logits, _disentangled(), rtol=0, atol=1e-3)


def test_theorem_2__holds_for_any_class_weights():
    weights = [0.1, 1.0, 2.0, 0.5]
    logits = _minimise(lambda f: lader(f, Y, P_S, lam=0.1, class_weights=weights))
    torch.testing.assert_close(logits, _disentangled(), rtol=0, atol=1e-3)


def test_theorem_2__terms_of_absent_classes_add_a_constant():
    """Large batches that hold class c with probability P_c, and lack it otherwise.

    Without its own samples a class has no mean to pull it up: on average that is
    (1 − P_c) times the mean. The shape stays, the height is where 1 − P_c + 2λT = 0.
    """
    lam, present = 0.1, torch.tensor([1.0, 0.9, 0.5, 0.2]).double()

    def loss(f):
        own = torch.stack([f[c == Y, c].mean() for c in range(4)])
        value = lader(f, Y, P_S, lam=lam, mode="all_classes")
        return value + (P_S * (1 - present) * own).sum()

    expected = _disentangled() - (1 - present) / (2 * lam)
    torch.testing.assert_close(_minimise(loss), expected, rtol=0, atol=1e-4)


def test_theorem_2__official_mode_stays_entangled():
    logits = _minimise(lambda f: lader(f, Y, P_S, lam=0.1, mode="official"))
    entangled = (4 * _posterior(P_S)).log()
    torch.testing.assert_close(logits, entangled, rtol=0, atol=1e-3)
    assert (logits - _disentangled()).abs().max() > 1


def test_lade__one_table_answers_for_every_prior():
    """LADE-CE and LADER have the same minimum, so LADE has it too (Eq. 17 to 20)."""
    logits = _minimise(lambda f: lade_loss(f, Y, P_S, alpha=0.1, lam=0.1))
    torch.testing.assert_close(logits, _disentangled(), rtol=0, atol=1e-3)
    p_t, uniform = P_S.flip(0), priors.uniform(4)
    answer = post_compensate(logits, logit_prior=uniform, target_prior=p_t)
    torch.testing.assert_close(answer.softmax(1), _posterior(p_t), rtol=0, atol=1e-3)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("focal", {}), ("cb_focal", {}), ("cb_focal", {"form": "sigmoid"})],
)
def test_focal__undone_and_compensated_is_the_target_posterior(name, settings, gamma):
    """The methods' own loss, log posteriors and trained prior; weights of 1 to 12."""
    method = METHODS.get(name)(gamma=gamma, **settings)
    loss = method.build_loss(PAIRS.sum(0))
    logits = _minimise(lambda f: loss(f, Y))
    p_t, carried = P_S.flip(0), method.logit_prior(PAIRS.sum(0))
    for f, is_exact in ((method.log_posteriors(logits), True), (logits, False)):
        answer = post_compensate(f, logit_prior=carried, target_prior=p_t)
        error = (answer.softmax(1) - _posterior(p_t)).abs().max()
        assert (error < 1e-6) if is_exact else (error > 0.02)
