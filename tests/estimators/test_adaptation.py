"""Adapting in one call: the decision, and the ordinary situations it must hold in."""

import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from tailshift import Predictions, priors
from tailshift.estimators import (
    EMEstimator,
    MAPEstimator,
    RepeatedSamplesWarning,
    RLLSEstimator,
    adapt,
    certify,
)
from tailshift.estimators.evidence import distinct_rows
from tailshift.estimators.known_classes import known_classes
from tailshift.sklearn import PriorShiftClassifier


def _held_out(mixture, num_samples=1000, prior=None):
    p = mixture.source_prior if prior is None else prior
    f, y = mixture.draw(p, num_samples, seed=100)
    return Predictions(f, y, (1e6 * mixture.source_prior).long(), mixture.source_prior)


def _accuracy(rule, f, y):
    return 100 * (rule(f).argmax(dim=1) == y).double().mean().item()


def test_adapt__follows_a_shift(mixture):
    mixture = mixture(6, imbalance_ratio=10.0)
    target = mixture.source_prior.flip(0)
    f, y = mixture.draw(target, 2000, seed=1)
    found = adapt(_held_out(mixture), f[:600])
    assert found.is_adapted
    assert (found.target_prior - target).abs().sum() < 0.2
    assert found.gamma == pytest.approx(-1, abs=0.2)
    low, high = found.interval
    assert bool(((low <= target) & (target <= high)).all())
    kept = _accuracy(found.retarget_as_trained, f, y)
    gain = (_accuracy(found.retarget, f, y) - kept) / 100
    assert found.gain_interval[0] < gain < found.gain_interval[1]
    assert found.reason.endswith("the estimated prior is used.")
    assert found.status == "supported"


def test_adapt__keeps_predictions_where_there_is_no_shift(mixture):
    """Or follows an estimate so near the source that accuracy does not change."""
    mixture = mixture(6, imbalance_ratio=10.0)
    f, y = mixture.draw(mixture.source_prior, 20_000, seed=7)
    lost = []
    for seed in range(8):
        new = mixture.draw(mixture.source_prior, 300, seed)[0]
        found = adapt(_held_out(mixture), new)
        kept = _accuracy(found.retarget_as_trained, f, y)
        lost.append(kept - _accuracy(found.retarget, f, y))
    assert np.mean(lost) < 0.3
    assert max(lost) < 1.5


def test_adapt__announces_its_phases(mixture):
    mixture, phases = mixture(6, imbalance_ratio=10.0), []
    new, _ = mixture.draw(mixture.source_prior, 300, seed=1)
    adapt(_held_out(mixture), new, announce=phases.append)
    assert phases == [
        "calibrating on 1,000 held-out samples",
        "estimating 6 class probabilities from 300 samples",
        "computing 100 replicates",
    ]


def test_adapt__uses_an_estimator_of_your_own(mixture):
    mixture = mixture(3, imbalance_ratio=3.0)
    own = MAPEstimator(source_prior=mixture.source_prior, center="uniform")
    x = mixture.draw(priors.uniform(3), 200, seed=1)[0].numpy()
    assert adapt(_held_out(mixture), x, estimator=own).interval.shape == (2, 3)
    assert not hasattr(own, "prior_")


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [1.0, 2.0, 0.3]])
@pytest.mark.parametrize("num_target", [1, 50])
def test_adapt__a_model_that_says_nothing(row, num_target):
    """All samples get the same logits: nothing tells one prior from another."""
    logits = torch.tensor(row).repeat(200, 1)
    counts = torch.tensor([100, 10, 1])
    held_out = Predictions(logits, torch.arange(200) % 3, source_counts=counts)
    found = adapt(held_out, logits[:num_target])
    assert bool(found.target_prior.isfinite().all())
    assert found.interval[1].max() == 1 or num_target > 1


def test_situation_1__a_model_trained_on_a_balanced_set(mixture):
    """0.2 never adapted: the width of the exponent's interval was infinity times 0."""
    mixture = mixture(10, imbalance_ratio=1.0, spread=1.0)
    q = priors.from_counts(priors.long_tailed_counts(1000, 50.0, 10))
    f, y = mixture.draw(q, 4000, seed=1)
    found = adapt(_held_out(mixture), f[:2000])
    assert found.is_adapted
    gain = _accuracy(found.retarget, f, y) - _accuracy(found.retarget_as_trained, f, y)
    assert gain > 3


