"""What holds for every registered method."""

import dataclasses

import pytest
import torch

from tailshift import priors
from tailshift.losses import LADELoss, balanced_softmax_loss, lade_loss
from tailshift.methods import LADE, METHODS, BalancedSoftmax, Method, Softmax

COUNTS = torch.tensor([50, 20, 5, 1])


@pytest.fixture(params=METHODS.names())
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS.get(request.param)()


def test_method__is_described(method: Method) -> None:
    assert method.title
    assert method.sentence.endswith(".")
    assert "\n" not in method.sentence
    assert method.citation.isalnum()
    assert method.head


def test_method__settings_have_defaults_and_cannot_change(method: Method) -> None:
    assert (
        method
        == METHODS.get(next(n for n in METHODS if type(method) is METHODS.get(n)))()
    )
    for field in dataclasses.fields(method):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, None)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 0, 0], [3], [1, 1]])
def test_method__loss_and_gradient_are_finite(
    method: Method, labels: list[int]
) -> None:
    """Also for a batch of one and a batch of one class."""
    loss = method.build_loss(COUNTS)
    logits = torch.randn(len(labels), 4, requires_grad=True)
    value = loss(logits, torch.tensor(labels))
    assert value.shape == ()
    value.backward()
    assert torch.isfinite(value)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().sum() > 0


def test_method__trained_prior_is_a_prior(method: Method) -> None:
    prior = method.trained_prior(COUNTS)
    assert prior.dtype == torch.float64
    assert prior.shape == (4,)
    assert (prior > 0).all()
    assert prior.sum().item() == pytest.approx(1, abs=1e-12)


def test_method__permuting_classes_permutes_the_trained_prior(method: Method) -> None:
    order = torch.tensor([2, 0, 3, 1])
    expected = method.trained_prior(COUNTS)[order]
    torch.testing.assert_close(method.trained_prior(COUNTS[order]), expected)


def test_trained_prior__source_or_uniform() -> None:
    torch.testing.assert_close(
        Softmax().trained_prior(COUNTS), priors.from_counts(COUNTS)
    )
    for uniform in (BalancedSoftmax(), LADE()):
        torch.testing.assert_close(uniform.trained_prior(COUNTS), priors.uniform(4))


def test_balanced_softmax__takes_the_source_prior() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 2, 3, 0])
    expected = balanced_softmax_loss(logits, labels, priors.from_counts(COUNTS))
    torch.testing.assert_close(
        BalancedSoftmax().build_loss(COUNTS)(logits, labels), expected
    )


@pytest.mark.parametrize("mode", ["paper", "self_normalised", "official"])
@pytest.mark.parametrize("class_weights", ["source", "uniform"])
def test_lade__settings_reach_the_loss(mode: str, class_weights: str) -> None:
    method = LADE(alpha=0.7, lam=0.3, mode=mode, class_weights=class_weights)  # type: ignore[arg-type] # parametrised
    loss = method.build_loss(COUNTS)
    assert isinstance(loss, LADELoss)
    assert (loss.alpha, loss.lam, loss.mode) == (0.7, 0.3, mode)
    p_s = priors.from_counts(COUNTS)
    alpha_c = p_s if class_weights == "source" else priors.uniform(4)
    logits, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 2, 3, 0])
    expected = lade_loss(
        logits,
        labels,
        p_s,
        alpha=0.7,
        lam=0.3,
        mode=mode,  # type: ignore[arg-type] # parametrised
        class_weights=alpha_c,
    )
    torch.testing.assert_close(loss(logits, labels), expected)


def test_lade__alpha_0_is_balanced_softmax() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 2, 3, 0])
    lade = LADE(alpha=0).build_loss(COUNTS)(logits, labels)
    assert torch.equal(lade, BalancedSoftmax().build_loss(COUNTS)(logits, labels))


def test_method__base_states_nothing() -> None:
    for ask in (Method().build_loss, Method().trained_prior):
        with pytest.raises(NotImplementedError):
            ask(COUNTS)
