import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from tailshift.evaluation import AS_IS, Record, evaluate, records
from tailshift.metrics import group_accuracy
from tailshift.predictions import Predictions
from tailshift.priors import (
    PAPER_TARGETS,
    from_counts,
    long_tailed_counts,
    target_counts,
    uniform,
)

NUM_CLASSES, PER_CLASS = 20, 12


def _predictions(**changes):
    """Logits of a model trained by cross-entropy on long-tailed data."""
    counts = long_tailed_counts(500, 100, NUM_CLASSES)
    labels = torch.arange(NUM_CLASSES).repeat(PER_CLASS)
    labels = labels[torch.randperm(len(labels))]
    prior = from_counts(counts)
    logits = 1.5 * torch.nn.functional.one_hot(labels, NUM_CLASSES)
    logits = logits + torch.randn(len(labels), NUM_CLASSES) + prior.log().float()
    fields = {
        "logits": logits,
        "labels": labels,
        "source_counts": counts,
        "trained_prior": prior,
    }
    return Predictions(**(fields | changes))


def _reference_records(predictions, target, counts):
    """Raw and compensated record of one target, sample by sample and in float64."""
    left, rows = counts.tolist(), []
    for row, label in enumerate(predictions.labels.tolist()):
        if left[label] > 0:
            left[label] -= 1
            rows.append(row)
    y = predictions.labels[rows]
    p_t = counts.double() / counts.sum()
    raw = predictions.logits[rows].double()
    compensated = raw - predictions.trained_prior.log() + p_t.log()
    for is_compensated, f in ((False, raw), (True, compensated)):
        answers = f.argmax(dim=1).numpy()
        top5 = f.argsort(dim=1, descending=True, stable=True)[:, :5]
        yield Record(
            target=target,
            compensated=is_compensated,
            num_samples=len(rows),
            accuracy=accuracy_score(y.numpy(), answers),
            **group_accuracy(f, y, predictions.source_counts),
            top5=(top5 == y[:, None]).any(dim=1).double().mean().item(),
            macro_f1=f1_score(y.numpy(), answers, average="macro"),
        )


def _assert_same(record, expected):
    assert vars(record) == pytest.approx(vars(expected), abs=1e-12, nan_ok=True)


def test_evaluate__worked_example():
    """f − log p_s: (3.29, 2.39) and (2.29, 2.89), so compensation mends sample 1."""
    predictions = Predictions(
        logits=torch.tensor([[3.0, 1.0], [2.0, 1.5]]),
        labels=torch.tensor([0, 1]),
        source_counts=torch.tensor([300, 10]),
        trained_prior=torch.tensor([0.75, 0.25]),
    )
    raw, compensated = evaluate(predictions, ["uniform"])
    _assert_same(raw, Record("uniform", False, 2, 0.5, 1, math.nan, 0, 1, 1 / 3))
    _assert_same(compensated, Record("uniform", True, 2, 1, 1, math.nan, 1, 1, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("chunk", [1, 1000, 1 << 18])
def test_evaluate__as_a_loop(dtype, chunk, monkeypatch):
    monkeypatch.setattr(records, "CHUNK", chunk)
    predictions = _predictions()
    predictions = replace(predictions, logits=predictions.logits.to(dtype))
    expected = []
    for target in PAPER_TARGETS:
        counts = target_counts(target, predictions.source_counts, PER_CLASS)
        expected += _reference_records(predictions, target, counts)
    found = evaluate(predictions)
    assert len(found) == 22
    for record, reference in zip(found, expected, strict=True):
        _assert_same(record, reference)


def test_evaluate__compensation_helps_where_the_target_is_far():
    raw, compensated = evaluate(_predictions(), ["backward:50"])
    assert compensated.accuracy > raw.accuracy + 0.1


def test_evaluate__no_shift_of_a_prior_to_itself():
    predictions = _predictions(trained_prior=uniform(NUM_CLASSES))
    raw, compensated = evaluate(predictions, ["uniform"])
    assert raw == replace(compensated, compensated=False)


def test_evaluate__a_constant_added_to_the_logits_changes_nothing():
    predictions = _predictions()
    moved = replace(predictions, logits=predictions.logits.double() + 4.0)
    for left, right in zip(evaluate(moved), evaluate(predictions), strict=True):
        _assert_same(left, right)


def test_evaluate__permuting_classes_changes_no_score():
    predictions = _predictions()
    order = torch.randperm(NUM_CLASSES)
    permuted = Predictions(
        logits=predictions.logits[:, order],
        labels=order.argsort()[predictions.labels],
        source_counts=predictions.source_counts[order],
        trained_prior=predictions.trained_prior[order],
    )
    targets = ["uniform"]  # others break ties of the counts by class id
    for left, right in zip(
        evaluate(predictions, targets), evaluate(permuted, targets), strict=True
    ):
        _assert_same(left, right)


def test_evaluate__classes_that_the_target_lacks_are_never_answered(tmp_path):
    path = tmp_path / "site.txt"
    path.write_text("\n".join(["12", "12"] + ["0"] * (NUM_CLASSES - 2)))
    predictions = _predictions()
    raw, compensated = evaluate(predictions, [path])
    assert raw.target == compensated.target == str(path)
    assert compensated.num_samples == 24
    assert compensated.top5 == 1.0
    assert compensated.accuracy >= raw.accuracy


def test_evaluate__logits_of_minus_infinity():
    logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0], [0.0, -torch.inf]])
    predictions = Predictions(
        logits, torch.tensor([0, 1, 1]), trained_prior=torch.tensor([0.9, 0.1])
    )
    raw, compensated = evaluate(predictions, ["uniform"])
    assert (raw.num_samples, raw.accuracy, compensated.accuracy) == (2, 1.0, 1.0)