def test_situation_2__balanced_validation_data(mixture):
    """The target looks like the held-out data, which are not like the source."""
    mixture = mixture(10, imbalance_ratio=20.0, spread=1.0)
    held_out = _held_out(mixture, prior=priors.uniform(10))
    f, y = mixture.draw(priors.uniform(10), 4000, seed=1)
    found = adapt(held_out, f[:2000])
    assert found.decision in ("estimate", "held_out")
    gain = _accuracy(found.retarget, f, y) - _accuracy(found.retarget_as_trained, f, y)
    assert gain > 3


@pytest.mark.parametrize("num_samples", [50, 500])
def test_situation_3__a_spike(mixture, num_samples):
    mixture = mixture(5, imbalance_ratio=20.0, spread=1.0)
    q = torch.tensor([0.025, 0.025, 0.9, 0.025, 0.025]).double()
    f, y = mixture.draw(q, 4000, seed=1)
    found = adapt(_held_out(mixture), f[:num_samples])
    assert found.is_adapted
    gain = _accuracy(found.retarget, f, y) - _accuracy(found.retarget_as_trained, f, y)
    assert gain > 10


def test_situation_4__images_of_other_things(mixture):
    mixture = mixture(6, imbalance_ratio=10.0)
    held_out = _held_out(mixture)
    x, _ = mixture.draw(priors.uniform(6), 300, seed=1)
    x = x.roll(1, dims=0) / 4 + torch.tensor([2.0, 0, 0, 0, 0, 0])
    found = adapt(held_out, x)
    assert (found.status, found.decision) == ("refused", "source")
    assert certify(held_out, x).is_refused
    assert "do not look like any mixture" in found.reason
    assert adapt(held_out, x, num_replicates=39).assumption_p_value == 1 / 400


def test_situation_5__labels_of_few_of_many_classes(mixture):
    """200 classes, 10 of them live here: only these have held-out labels."""
    mixture = mixture(200, imbalance_ratio=1.0, spread=0.7)
    here = torch.zeros(200).double()
    here[::20] = 0.1
    f, y = mixture.draw(here, 1200, seed=1)
    held_out = Predictions(f[:300], y[:300], logit_prior=mixture.source_prior)
    target = f[300:][y[300:] < 120]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = adapt(held_out, target)
        certificate = certify(held_out, target)
    assert "190 of 200 classes have no held-out labels" in found.reason
    assert found.target_prior[here == 0].sum() == 0
    own = y[300:][y[300:] < 120]
    plain = 100 * (target.argmax(dim=1) == own).double().mean().item()
    truth = _accuracy(found.retarget, target, own)
    assert truth > plain + 5
    low, high = certificate.accuracy_interval
    assert low <= truth / 100 <= high
    assert certificate.recall[here == 0].isnan().all()


def test_situation_7_and_18__too_little_evidence_is_marked(mixture):
    mixture = mixture(4, imbalance_ratio=5.0)
    f, _ = mixture.draw(priors.uniform(4), 200, seed=1)
    few_photos = certify(_held_out(mixture), f[:12])
    few_labels = certify(_held_out(mixture, 60), f)
    assert few_photos.is_indicative
    assert "only 12 distinct unlabelled samples" in few_photos.reason
    assert few_labels.is_indicative
    assert "only 60 held-out labels" in few_labels.reason
    low, high = few_photos.macro_recall_interval
    assert high - low > 0.1


def test_situation_14__rlls_where_held_out_and_source_priors_differ(mixture):
    mixture = mixture(5, imbalance_ratio=20.0)
    f, y = mixture.draw(priors.uniform(5), 500, seed=0)
    made = RLLSEstimator(source_prior=mixture.source_prior).fit(f, y)
    for q in (priors.uniform(5), mixture.source_prior):
        found = made.estimate(mixture.draw(q, 1000, seed=1)[0])
        assert (found - q).abs().sum() < 0.25


