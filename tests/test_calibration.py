"""Calibration against SciPy's word, by hand, and where data leave nothing to fit."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tailshift.calibration import (
    CALIBRATORS,
    SCALE_RIDGE,
    BiasCorrectedTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
)

ALL = [CALIBRATORS.get(name) for name in CALIBRATORS.names()]


def _overconfident(num_samples=2000, num_classes=4, sharpness=3.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    f = 1.5 * torch.randn(num_samples, num_classes, generator=g, dtype=torch.float64)
    y = torch.multinomial(f.softmax(1), 1, generator=g)[:, 0]
    return sharpness * f, y


def _reference_penalised_nll(x, f, y, kind, ridge):
    """Sum over samples, one by one, in plain Python."""
    num_classes = len(f[0])
    if kind == "temperature":
        a, b = [x[0]] * num_classes, [0.0] * num_classes
        penalty = SCALE_RIDGE * x[0] ** 2
    elif kind == "bcts":
        a, b = [x[0]] * num_classes, list(x[1:])
        penalty = SCALE_RIDGE * x[0] ** 2 + ridge * sum(v * v for v in b)
    else:
        a, b = list(x[:num_classes]), list(x[num_classes:])
        mean = sum(a) / num_classes
        penalty = ridge * sum((v - mean) ** 2 for v in a) + SCALE_RIDGE * mean**2
        penalty += ridge * sum(v * v for v in b)
    total = penalty / 2
    for row, label in zip(f, y, strict=True):
        norm = math.log(sum(math.exp(v) for v in row))
        g = [
            math.exp(a_c) * (v - norm) + b_c
            for a_c, v, b_c in zip(a, row, b, strict=True)
        ]
        total += math.log(sum(math.exp(v) for v in g)) - g[label]
    return total


def test_temperature_scaling__worked_example():
    """A logit of log 9 that is right 3 times in 4 should be log 3: T = 2."""
    f = torch.tensor([[math.log(9.0), 0.0]]).repeat(400, 1)
    y = (torch.arange(400) % 4 == 0).long()
    scaling = TemperatureScaling().fit(f, y)
    assert scaling.temperature_ == pytest.approx(2.0, abs=1e-3)
    torch.testing.assert_close(scaling.transform(f), f / 2, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["temperature", "bcts", "vector"])
def test_fit__finds_the_minimum_of_the_reference(kind):
    f, y = _overconfident(num_samples=40, num_classes=3)
    calibrator = CALIBRATORS.get(kind)().fit(f, y)
    a, b = calibrator.scale_.log(), calibrator.bias_
    arguments = (f.tolist(), y.tolist(), kind, calibrator.ridge)
    found = {
        "temperature": a[:1],
        "bcts": torch.cat([a[:1], b]),
        "vector": torch.cat([a, b]),
    }[kind]
    ours = _reference_penalised_nll(found.tolist(), *arguments)
    best = minimize(
        _reference_penalised_nll, np.zeros(len(found)), args=arguments, tol=1e-12
    )
    assert ours == pytest.approx(best.fun, abs=1e-8)
    np.testing.assert_allclose(found, best.x, atol=1e-4)


def test_bcts__makes_the_mean_probability_that_of_the_labels():
    f, y = _overconfident()
    bcts = BiasCorrectedTemperatureScaling(ridge=0.0).fit(f, y)
    mean = bcts.transform(f).softmax(1).mean(0)
    torch.testing.assert_close(mean, torch.bincount(y) / len(y), check_dtype=False)
    assert bcts.temperature_ == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("calibrator", ALL)
def test_transform__keeps_kind_and_dtype_and_the_input(calibrator):
    f, y = _overconfident(num_samples=100)
    before = f.clone()
    fitted = calibrator().fit(f, y)
    fitted.transform(f)
    assert torch.equal(f, before)
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert fitted.transform(f.to(dtype)).dtype == dtype
    array = fitted.transform(f.float().numpy())
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(array), fitted.transform(f.float()))
    by_array = calibrator().fit(f.numpy(), y.numpy())
    assert torch.equal(by_array.scale_, fitted.scale_)


@pytest.mark.parametrize("calibrator", ALL)
def test_fit__a_constant_added_to_rows_changes_nothing(calibrator):
    f, y = _overconfident(num_samples=100)
    offset = 50 * torch.randn(100, 1, dtype=torch.float64)
    p = calibrator().fit(f, y).transform(f).softmax(1)
    q = calibrator().fit(f + offset, y).transform(f + offset).softmax(1)
    torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


@pytest.mark.parametrize("calibrator", ALL)
def test_fit__blocks_do_not_matter(calibrator, monkeypatch):
    f, y = _overconfident(num_samples=101)
    whole = calibrator().fit(f, y)
    monkeypatch.setattr("tailshift.calibration.FIT_BLOCK_ELEMENTS", 28)
    monkeypatch.setattr("tailshift.calibration.FIT_KEPT_ELEMENTS", 0)
    parts = calibrator().fit(f, y)
    torch.testing.assert_close(whole.scale_, parts.scale_, rtol=1e-6, atol=0)


@pytest.mark.parametrize("calibrator", ALL)
@pytest.mark.parametrize("case", ["one class", "separable", "identical", "impossible"])
def test_fit__degenerate_data_end_in_finite_numbers(calibrator, case):
    f, y = _overconfident(num_samples=60)
    if case == "one class":
        y = torch.zeros_like(y)
    elif case == "separable":
        f = 5 * torch.eye(4, dtype=torch.float64)[y]
    elif case == "identical":
        f = torch.zeros_like(f)
    else:
        f[:30] = f[:30].masked_fill(torch.arange(4) == 3, -torch.inf)  # labels may be 3
    fitted = calibrator().fit(f, y)
    assert fitted.scale_.isfinite().all()
    assert (fitted.scale_ > 0).all()
    assert fitted.bias_.isfinite().all()
    p = fitted.transform(f).softmax(1)
    torch.testing.assert_close(p.sum(1), torch.ones(60, dtype=torch.float64))
    if case == "separable":
        assert (p.argmax(1) == y).all()
        assert p.amax(1).min() > 0.98


def test_vector_scaling__beats_one_temperature_where_classes_differ():
    f, y = _overconfident(num_samples=4000, sharpness=1.0)
    log_p = f.log_softmax(1)
    twisted = log_p * torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)

    def nll(calibrator):
        g = calibrator.fit(twisted, y).transform(twisted)
        return torch.nn.functional.cross_entropy(g, y).item()

    assert nll(VectorScaling()) < nll(TemperatureScaling()) - 0.01


def test_errors__are_sentences():
    f, y = _overconfident(num_samples=10)
    with pytest.raises(ValueError, match="ridge") as error:
        BiasCorrectedTemperatureScaling(ridge=-1.0)
    assert str(error.value) == "`ridge` must not be negative, but is -1."
    with pytest.raises(RuntimeError) as unfitted:
        TemperatureScaling().transform(f)
    assert str(unfitted.value) == (
        "This TemperatureScaling is not fitted. "
        "Call fit(logits, labels) with held-out data first."
    )
    with pytest.raises(ValueError, match="classes") as mismatch:
        TemperatureScaling().fit(f, y).transform(f[:, :3])
    assert str(mismatch.value) == (
        "`logits` has 3 classes, but the calibrator was fitted on 4."
    )
    with pytest.raises(ValueError, match="finite") as nan:
        TemperatureScaling().fit(f * torch.nan, y)
    assert str(nan.value) == (
        "`logits` must be finite or −inf, but row 0 (from 0) holds nan."
    )
