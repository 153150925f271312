"""What holds for every estimator: kinds, streams, symmetries, odd data, sentences."""

import warnings

import numpy as np
import pytest
import torch

import tailshift as ts
from tailshift import priors
from tailshift.estimators import (
    ESTIMATORS,
    FewSamplesWarning,
    TiltEstimator,
    adapt,
    certify,
)

ALL = [ESTIMATORS.get(name) for name in ESTIMATORS]
pytestmark = pytest.mark.parametrize("estimator", ALL)


def _fit(estimator, mixture, num_held_out=400, **settings):
    f, y = mixture.draw(mixture.source_prior, num_held_out, seed=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)
        return estimator(source_prior=mixture.source_prior, **settings).fit(f, y)


def _check(q, num_classes):
    assert q.shape == (num_classes,)
    assert q.dtype == torch.float64
    assert q.isfinite().all()
    assert (q >= 0).all()
    assert q.sum().item() == pytest.approx(1, abs=1e-9)


def test_estimate__recovers_the_target(estimator, mixture):
    mixture = mixture(4)
    target = priors.from_counts([1, 2, 2, 3])
    f, y = mixture.draw(mixture.source_prior, 4000, seed=100)
    q = estimator().fit(f, y).estimate(mixture.draw(target, 3000, seed=1)[0])
    _check(q, 4)
    tolerance = 0.35 if estimator is TiltEstimator else 0.12  # the target is no tilt
    assert (q - target).abs().sum() < tolerance


def test_estimate__knows_which_prior_the_logits_carry(estimator, mixture):
    mixture = mixture(4)
    source, other = mixture.source_prior, priors.from_counts([1, 5, 2, 2])
    f, y = mixture.draw(source, 400, seed=100)
    x, _ = mixture.draw(priors.uniform(4), 400, seed=1)
    change = {"logit_prior": source, "target_prior": other}
    plain = estimator(logit_prior=source, source_prior=source).fit(f, y)
    moved = estimator(logit_prior=other, source_prior=source)
    moved.fit(ts.post_compensate(f, **change), y)
    q = moved.estimate(ts.post_compensate(x, **change))
    torch.testing.assert_close(q, plain.estimate(x), rtol=0, atol=1e-5)


def test_estimate__numpy_in_numpy_out(estimator, mixture):
    mixture = mixture(4)
    fitted = _fit(estimator, mixture)
    x, _ = mixture.draw(priors.uniform(4), 200, seed=1)
    by_tensor = fitted.estimate(x)
    by_array = _fit(estimator, mixture).estimate(x.numpy())
    assert isinstance(by_array, np.ndarray)
    assert by_array.dtype == np.float64
    np.testing.assert_array_equal(by_array, by_tensor)


def test_estimate__streams_are_as_arrays(estimator, mixture, tmp_path, monkeypatch):
    mixture = mixture(4)
    x, _ = mixture.draw(priors.uniform(4), 300, seed=1)
    whole = _fit(estimator, mixture).estimate(x)
    monkeypatch.setattr("tailshift.estimators.posteriors.BLOCK_ELEMENTS", 4 * 64)
    chunks = _fit(estimator, mixture).estimate(part for part in x.split(70))
    torch.testing.assert_close(chunks, whole, rtol=0, atol=1e-6)
    fitted = _fit(estimator, mixture)
    monkeypatch.setattr("tailshift.estimators.posteriors.EXACT_ELEMENTS", 0)
    monkeypatch.setattr("tailshift.estimators.posteriors.KEPT_ELEMENTS", 0)
    on_disk = fitted.estimate(part.numpy() for part in x.split(70))
    np.testing.assert_allclose(on_disk, whole, atol=1e-4)
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    made_anew = _fit(estimator, mixture).estimate(mapped)
    np.testing.assert_allclose(made_anew, whole, atol=1e-4)


def test_estimate__permuting_classes_permutes_the_result(estimator, mixture):
    mixture = mixture(4)
    order = torch.tensor([2, 0, 3, 1])
    f, y = mixture.draw(mixture.source_prior, 400, seed=100)
    x, _ = mixture.draw(priors.uniform(4), 300, seed=1)
    plain = estimator(source_prior=mixture.source_prior).fit(f, y).estimate(x)
    permuted = estimator(source_prior=mixture.source_prior[order])
    permuted.fit(f[:, order], order.argsort()[y])
    torch.testing.assert_close(
        permuted.estimate(x[:, order]), plain[order], rtol=0, atol=1e-5
    )


def test_estimate__changes_no_input(estimator, mixture):
    mixture = mixture(3)
    f, y = mixture.draw(mixture.source_prior, 200, seed=100)
    x, _ = mixture.draw(priors.uniform(3), 100, seed=1)
    copies = [t.clone() for t in (f, y, x)]
    _ = estimator().fit(f, y).estimate(x)
    assert all(torch.equal(a, b) for a, b in zip((f, y, x), copies, strict=True))


@pytest.mark.parametrize(
    "case", ["identical", "one sample", "certain", "impossible", "constant shift"]
)
def test_estimate__odd_data_give_a_prior(estimator, mixture, case):
    mixture = mixture(4)
    x, y = mixture.draw(priors.uniform(4), 100, seed=1)
    if case == "identical":
        x = x[:1].repeat(100, 1)
    elif case == "one sample":
        x = x[:1]
    elif case == "certain":
        x = torch.zeros_like(x).masked_fill(torch.arange(4) != y[:, None], -torch.inf)
    elif case == "impossible":
        x = x.masked_fill(torch.arange(4) == 3, -torch.inf)
    else:
        x = x + 1e4
    _check(_fit(estimator, mixture).estimate(x), 4)


