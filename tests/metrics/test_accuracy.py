import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, top_k_accuracy_score

from tailshift import metrics
from tailshift.metrics import accuracy, group_accuracy, macro_f1, top_k_accuracy
from tailshift.metrics.accuracy import label_ranks


def _reference_ranks(scores, labels):
    """Sort each row by (−score, class id) and look the label up."""
    return [
        sorted(range(len(row)), key=lambda c: (-row[c], c)).index(label)
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]


def _reference_group_accuracy(logits, labels, class_counts):
    hits = {"many": [], "medium": [], "few": []}
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        n = class_counts[label]
        group = "many" if n > 100 else "few" if n < 20 else "medium"
        hits[group].append(row.index(max(row)) == label)
    return {
        group: sum(right) / len(right) if right else math.nan
        for group, right in hits.items()
    }


def _random(num_samples=200, num_classes=12, *, ties=False):
    logits = torch.randn(num_samples, num_classes)
    if ties:
        logits = logits.round()
    return logits, torch.randint(num_classes, (num_samples,))


def test_accuracy__worked_example():
    """Answers 0, 2, 1 against 0, 1, 1: two of three."""
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [-3.0, -1.0, -2.0]])
    assert accuracy(logits, torch.tensor([0, 1, 1])) == 2 / 3


@pytest.mark.parametrize("ties", [False, True])
def test_accuracy__as_scikit_learn(ties):
    logits, labels = _random(ties=ties)
    expected = accuracy_score(labels.numpy(), logits.numpy().argmax(axis=1))
    assert accuracy(logits, labels) == pytest.approx(expected, abs=1e-12)


def test_accuracy__ties_go_to_the_lowest_class():
    assert accuracy(torch.zeros(4, 4), torch.tensor([0, 1, 2, 3])) == 0.25
    assert accuracy(torch.zeros(1, 4), torch.tensor([0])) == 1.0


@pytest.mark.parametrize("k", [1, 3, 12])
def test_top_k_accuracy__as_scikit_learn(k):
    logits, labels = _random()
    expected = (
        top_k_accuracy_score(
            labels.numpy(), logits.numpy().astype(np.float64), k=k, labels=np.arange(12)
        )
        if k < 12
        else 1.0
    )
    assert top_k_accuracy(logits, labels, k=k) == pytest.approx(expected, abs=1e-12)


def test_top_k_accuracy__of_one_is_accuracy():
    logits, labels = _random(ties=True)
    assert top_k_accuracy(logits, labels, k=1) == accuracy(logits, labels)


@pytest.mark.parametrize("ties", [False, True])
def test_label_ranks__as_sorting(ties):
    logits, labels = _random(ties=ties)
    logits[:, 3] = -torch.inf
    assert label_ranks(logits, labels).tolist() == _reference_ranks(logits, labels)


@pytest.mark.parametrize("ties", [False, True])
def test_macro_f1__as_scikit_learn(ties):
    logits, labels = _random(ties=ties)
    answers = logits.numpy().argmax(axis=1)
    expected = f1_score(labels.numpy(), answers, average="macro")
    assert macro_f1(logits, labels) == pytest.approx(expected, abs=1e-12)


def test_macro_f1__over_classes_that_occur():
    """Classes 5 to 11 occur nowhere; 4 only among answers, 3 only among labels."""
    logits, labels = _random()
    logits[:, 5:] = -9.0
    logits[:, 3] = -9.0
    labels = labels % 4
    answers = logits.numpy().argmax(axis=1)
    assert set(answers) == {0, 1, 2, 4}
    expected = f1_score(labels.numpy(), answers, average="macro", zero_division=0.0)
    assert macro_f1(logits, labels) == pytest.approx(expected, abs=1e-12)


def test_group_accuracy__as_a_loop():
    logits, labels = _random()
    counts = [500, 300, 101, 100, 60, 20, 19, 5, 5, 5, 1, 0]
    expected = _reference_group_accuracy(logits, labels, counts)
    assert group_accuracy(logits, labels, class_counts=counts) == pytest.approx(
        expected
    )


def test_group_accuracy__empty_groups_are_nan():
    logits, labels = _random()
    groups = group_accuracy(logits, labels, class_counts=torch.full((12,), 500))
    assert groups["many"] == accuracy(logits, labels)
    assert math.isnan(groups["medium"])
    assert math.isnan(groups["few"])


