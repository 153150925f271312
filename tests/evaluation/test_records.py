import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from tailshift import metrics
from tailshift.evaluation import AS_IS, Record, evaluate, records
from tailshift.evaluation.sampling import draw_test_set
from tailshift.metrics import group_accuracy, sample_scores
from tailshift.predictions import Predictions
from tailshift.priors import from_counts, long_tailed_counts, uniform
from tailshift.targets import PAPER_TARGETS, exact_prior, target_counts

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
        "logit_prior": prior,
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
    compensated = raw - predictions.logit_prior.log() + p_t.log()
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
            ece=metrics.expected_calibration_error(f, y),
            classwise_ece=metrics.classwise_calibration_error(f, y),
            brier=metrics.brier_score(f, y),
            nll=metrics.negative_log_likelihood(f, y),
        )


CALIBRATION = ("ece", "classwise_ece", "brier", "nll")


def _assert_same(record, expected):
    for name, value in vars(expected).items():
        tolerance = 1e-6 if name in CALIBRATION else 1e-12  # float32 softmax
        found = getattr(record, name)
        assert found == pytest.approx(value, abs=tolerance, nan_ok=True), name


def test_evaluate__worked_example():
    """f − log p_s: (3.29, 2.39) and (2.29, 2.89), so compensation mends sample 1."""
    predictions = Predictions(
        logits=torch.tensor([[3.0, 1.0], [2.0, 1.5]]),
        labels=torch.tensor([0, 1]),
        source_counts=torch.tensor([300, 10]),
        logit_prior=torch.tensor([0.75, 0.25]),
    )
    raw, compensated = evaluate(predictions, ["uniform"], sampling="first")
    p, q = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-0.5))  # of class 0
    expected = Record("uniform", False, 2, 0.5, 1, math.nan, 0, 1, 1 / 3)
    expected = replace(
        expected,
        ece=((1 - p) + q) / 2,
        classwise_ece=((1 - p) + q) / 2,
        brier=(2 * (1 - p) ** 2 + 2 * q**2) / 2,
        nll=-(math.log(p) + math.log(1 - q)) / 2,
    )
    _assert_same(raw, expected)
    p = 1 / (1 + math.exp(-2) * 3)  # odds e², a third of them after compensation
    q = 1 / (1 + math.exp(-0.5) * 3)
    expected = Record("uniform", True, 2, 1, 1, math.nan, 1, 1, 1)
    expected = replace(
        expected,
        ece=((1 - p) + q) / 2,
        classwise_ece=((1 - p) + q) / 2,
        brier=(2 * (1 - p) ** 2 + 2 * q**2) / 2,
        nll=-(math.log(p) + math.log(1 - q)) / 2,
    )
    _assert_same(compensated, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("chunk", [60, 1000, 1 << 18])
def test_evaluate__as_a_loop(dtype, chunk, monkeypatch):
    monkeypatch.setattr(sample_scores, "CHUNK", chunk)
    predictions = _predictions()
    predictions = replace(predictions, logits=predictions.logits.to(dtype))
    expected = []
    for target in PAPER_TARGETS:
        counts = target_counts(target, predictions.source_counts, PER_CLASS)
        expected += _reference_records(predictions, target, counts)
    found = evaluate(predictions, sampling="first")
    assert len(found) == 22
    for record, reference in zip(found, expected, strict=True):
        _assert_same(record, reference)


def test_evaluate__compensation_helps_where_the_target_is_far():
    raw, compensated = evaluate(_predictions(), ["backward:50"])
    assert compensated.accuracy > raw.accuracy + 0.1


def test_evaluate__no_shift_of_a_prior_to_itself():
    predictions = _predictions(logit_prior=uniform(NUM_CLASSES))
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
        logit_prior=predictions.logit_prior[order],
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
        logits, torch.tensor([0, 1, 1]), logit_prior=torch.tensor([0.9, 0.1])
    )
    raw, compensated = evaluate(predictions, ["uniform"], sampling="first")
    assert (raw.num_samples, raw.accuracy, compensated.accuracy) == (2, 1.0, 1.0)