def test_situation_15__one_picture_sent_120_times(mixture):
    mixture = mixture(4, imbalance_ratio=5.0)
    x, _ = mixture.draw(priors.uniform(4), 1, seed=1)
    with pytest.warns(RepeatedSamplesWarning, match="119 of 120"):
        found = certify(_held_out(mixture), x.repeat(120, 1))
    assert (found.num_target, found.num_repeated) == (1, 119)
    assert found.is_indicative
    assert found.target_prior.max() < 0.9


def test_distinct_rows__of_a_model_with_few_scores_are_kept():
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    tree = scores[torch.arange(50) % 2]
    assert len(distinct_rows(tree, tree)) == 50
    assert len(distinct_rows(tree, torch.randn(50, 2))) == 2


@pytest.mark.parametrize("estimator", [MAPEstimator(), EMEstimator()])
def test_situation_16__estimates_from_many_threads(mixture, estimator):
    mixture = mixture(5, imbalance_ratio=10.0)
    estimator.fit(*mixture.draw(mixture.source_prior, 300, seed=0))
    targets = [mixture.draw(priors.uniform(5), 50 + s, seed=s)[0] for s in range(8)]
    expected = [estimator.estimate(x) for x in targets]
    found: dict[int, torch.Tensor] = {}

    def work(i):
        for _ in range(5):
            found[i] = estimator.estimate(targets[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, q in enumerate(expected):
        torch.testing.assert_close(found[i], q, rtol=0, atol=1e-12)


def test_situation_20__predictions_use_the_calibrator_through_both_entries(mixture):
    mixture = mixture(5, imbalance_ratio=20.0, sharpness=3.0)
    q = mixture.source_prior.flip(0)
    f, y = mixture.draw(q, 4000, seed=1)
    found = adapt(_held_out(mixture), f[:500])
    assert found.calibrator is not None
    plain = f + (found.estimated_prior / mixture.source_prior).log()
    calibrated = found.retarget(f)
    nll = [torch.nn.functional.cross_entropy(g, y).item() for g in (plain, calibrated)]
    assert nll[1] < nll[0]
    assert PriorShiftClassifier(None).calibrator == "auto"
    assert MAPEstimator().calibrator == "auto"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["cat", "dig"], "1 unknown classes; the first is 'dig'.*dog"),
        (["cat"], "must name at least 2 classes, got 1"),
    ],
)
def test_known_classes__rejects(classes, message):
    held_out = Predictions(torch.zeros(1, 3), [0], class_names=("cat", "dog", "kea"))
    with pytest.raises(ValueError, match=message):
        known_classes(classes, held_out)


def test_known_classes__named_in_a_file_with_a_floor(mixture, tmp_path):
    mixture = mixture(4, imbalance_ratio=2.0)
    path = tmp_path / "here.txt"
    path.write_text("class 2\n\n0\n")
    x, _ = mixture.draw(torch.tensor([0.5, 0, 0.5, 0]).double(), 300, seed=1)
    found = adapt(_held_out(mixture), x, classes=path, floor=0.04)
    torch.testing.assert_close(
        found.target_prior[[1, 3]].sum(), torch.tensor(0.04).double()
    )
    log_p = found.retarget(x)
    torch.testing.assert_close(log_p.exp().sum(dim=1), torch.ones(300).double())
    assert (log_p.argmax(dim=1) % 2 == 0).double().mean() > 0.97
    bare = adapt(_held_out(mixture), x, classes=["class 0", 2])
    assert bool((bare.retarget(x)[:, [1, 3]] == -torch.inf).all())


MANY_CLASSES = """
import torch, warnings
from pathlib import Path
from tailshift import Predictions, adapt

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if "VmHWM" in line)

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
held_out = Predictions(torch.randn(2000, 2000), torch.arange(2000))
new = torch.randn(2000, 2000)
held_out.logits.diagonal().add_(9.0)
new[:, :1000].diagonal().add_(9.0)
adapt(Predictions(torch.randn(60, 3), torch.arange(60) % 3), torch.randn(60, 3))
before = peak()
adapt(held_out, new)
print((peak() - before) / new.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_adapt__many_classes_take_bounded_memory():
    """Two thousand classes; the first call is for its imports."""
    command = [sys.executable, "-c", MANY_CLASSES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 1 < float(done.stdout) < 40