METRICS = {
    "accuracy": accuracy,
    "top_k_accuracy": top_k_accuracy,
    "macro_f1": macro_f1,
    "group_accuracy": lambda *args, **kwargs: group_accuracy(
        *args, class_counts=range(0, 240, 20), **kwargs
    )["medium"],
}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_metrics__same_for_probs_arrays_and_dtypes(metric):
    logits, labels = _random()
    expected = metric(logits, labels)
    assert isinstance(expected, float)
    assert metric(probs=logits.double().softmax(dim=1), labels=labels) == expected
    assert metric(logits.numpy(), labels.numpy()) == expected
    assert metric(logits.double(), labels.to(torch.int32)) == expected
    assert metric(logits + 7.0, labels) == pytest.approx(expected, abs=1e-12)
    half = logits.half()
    assert metric(half, labels) == metric(half.float(), labels)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_metrics__permuting_samples_changes_nothing(metric):
    logits, labels = _random()
    order = torch.randperm(len(labels))
    assert metric(logits[order], labels[order]) == pytest.approx(metric(logits, labels))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
@pytest.mark.parametrize(
    ("change", "exception", "message"),
    [
        (
            {"logits": None},
            TypeError,
            "Give either `logits` or `probs`, but neither came.",
        ),
        (
            {"probs": torch.ones(2, 12) / 12},
            TypeError,
            "Give either `logits` or `probs`, but both came.",
        ),
        ({"labels": None}, TypeError, "`labels` must be given, but is missing."),
        (
            {"labels": torch.tensor([0, 12])},
            ValueError,
            "`labels` must lie in 0..11, but label 1 (counted from 0) is 12.",
        ),
        (
            {"labels": torch.tensor([-1, 0])},
            ValueError,
            "`labels` must lie in 0..11, but label 0 (counted from 0) is -1.",
        ),
        (
            {"labels": torch.tensor([[0, 1]])},
            ValueError,
            "`labels` must be a vector, but has shape (1, 2).",
        ),
        (
            {"labels": torch.tensor([0, 1, 2])},
            ValueError,
            "`labels` has 3 entries but `logits` has 2 rows.",
        ),
        (
            {"logits": None, "probs": np.ones((3, 12)) / 12},
            ValueError,
            "`labels` has 2 entries but `probs` has 3 rows.",
        ),
        (
            {"logits": None, "probs": torch.zeros(2, 12)},
            ValueError,
            "Rows of `probs` must sum to 1, but row 0 (from 0) sums to 0.0000.",
        ),
        (
            {"logits": torch.full((2, 12), torch.nan)},
            ValueError,
            "`logits` must be finite or −inf, but row 0 (from 0) holds nan.",
        ),
        (
            {"logits": torch.zeros(12)},
            ValueError,
            "`logits` must have shape (N, C) with at least one row and one class, "
            "but has shape (12,).",
        ),
    ],
)
def test_metrics__refuse_with_a_sentence(metric, change, exception, message):
    arguments = {"logits": torch.zeros(2, 12), "labels": torch.tensor([0, 1])} | change
    with pytest.raises(exception) as error:
        metric(**arguments)
    assert str(error.value) == message


@pytest.mark.parametrize("k", [0, 4])
def test_top_k_accuracy__refuses_k_outside_the_classes(k):
    with pytest.raises(ValueError, match="`k`") as error:
        top_k_accuracy(torch.zeros(1, 3), torch.tensor([0]), k=k)
    assert str(error.value) == (
        f"`k` must lie in 1..3, the number of classes, but is {k}."
    )


@pytest.mark.parametrize(
    ("class_counts", "exception", "message"),
    [
        (None, TypeError, "`class_counts` must be given, but is missing."),
        ([1, 2], ValueError, "`class_counts` has 2 entries but there are 3 classes."),
    ],
)
def test_group_accuracy__refuses_counts(class_counts, exception, message):
    with pytest.raises(exception) as error:
        group_accuracy(torch.zeros(1, 3), torch.tensor([0]), class_counts)
    assert str(error.value) == message


def test_metrics__public_names():
    assert set(metrics.__all__) <= set(dir(metrics))


def test_accuracy__weights_count_as_repetitions():
    logits, labels = torch.randn(50, 4), torch.randint(4, (50,))
    repeats = torch.randint(0, 3, (50,))
    many = logits.repeat_interleave(repeats, 0), labels.repeat_interleave(repeats)
    found = accuracy(logits, labels, sample_weights=repeats)
    assert found == pytest.approx(accuracy(*many), abs=1e-12)
    counts = [500, 50, 5, 1]
    found = group_accuracy(logits, labels, counts, sample_weights=repeats)
    assert found == pytest.approx(group_accuracy(*many, counts), abs=1e-12)