def test_evaluate__fewer_than_five_classes():
    predictions = Predictions(torch.eye(3), torch.tensor([1, 2, 0]))
    [record] = evaluate(predictions)
    assert (record.accuracy, record.top5) == (0.0, 1.0)


def test_evaluate__classes_of_unequal_size():
    """All count: class 1, 1 of 2 right, is half of uniform and a third of forward 2.

    Thinned sets start from the two samples of class 1. Weights that make 3 and 2
    samples equal are 1/3 and 1/2: 2² / (3 · 1/9 + 2 · 1/4) = 4.8 effective samples.
    """
    predictions = Predictions(
        torch.eye(2)[[0, 0, 0, 1, 0]],
        torch.tensor([0, 0, 0, 1, 1]),
        source_counts=torch.tensor([9, 1]),
    )
    uniform_record, forward, everything = evaluate(
        predictions, ["uniform", "forward:2", AS_IS]
    )
    assert [uniform_record.num_samples, forward.num_samples] == [5, 5]
    assert uniform_record.accuracy == pytest.approx(3 / 4)
    assert uniform_record.num_effective == pytest.approx(4.8)
    assert forward.accuracy == pytest.approx(5 / 6)
    assert uniform_record.sampling == forward.sampling == "reweighted"
    assert (everything.num_samples, everything.num_effective) == (5, 5)
    assert (everything.accuracy, everything.sampling) == (0.8, "first")
    thinned = evaluate(predictions, ["uniform", "forward:2"], sampling="first")
    assert [(r.num_samples, r.num_effective) for r in thinned] == [(4, 4), (3, 3)]
    assert [r.accuracy for r in thinned] == [0.75, 1.0]


def test_evaluate__records_become_a_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(evaluate(_predictions(), sampling="first"))
    assert frame.shape == (22, len(vars(Record("", False, *[0] * 7))))
    assert list(frame["target"].unique()) == list(PAPER_TARGETS)
    assert (frame["num_samples"] == frame["num_effective"]).all()


# What is known decides what there is


def test_evaluate__neither_counts_nor_prior_gives_the_test_set_as_it_is():
    predictions = _predictions(source_counts=None, logit_prior=None)
    [record] = evaluate(predictions)
    assert (record.target, record.compensated) == ("as_is", False)
    assert record.num_samples == NUM_CLASSES * PER_CLASS
    assert all(math.isnan(value) for value in (record.many, record.medium, record.few))


def test_evaluate__counts_alone_give_raw_records():
    found = evaluate(_predictions(logit_prior=None))
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
        "Target 'forward:50' follows the training counts, which are not known here. "
        "Give `source_counts`, or use 'uniform' or a file of counts."
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
        torch.eye(3)[[0, 2]],
        torch.tensor([0, 2]),
        source_counts=torch.tensor([5, 2, 1]),
        logit_prior=torch.full((3,), 1 / 3, dtype=torch.float64),
    )
    raw, compensated = evaluate(predictions, ["uniform"])
    assert (raw.num_samples, compensated.num_samples) == (2, 2)
    assert raw.sampling == "expected"  # balanced, as far as it has classes
    assert (raw.accuracy, compensated.accuracy) == (1, 1)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "forward",
            "`target` must be like forward:RATIO, with a ratio >= 1, but is 'forward'.",
        ),
        (
            "uniforn",
            "`target` must be one of source, uniform, forward:RATIO, backward:RATIO, "
            "permuted:RATIO, dirichlet:ALPHA, tweak:CLASS:SHARE, "
            "knock_out:CLASS,CLASS, SHARE,SHARE, CLASS=SHARE,CLASS=SHARE, a file of "
            "counts or shares or, in an evaluation, as_is, but is 'uniforn'. Did you "
            "mean 'uniform'?",
        ),
    ],
)
@pytest.mark.parametrize("changes", [{}, {"source_counts": None}])
def test_evaluate__refuses_a_misspelt_target(target, message, changes):
    with pytest.raises(ValueError, match="target") as error:
        evaluate(_predictions(**changes), [target])
    assert str(error.value) == message