def test_evaluate__fewer_than_five_classes():
    predictions = Predictions(torch.eye(3), torch.tensor([1, 2, 0]))
    [record] = evaluate(predictions)
    assert (record.accuracy, record.top5) == (0.0, 1.0)


def test_evaluate__classes_of_unequal_size():
    """Class 1 has two samples, so a named target starts from two of each."""
    predictions = Predictions(
        torch.eye(2)[[0, 0, 0, 1, 0]],
        torch.tensor([0, 0, 0, 1, 1]),
        source_counts=torch.tensor([9, 1]),
    )
    uniform_record, forward, everything = evaluate(
        predictions, ["uniform", "forward:2", AS_IS]
    )
    assert (uniform_record.num_samples, uniform_record.accuracy) == (4, 0.75)
    assert (forward.num_samples, forward.accuracy) == (3, 1.0)
    assert (everything.num_samples, everything.accuracy) == (5, 0.8)


# What is known decides what there is


def test_evaluate__neither_counts_nor_prior_gives_the_test_set_as_it_is():
    predictions = _predictions(source_counts=None, trained_prior=None)
    [record] = evaluate(predictions)
    assert (record.target, record.compensated) == ("as_is", False)
    assert record.num_samples == NUM_CLASSES * PER_CLASS
    assert all(math.isnan(value) for value in (record.many, record.medium, record.few))


def test_evaluate__counts_alone_give_raw_records():
    found = evaluate(_predictions(trained_prior=None))
    assert [record.target for record in found] == list(PAPER_TARGETS)
    assert not any(record.compensated for record in found)


def test_evaluate__prior_alone_gives_targets_that_need_no_order(tmp_path):
    path = tmp_path / "site.txt"
    path.write_text("\n".join(map(str, range(1, NUM_CLASSES + 1))))
    predictions = _predictions(source_counts=None)
    found = evaluate(predictions, ["uniform", str(path), AS_IS])
    names = [(record.target, record.compensated) for record in found]
    assert names == [
        ("uniform", False),
        ("uniform", True),
        (str(path), False),
        (str(path), True),
        ("as_is", False),
    ]
    assert all(math.isnan(record.many) for record in found)


def test_evaluate__refuses_an_order_that_is_not_known():
    with pytest.raises(ValueError, match="forward:50") as error:
        evaluate(_predictions(source_counts=None))
    assert str(error.value) == (
        "Target 'forward:50' orders the classes by `source_counts`, but the "
        "predictions have none. Save them with the counts, or take 'uniform', "
        "'as_is' or a file of counts."
    )


def test_evaluate__refuses_a_lone_string():
    with pytest.raises(TypeError) as error:
        evaluate(_predictions(), "uniform")
    assert str(error.value) == (
        "`targets` must be a list of targets, but is the string 'uniform'. "
        "Write ['uniform']."
    )


def test_evaluate__leaves_out_a_class_that_the_test_set_lacks():
    """Classes 0 and 2 are left, one sample each; class 1 is never the answer."""
    predictions = Predictions(
        torch.eye(3),
        torch.tensor([0, 0, 2]),
        source_counts=torch.tensor([5, 2, 1]),
        trained_prior=torch.full((3,), 1 / 3, dtype=torch.float64),
    )
    raw, compensated = evaluate(predictions, ["uniform"])
    assert (raw.num_samples, compensated.num_samples) == (2, 2)
    assert (raw.accuracy, compensated.accuracy) == (1, 1)


@pytest.mark.parametrize("target", ["forward", "uniforn"])
@pytest.mark.parametrize("changes", [{}, {"source_counts": None}])
def test_evaluate__refuses_a_misspelt_target(target, changes):
    with pytest.raises(ValueError, match="target") as error:
        evaluate(_predictions(**changes), [target])
    assert str(error.value) == (
        "`target` must be 'uniform', 'forward:RATIO' or 'backward:RATIO' "
        f"with a ratio >= 1, but is {target!r}."
    )
