"""Sites: a stream's estimate, the file that keeps it, and what such a file may hold."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tailshift import Predictions, priors
from tailshift.estimators import OnlineEstimator
from tailshift.serving.sites import Sites

NAMES = ("kea", "kiwi", "tui")
PROBE = np.array([1.0, 2.0, 3.0], np.float32)
SOURCE = np.array([0.6, 0.3, 0.1])


def _sample(shares: Any, size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw labels, and logits that are the true posteriors under `SOURCE`."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.as_tensor(shares, dtype=torch.float64)
    y = torch.multinomial(weights, size, replacement=True, generator=generator)
    means = 2.5 * torch.eye(3)
    x = means[y] + torch.randn(size, 3, generator=generator)
    f = x @ means.T - 0.5 * means.square().sum(dim=1) + torch.tensor(SOURCE).log()
    return f.float(), y


@pytest.fixture(scope="module")
def held_out() -> Predictions:
    f, y = _sample(SOURCE, 1000)
    prior = priors.as_prior(SOURCE)
    return Predictions(f, y, torch.tensor([600, 300, 100]), prior, NAMES)


def _open(path: Path | None = None, **settings: Any) -> Sites:
    made: dict[str, Any] = {"class_names": NAMES, "source_prior": SOURCE}
    return Sites(path, **(made | {"probe": PROBE} | settings))


def test_refresh__is_the_estimate_of_the_stream(held_out: Predictions) -> None:
    """A window of blocks must say what `OnlineEstimator` says, batch by batch."""
    sites = _open(held_out=held_out, half_life=100)
    stream = OnlineEstimator(
        source_prior=SOURCE, logit_prior=SOURCE, half_life=100
    ).fit(held_out.logits, held_out.labels)
    for k, shares in enumerate(([6, 3, 1], [1, 1, 8], [1, 8, 1])):
        f, _ = _sample(shares, 400, seed=k + 1)
        for block in f.split(100):
            sites.record("hill", block.numpy())
            sites.refresh()
            stream.strength = sites.get("hill").strength
            expected = stream.update(block)
    np.testing.assert_allclose(sites.get("hill").estimate, expected, atol=1e-6)
    assert len(sites.window("hill")) == 600  # six half-lives
    assert sites.get("hill").num_seen == 1200
    found = [judgement.num_seen for judgement in sites.history("hill")]
    assert found == sorted(found)
    assert found[0] == 100


def test_mix__follows_a_supported_estimate_near_the_truth(
    held_out: Predictions,
) -> None:
    sites = _open(held_out=held_out, adapt="auto")
    sites.record("hill", _sample([1, 1, 8], 500, seed=1)[0].numpy())
    sites.record("lake", _sample(SOURCE, 500, seed=2)[0].numpy())
    assert sites.mix("hill").origin == "training"
    sites.refresh()
    mix = sites.mix("hill")
    assert mix.origin == "estimate"
    np.testing.assert_allclose(mix.shares, [0.1, 0.1, 0.8], atol=0.06)
    assert sites.mix("lake").origin == "training"


def test_refresh__tells_what_accuracy_to_expect_or_that_nobody_can(
    held_out: Predictions, tmp_path: Path
) -> None:
    sites = _open(tmp_path / "sites.sqlite", held_out=held_out)
    target = np.array([0.1, 0.1, 0.8])
    f, y = _sample(target, 1000, seed=1)
    sites.record("hill", f.numpy())
    sites.record("lake", (3 * f).numpy())  # of another camera: no mixture of classes
    sites.refresh()
    answers = (f, f + torch.tensor(np.log(target / SOURCE)))
    truth = [(g.argmax(dim=1) == y).double().mean().item() for g in answers]
    expected = sites.get("hill").expected
    np.testing.assert_allclose(expected[:, 0], truth, atol=0.03)
    assert (expected[:, 1] < truth).all()
    assert (expected[:, 2] > truth).all()
    assert truth[1] - truth[0] > 0.05
    [mixed] = sites.alarms("hill")
    assert mixed.startswith("The class distribution has shifted")
    assert sites.get("lake").expected is None
    assert sites.alarms("lake")[0] == (
        "The samples do not look like any mixture of the known classes (p = 0.010): no "
        "figure can be given."
    )
    sites.close()
    again = _open(tmp_path / "sites.sqlite", held_out=held_out)
    np.testing.assert_array_equal(again.get("hill").expected, expected)
    assert again.alarms("lake") == sites.alarms("lake")


def test_file__is_of_one_model_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "sites.sqlite"
    first = _open(path)
    with pytest.raises(ValueError, match="state") as held:
        _open(path)
    first.close()
    with pytest.raises(ValueError, match="state") as other:
        _open(path, probe=PROBE + 1)
    _open(path, probe=PROBE + 1e-4).close()
    (tmp_path / "text.sqlite").write_text("no database" * 100)
    with pytest.raises(ValueError, match="state") as text:
        _open(tmp_path / "text.sqlite")
    rule = "`state` must be a file of `tailshift serve` or a new one, but"
    assert [str(found.value) for found in (held, other, text)] == [
        f"{rule} {path} is held by another process. Name another.",
        f"`state` must be of the same model, but {path} was kept for one with other "
        "classes or weights. Name a new file.",
        f"{rule} {tmp_path / 'text.sqlite'} cannot be used (file is not a database). "
        "Name another.",
    ]


def test_file__a_mix_of_another_length_is_refused(tmp_path: Path) -> None:
    sites = _open(tmp_path / "sites.sqlite")
    sites.record("hill", np.zeros((1, 3), np.float32))
    sites.close()
    file = sqlite3.connect(tmp_path / "sites.sqlite")
    with file:
        file.execute("UPDATE sites SET approved = x'00'")
    file.close()
    with pytest.raises(ValueError, match="state") as error:
        _open(tmp_path / "sites.sqlite")
    assert str(error.value) == (
        "`state` must hold mixes of 3 classes, but holds one of 1 bytes. Name a new "
        "file."
    )


def test_record__while_it_is_refreshed_loses_nothing(held_out: Predictions) -> None:
    sites = _open(held_out=held_out, half_life=1000)
    f = _sample([1, 1, 1], 2000, seed=3)[0].numpy()
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            sites.flush()

    thread = threading.Thread(target=flush)
    thread.start()
    for row in f:
        sites.record("hill", row[None])
    stop.set()
    thread.join()
    sites.flush()
    np.testing.assert_array_equal(sites.window("hill"), f)


def test_adapt__must_be_known() -> None:
    with pytest.raises(ValueError, match="adapt") as error:
        _open(adapt="yes")
    assert str(error.value) == (
        "`adapt` must be 'auto', 'approve' or 'never', but is 'yes'."
    )