# The four ways


def test_evaluate__reweighted_as_a_loop():
    """Accuracy and NLL of each class, averaged by the target prior."""
    predictions = _predictions()
    raw, compensated = evaluate(predictions, ["backward:10"], sampling="reweighted")
    p_t = exact_prior("backward:10", predictions.source_counts, 1)
    f = predictions.logits.double()
    for record, logits in (
        (raw, f),
        (compensated, f - predictions.logit_prior.log() + p_t.log()),
    ):
        nll = torch.nn.functional.cross_entropy(
            logits, predictions.labels, reduction="none"
        )
        hit = (logits.argmax(dim=1) == predictions.labels).double()
        of_class = [predictions.labels == c for c in range(NUM_CLASSES)]
        for name, values in (("accuracy", hit), ("nll", nll)):
            means = torch.stack([values[rows].mean() for rows in of_class])
            expected = (p_t * means).sum().item()
            assert getattr(record, name) == pytest.approx(expected, abs=1e-6)
    assert raw.num_samples == NUM_CLASSES * PER_CLASS
    assert (raw.sampling, raw.deviation) == ("reweighted", None)


def test_evaluate__reweighted_to_the_test_sets_own_prior_is_plain():
    predictions = _predictions()
    plain = evaluate(predictions, ["uniform"], sampling="first")
    for left, right in zip(
        evaluate(predictions, ["uniform"], sampling="reweighted"), plain, strict=True
    ):
        same = {"sampling": "first", "standard_error": math.nan}
        _assert_same(replace(left, **same), right)


def test_evaluate__expected_as_a_loop():
    """Accuracy, Brier score and NLL of each class, averaged by the paper's counts."""
    predictions = _predictions()
    raw, compensated = evaluate(predictions, ["backward:10"])
    counts = target_counts("backward:10", predictions.source_counts, PER_CLASS)
    p_t = from_counts(counts)
    y = predictions.labels
    f = predictions.logits.double()
    for record, logits in (
        (raw, f),
        (compensated, f - predictions.logit_prior.log() + p_t.log()),
    ):
        p = logits.softmax(dim=1)
        one_hot = torch.nn.functional.one_hot(y, NUM_CLASSES)
        values = {
            "accuracy": (logits.argmax(dim=1) == y).double(),
            "nll": -p.log()[torch.arange(len(y)), y],
            "brier": (p - one_hot).square().sum(dim=1),
        }
        of_class = [y == c for c in range(NUM_CLASSES)]
        for name, value in values.items():
            means = torch.stack([value[rows].mean() for rows in of_class])
            expected = (p_t * means).sum().item()
            assert getattr(record, name) == pytest.approx(expected, abs=1e-6)
        errors = [values["accuracy"][rows].var() / PER_CLASS for rows in of_class]
        error = (p_t.square() * torch.stack(errors)).sum().sqrt().item()
        assert record.standard_error == pytest.approx(error, rel=1e-6)
        assert record.num_samples == NUM_CLASSES * PER_CLASS
        assert (record.sampling, record.deviation) == ("expected", None)


def test_evaluate__expected_is_the_mean_over_random_subsets():
    predictions = _predictions()
    targets = ["forward:10", "uniform"]
    options = {"sampling": "random", "repeats": 1000}
    pairs = zip(
        evaluate(predictions, targets, **options),
        evaluate(predictions, targets),
        strict=True,
    )
    for random, exact in pairs:
        sd = exact.subset_deviation
        assert random.accuracy == pytest.approx(exact.accuracy, abs=sd / 7 + 1e-9)
        assert random.deviation.accuracy == pytest.approx(sd, rel=0.1, abs=1e-9)
        assert (sd == 0) == (exact.target == "uniform")


def test_evaluate__expected_on_the_balanced_target_is_plain():
    predictions = _predictions()
    plain = evaluate(predictions, ["uniform"], sampling="first")
    for exact, right in zip(evaluate(predictions, ["uniform"]), plain, strict=True):
        same = {"sampling": "first", "standard_error": math.nan}
        _assert_same(replace(exact, **same, subset_deviation=math.nan), right)
        assert exact.subset_deviation == 0


