"""What a method states: its description, its loss and the prior it carries."""

import dataclasses

import pytest
import torch

from tailshift import priors
from tailshift.losses import (
    LADELoss,
    balanced_softmax_loss,
    class_balanced_weights,
    cross_entropy_loss,
    lade_loss,
    logit_adjusted_loss,
)
from tailshift.methods import (
    BBN,
    CRT,
    LADE,
    LDAM,
    LDAMDRW,
    LWS,
    METHODS,
    NCM,
    BalancedSoftmax,
    CausalNorm,
    ClassBalancedFocal,
    Focal,
    LogitAdjustment,
    Method,
    ResampledSoftmax,
    ReweightedSoftmax,
    Softmax,
    TauNorm,
)

COUNTS = torch.tensor([50, 20, 5, 1])


@pytest.fixture(params=METHODS.names())
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS.get(request.param)()


def test_method__is_described(method: Method) -> None:
    assert method.title
    sentence = METHODS.sentence(METHODS.name_of(type(method)))
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert method.citation.isalnum()
    assert method.prior
    assert method.cost >= 1
    assert all(stage.title for stage in method.stages())


def test_method__settings_have_defaults_and_cannot_change(method: Method) -> None:
    assert method == METHODS.get(METHODS.name_of(type(method)))()
    for field in dataclasses.fields(method):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, None)


def test_method__logit_prior_is_a_prior(method: Method) -> None:
    prior = method.logit_prior(COUNTS)
    assert prior.dtype == torch.float64
    assert prior.shape == (4,)
    assert (prior > 0).all()
    assert prior.sum().item() == pytest.approx(1, abs=1e-12)


def test_method__permuting_classes_permutes_the_logit_prior(method: Method) -> None:
    order = torch.tensor([2, 0, 3, 1])
    expected = method.logit_prior(COUNTS)[order]
    torch.testing.assert_close(method.logit_prior(COUNTS[order]), expected)


@pytest.mark.parametrize(
    "method", [Softmax(), Focal(), LDAM(), CausalNorm(alpha=0), CRT(), LWS()]
)
def test_logit_prior__of_what_was_sampled(method: Method) -> None:
    expected = priors.from_counts(COUNTS)
    torch.testing.assert_close(method.logit_prior(COUNTS), expected)


@pytest.mark.parametrize(
    "method",
    [
        BalancedSoftmax(),
        LADE(),
        BBN(),
        CausalNorm(),
        TauNorm(),
        NCM(),
        LogitAdjustment(),
        ReweightedSoftmax(),
    ],
)
def test_logit_prior__uniform(method: Method) -> None:
    torch.testing.assert_close(method.logit_prior(COUNTS), priors.uniform(4))


def test_logit_prior__of_weights() -> None:
    """∝ n · w: square roots of the counts, or the class-balanced weights."""
    square_root = ReweightedSoftmax(weights="square_root").logit_prior(COUNTS)
    torch.testing.assert_close(square_root, priors.from_counts(COUNTS**0.5))
    weights = class_balanced_weights(COUNTS, beta=0.9)
    expected = priors.from_counts(COUNTS * weights)
    for method in (ClassBalancedFocal(beta=0.9), LDAMDRW(beta=0.9)):
        torch.testing.assert_close(method.logit_prior(COUNTS), expected)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
def test_logit_adjustment__carries_the_rest_of_the_prior(tau: float) -> None:
    """∝ p_s^(1−τ): the source prior, its square root, uniform, its inverse."""
    carried = LogitAdjustment(tau=tau).logit_prior(COUNTS)
    expected = priors.from_counts(COUNTS.double() ** (1 - tau))
    torch.testing.assert_close(carried, expected)


def test_logit_adjustment__in_the_loss_or_post_hoc() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 2, 3, 0])
    p_s = priors.from_counts(COUNTS)
    method = LogitAdjustment(tau=0.5)
    loss = method.build_loss(COUNTS)(logits, labels)
    torch.testing.assert_close(loss, logit_adjusted_loss(logits, labels, p_s, tau=0.5))
    post_hoc = LogitAdjustment(tau=0.5, when="post_hoc")
    loss = post_hoc.build_loss(COUNTS)(logits, labels)
    assert torch.equal(loss, cross_entropy_loss(logits, labels))
    torch.testing.assert_close(post_hoc.logit_prior(COUNTS), p_s)


def test_balanced_softmax__takes_the_source_prior() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 2, 3, 0])
    expected = balanced_softmax_loss(logits, labels, priors.from_counts(COUNTS))
    torch.testing.assert_close(
        BalancedSoftmax().build_loss(COUNTS)(logits, labels), expected
    )


@pytest.mark.parametrize(
    "mode", ["paper", "self_normalised", "all_classes", "official"]
)
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


def test_ldam_drw__weights_come_late() -> None:
    """LDAM until 4/5 of the epochs are done, then weighted, and so to the end."""
    cosines, labels = 2 * torch.rand(6, 4) - 1, torch.tensor([0, 0, 1, 2, 3, 0])
    logits = 30 * cosines
    method = LDAMDRW()
    loss, plain = method.build_loss(COUNTS), LDAM().build_loss(COUNTS)
    for epoch in range(160):
        loss.begin_epoch(epoch, 200)
    assert torch.equal(loss(logits, labels), plain(logits, labels))
    loss.begin_epoch(160, 200)
    plain.set_class_weights(method.class_weights(COUNTS))
    torch.testing.assert_close(loss(logits, labels), plain(logits, labels))
    late = method.build_loss(COUNTS)
    late.begin_epoch(199, 200)  # as a resumed run begins
    assert torch.equal(late(logits, labels), loss(logits, labels))


def test_bbn__share_falls_towards_t_max() -> None:
    """180 epochs with T_max 200, as on iNaturalist: the last has a = 1 − (179/200)²."""
    for method, expected in ((BBN(t_max=200), 0.198975), (BBN(), 1 - (179 / 180) ** 2)):
        head, loss = method.build_head(4, 4), method.build_loss(COUNTS)
        for part in (head, loss):
            part.begin_epoch(179, 180)
            assert part.share == pytest.approx(expected)


def test_class_weights__have_mean_1_over_the_samples() -> None:
    p_s = priors.from_counts(COUNTS)
    for method in (ReweightedSoftmax(), LDAMDRW()):
        assert (p_s * method.class_weights(COUNTS)).sum().item() == pytest.approx(1)


def test_cb_focal__sigmoids_begin_improbable() -> None:
    """The bias is −log(C − 1), so that each class starts near 1/C."""
    head = ClassBalancedFocal(form="sigmoid").build_head(5, 4)
    assert head.state_dict()["bias"].tolist() == pytest.approx([-1.0986123] * 4)
    head = ClassBalancedFocal().build_head(5, 4)
    assert head.state_dict()["bias"].unique().numel() == 4


def test_resampled_softmax__names_its_sampler() -> None:
    [stage] = ResampledSoftmax(sampler="square_root").stages()
    assert stage.samplers == ("square_root",)


def test_method__base_states_nothing() -> None:
    for ask in (Method().build_loss, Method().logit_prior):
        with pytest.raises(NotImplementedError):
            ask(COUNTS)
