"""Blocks of posteriors: in memory, on disk and made anew, they are the same."""

import gc

import numpy as np
import pytest
import torch

from tailshift.estimators.posteriors import Posteriors


def _softmax(f):
    return f.double().softmax(dim=1)


@pytest.fixture
def small_blocks(monkeypatch):
    """Make blocks of 3 rows, and keep next to nothing."""
    monkeypatch.setattr("tailshift.estimators.posteriors.BLOCK_ELEMENTS", 12)


@pytest.mark.parametrize("limits", [(10**9, 10**9), (0, 10**9), (0, 0), (8, 20)])
@pytest.mark.parametrize("kind", ["tensor", "array", "chunks", "half"])
def test_posteriors__are_those_of_the_logits(small_blocks, monkeypatch, limits, kind):
    exact, kept = limits
    monkeypatch.setattr("tailshift.estimators.posteriors.EXACT_ELEMENTS", exact)
    monkeypatch.setattr("tailshift.estimators.posteriors.KEPT_ELEMENTS", kept)
    f = torch.randn(10, 4)
    given = {
        "tensor": f,
        "array": f.numpy(),
        "chunks": (f[start : start + 5] for start in (0, 5)),
        "half": f.half(),
    }[kind]
    samples = Posteriors(given, _softmax, 4)
    assert samples.num_samples == 10
    expected = _softmax(f.half() if kind == "half" else f)
    for _ in range(2):  # as often as one likes
        blocks = list(samples)
        assert all(len(block) <= 3 for block in blocks)
        assert all(block.dtype == torch.float64 for block in blocks)
        torch.testing.assert_close(torch.cat(blocks), expected, rtol=1e-6, atol=1e-7)
        passed = [(block.clone(), block.data_ptr()) for block in samples.passing()]
        assert torch.equal(torch.cat([block for block, _ in passed]), torch.cat(blocks))
        if limits == (0, 10**9):  # kept in float32, and passed on in one buffer
            assert len({place for _, place in passed}) == 1
    torch.testing.assert_close(samples.mean(), expected.mean(0), rtol=1e-6, atol=0)
    some = samples.rows(torch.tensor([7, 2]))
    torch.testing.assert_close(some, expected[[2, 7]], rtol=1e-6, atol=1e-7)


def test_posteriors__close_their_file(monkeypatch):
    monkeypatch.setattr("tailshift.estimators.posteriors.EXACT_ELEMENTS", 0)
    monkeypatch.setattr("tailshift.estimators.posteriors.KEPT_ELEMENTS", 0)
    samples = Posteriors(iter([torch.randn(3, 2)]), _softmax, 2)
    file = samples._file
    assert not file.closed
    del samples
    gc.collect()
    assert file.closed


def test_mean__of_weighted_samples(small_blocks):
    p = _softmax(torch.randn(8, 4))
    weights = torch.randint(3, (8, 2), dtype=torch.uint8)
    expected = torch.stack(
        [
            sum(w * row for w, row in zip(v.tolist(), p, strict=True)) / v.sum()
            for v in weights.T
        ],
        1,
    )
    torch.testing.assert_close(Posteriors.of(p).mean(weights), expected)


def test_of__copies_nothing():
    p = torch.rand(1000, 3)
    first = next(iter(Posteriors.of(p)))
    assert first.data_ptr() == p.data_ptr()


def test_of__keeps_the_dtype():
    assert next(iter(Posteriors.of(torch.rand(2, 2)))).dtype == torch.float32
    assert next(iter(Posteriors.of(torch.rand(2, 2).double()))).dtype == torch.float64


@pytest.mark.parametrize("shape", [(0, 4), (4,), (2, 2, 2)])
def test_posteriors__need_rows_and_classes(shape):
    with pytest.raises(ValueError, match="shape") as error:
        Posteriors(np.zeros(shape), _softmax, 4)
    assert str(error.value) == (
        "`logits` must have shape (N, C) with at least one row and one class, "
        f"but has shape {shape}."
    )


def test_posteriors__a_list_of_numbers_is_no_stream():
    with pytest.raises(TypeError, match="chunks") as error:
        Posteriors([1.0, 2.0], _softmax, 2)
    assert str(error.value) == (
        "`logits` must be a torch tensor, a NumPy array or an iterable of such chunks, "
        "but is list."
    )