def test_evaluate__random_subsets_scatter_about_the_reweighted_value():
    """Counts that need no rounding, so that both ways have the same prior."""
    predictions = _predictions()
    counts = torch.tensor([12, 6] * (NUM_CLASSES // 2))
    found = records._records(  # a tensor is no target of `evaluate`
        predictions,
        [(_drawn(predictions, counts, "random"), True)],
        "random",
    )
    expected = records._records(
        predictions, [(_drawn(predictions, counts, "reweighted"), True)], "reweighted"
    )
    [random], [exact] = found, expected
    assert random.num_samples == counts.sum()
    assert random.deviation.accuracy > 0
    error = random.deviation.accuracy / math.sqrt(400)
    assert abs(random.accuracy - exact.accuracy) < 4 * error
    assert abs(random.brier - exact.brier) < 4 * random.deviation.brier / 20


def _drawn(predictions, counts, sampling):
    return draw_test_set(
        counts,
        predictions.labels,
        predictions.source_counts,
        sampling=sampling,
        repeats=400,
    )


def test_evaluate__random_is_the_mean_of_its_subsets():
    predictions = _predictions()
    test_set = draw_test_set(
        "forward:3",
        predictions.labels,
        predictions.source_counts,
        sampling="random",
        repeats=3,
        seed=5,
    )
    accuracies = [
        metrics.accuracy(predictions.logits[w > 0], predictions.labels[w > 0])
        for w in test_set.weights
    ]
    raw, _ = evaluate(predictions, ["forward:3"], sampling="random", repeats=3, seed=5)
    assert raw.accuracy == pytest.approx(fmean(accuracies), abs=1e-12)
    assert raw.deviation.accuracy == pytest.approx(stdev(accuracies), abs=1e-12)
    assert raw.sampling == raw.deviation.sampling == "random"


def test_evaluate__an_infinite_nll_has_no_deviation():
    logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0], [0.0, -torch.inf]])
    predictions = Predictions(
        logits, torch.tensor([0, 1, 1]), logit_prior=torch.tensor([0.9, 0.1])
    )
    raw, _ = evaluate(predictions, ["uniform"], sampling="random", repeats=20)
    assert raw.nll == math.inf
    assert math.isnan(raw.deviation.nll)
    assert raw.deviation.accuracy > 0


def test_evaluate__one_pass_for_each_compensation(monkeypatch):
    """Eleven targets and the raw logits, of which uniform and raw are the same."""
    passes, score = [], records.score

    def counted(predictions, ratio, weights):
        passes.append(len(weights))
        return score(predictions, ratio, weights)

    monkeypatch.setattr(records, "score", counted)
    predictions = _predictions(logit_prior=uniform(NUM_CLASSES))
    assert len(evaluate(predictions)) == 22
    assert passes == [12] + [1] * 10


def test_evaluate__a_new_shift_by_name():
    names = ["dirichlet:1:seed3", "permuted:4", "tweak:3:0.1", "knock_out:0,1"]
    found = evaluate(_predictions(source_counts=None), names)
    assert [record.target for record in found[::2]] == names
    assert found[-1].num_samples == (NUM_CLASSES - 2) * PER_CLASS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sampling": "last"},
            "`sampling` must be one of expected, first, random, reweighted, but is "
            "'last'.",
        ),
        (
            {"sampling": "random", "repeats": 0},
            "`repeats` must be at least 1, but is 0.",
        ),
    ],
)
def test_evaluate__refuses_a_way(settings, message):
    with pytest.raises(ValueError, match="must") as error:
        evaluate(_predictions(), **settings)
    assert str(error.value) == message


def test_evaluate__takes_a_run_its_directory_or_a_file(digits_run, tmp_path):
    predictions = digits_run.predictions("test")
    path = tmp_path / "test.safetensors"
    predictions.save(path)
    expected = [record.nll for record in evaluate(predictions, ["uniform"])]
    for source in (digits_run, digits_run.directory, str(path)):
        assert [record.nll for record in evaluate(source, ["uniform"])] == expected