@pytest.mark.parametrize("case", ["one class", "missing class", "one held-out sample"])
def test_fit__odd_held_out_data_give_a_prior(estimator, mixture, case):
    mixture = mixture(4)
    f, y = mixture.draw(mixture.source_prior, 300, seed=100)
    kept = {
        "one class": y == 0,
        "missing class": y != 2,
        "one held-out sample": torch.arange(300) == 0,
    }[case]
    fitted = estimator(source_prior=mixture.source_prior)
    with pytest.warns(FewSamplesWarning):
        fitted.fit(f[kept], y[kept])
    _check(fitted.estimate(mixture.draw(priors.uniform(4), 100, seed=1)[0]), 4)


def test_estimate__a_thousand_classes_do_not_underflow(estimator, mixture):
    mixture = mixture(1000, imbalance_ratio=1000.0)
    fitted = _fit(estimator, mixture, num_held_out=500, calibrator="temperature")
    x, _ = mixture.draw(priors.uniform(1000), 50, seed=1)
    _check(fitted.estimate(x.float()), 1000)


def test_interval__is_finite_and_ordered(estimator, mixture):
    mixture = mixture(3)
    fitted = _fit(estimator, mixture, num_held_out=200)
    with pytest.raises(RuntimeError) as error:
        _ = fitted.interval_
    assert str(error.value) == (
        f"This {estimator.__name__} has no estimate yet. "
        "Call estimate(logits) with unlabelled data first."
    )
    q = fitted.estimate(mixture.draw(priors.uniform(3), 150, seed=1)[0])
    low, high = fitted.interval_
    assert low.isfinite().all()
    assert (low <= high).all()
    assert ((low <= q) & (q <= high)).all()
    assert fitted.prior_draws_ is fitted.prior_draws_  # computed once
    assert fitted.num_iter_ >= 1
    assert fitted.converged_


def test_errors__are_sentences(estimator, mixture):
    name = estimator.__name__
    x = torch.randn(10, 3)
    with pytest.raises(RuntimeError) as error:
        estimator().estimate(x)
    assert str(error.value) == (
        f"This {name} is not fitted. "
        "Call fit(logits, labels) with held-out source data first."
    )
    fitted = _fit(estimator, mixture(4), num_held_out=100)
    with pytest.raises(ValueError, match="classes") as error:
        fitted.estimate(x)
    assert str(error.value) == (
        "`logits` has 3 classes, but the estimator was fitted on 4."
    )
    with pytest.raises(ValueError, match="row 0") as error:
        fitted.estimate(torch.full((2, 4), torch.nan))
    assert str(error.value) == (
        "`logits` must be finite or −inf, but row 0 (from 0) holds nan."
    )
    with pytest.raises(ValueError, match="empty") as error:
        fitted.estimate(iter([]))
    assert str(error.value) == "`logits` must not be empty: there is no sample."
    with pytest.raises(TypeError, match="iterable") as error:
        fitted.estimate(3)
    assert str(error.value) == (
        "`logits` must be a torch tensor, a NumPy array or an iterable of such chunks, "
        "but is int."
    )
    with pytest.raises(ValueError, match="unknown calibrator") as error:
        estimator(calibrator="bctz").fit(torch.randn(10, 2), torch.arange(10) % 2)
    assert str(error.value) == (
        "unknown calibrator 'bctz'; did you mean 'bcts'? "
        "Known: auto, bcts, identity, temperature, vector"
    )
    with pytest.raises(ValueError, match="positive") as error:
        estimator(source_prior=[1.0, 0.0]).fit(torch.randn(10, 2), torch.arange(10) % 2)
    assert str(error.value) == (
        "`source_prior` must be positive for every class, but is 0 for class 1 "
        "(2 classes). Drop the class or give it a sample."
    )


def test_fit__warns_of_classes_with_few_samples(estimator):
    f = torch.randn(12, 3)
    with pytest.warns(FewSamplesWarning) as caught:
        estimator().fit(f, torch.tensor([0] * 9 + [1] * 3))
    assert str(caught[0].message) == (
        "`labels` has fewer than 5 samples of 2 of 3 classes (the fewest: class 2 with "
        "0); what is estimated of these classes relies on the model's own "
        "probabilities."
    )


def test_adapt_and_certify__take_the_name(estimator, mixture):
    mixture = mixture(4)
    f, y = mixture.draw(mixture.source_prior, 600, seed=100)
    held_out = ts.Predictions(f, y, logit_prior=mixture.source_prior)
    target = priors.from_counts([1, 2, 2, 3])
    x, _ = mixture.draw(target, 600, seed=1)
    name = ESTIMATORS.name_of(estimator)
    found = adapt(held_out, x, estimator=name)
    assert type(found.estimator) is estimator
    assert (found.estimated_prior - target).abs().sum() < 0.45
    certificate = certify(held_out, x, estimator=name)
    low, high = certificate.accuracy_interval
    assert 0 <= low < certificate.accuracy < high <= 1
