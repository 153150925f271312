"""Bad input ends in one sentence, and nothing is written half."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import tailshift as ts
from tailshift.retarget import Retargeted

NAMES = ("red deer", "red fox", "lynx")


def _csv(path: Path, rows: np.ndarray, names: tuple[str, ...] = NAMES) -> Path:
    lines = [",".join(["image", *names])]
    lines += [",".join([f"{i}.jpg", *map(str, row)]) for i, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _rows(n: int = 40, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(3), n)


def _read(path: Path) -> np.ndarray:
    lines = path.read_text().splitlines()[1:]
    return np.array([[float(x) for x in line.split(",")[1:]] for line in lines])


def test_retarget__is_bayes_rule(tmp_path: Path) -> None:
    p, q = _rows(), np.array([0.2, 0.5, 0.3])
    source = np.array([0.5, 0.3, 0.2])
    (tmp_path / "n.csv").write_text("lynx,2\nred deer,5\nred fox,3\n")
    (tmp_path / "q.csv").write_text("red deer,0.2\nred fox,0.5\nlynx,0.3\n")
    path = _csv(tmp_path / "in.csv", p)
    found = ts.retarget(
        path,
        tmp_path / "out.csv",
        logit_prior=str(tmp_path / "n.csv"),
        smoothing=0,
        target=str(tmp_path / "q.csv"),
    )
    expected = p * q / source
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(_read(tmp_path / "out.csv"), expected, atol=1e-12)
    assert found.logit_prior.tolist() == pytest.approx(source.tolist())


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("LYNX=0.5", [0.25, 0.25, 0.5]),
        ("lynx=0.5,red fox=0.3", [0.2, 0.3, 0.5]),
        ("0.1,0.2,0.7", [0.1, 0.2, 0.7]),
        ("knock_out:LYNX", [0.5, 0.5, 0.0]),
    ],
)
def test_retarget__shares_by_hand(target: str, expected: list[float]) -> None:
    found = ts.retarget(_rows(), class_names=("elk", "Red_fox", "lynx"), target=target)
    assert found.target_prior.tolist() == pytest.approx(expected)


def test_retarget__floor_keeps_unlisted_classes_possible() -> None:
    p = np.array([[0.98, 0.01, 0.01]])
    strict = ts.retarget(p, class_names=NAMES, classes=["LYNX", "Red_fox"])
    kept = ts.retarget(p, class_names=NAMES, classes=["LYNX", "Red_fox"], floor=0.1)
    assert strict.scores is not None
    assert kept.scores is not None
    assert strict.scores[0].tolist() == [0, 0.5, 0.5]
    weights = p[0] * [0.1, 0.45, 0.45]
    np.testing.assert_allclose(kept.scores[0], weights / weights.sum())
    assert kept.target_prior.tolist() == pytest.approx([0.1, 0.45, 0.45])


def test_retarget__counts_are_smoothed_and_unknown_names_told(tmp_path: Path) -> None:
    (tmp_path / "gbif.csv").write_text(
        "species,numberOfOccurrences\nRed fox,8\nred deer,0\nWolverine,5\n"
    )
    found = ts.retarget(_rows(), class_names=NAMES, counts=tmp_path / "gbif.csv")
    assert found.target_prior.tolist() == pytest.approx([1 / 11, 9 / 11, 1 / 11])
    assert any("Wolverine" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("0.5,0.6,0.2", r"row 8 sums to 1\.3"),
        ("0.5,nan,0.5", "row 8 has no score or no number"),
        ("0.5,x,0.5", "row 8 has no score or no number"),
        ("0.5,0.5", "row 8 has no score or no number"),
        ("-0.5,1.2,0.3", "row 8 holds a score outside 0 to 1"),
    ],
)
def test_retarget__broken_row_is_named_and_nothing_written(
    change: str, match: str, tmp_path: Path
) -> None:
    path = _csv(tmp_path / "in.csv", _rows())
    lines = path.read_text().splitlines()
    lines[8] = f"bad.jpg,{change}"
    path.write_text("\n".join(lines))
    out = tmp_path / "out.csv"
    with pytest.raises(ValueError, match=f"{match}.*skip_broken"):
        ts.retarget(path, out, target="uniform")
    assert not out.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv"]
    found = ts.retarget(path, out, target="tweak:lynx:0.9", skip_broken=True)
    assert list(found.broken) == [8]
    after = out.read_text().splitlines()
    assert after[8] == lines[8]
    assert after[9] != lines[9]


def test_retarget__a_tenth_of_the_rows_is_broken(tmp_path: Path) -> None:
    rows = _rows(200)
    rows[::10] *= 3
    path = _csv(tmp_path / "in.csv", rows)
    with pytest.raises(ValueError, match=r"20 of 200 rows .*row 1 .* and 15 more"):
        ts.retarget(path, tmp_path / "out.csv", classes=["lynx", "red fox"])
    found = ts.retarget(path, tmp_path / "out.csv", adapt=True, skip_broken=True)
    assert len(found.broken) == 20


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "Nothing to re-target to"),
        ({"classes": []}, "`classes` is empty"),
        ({"classes": ["lynx"]}, "at least 2 classes"),
        ({"classes": ["lynx", "linx", "fux"]}, r"did you mean 'lynx'\?"),
        ({"classes": ["lynx", "Lynx", "red fox"]}, "twice: 'lynx' and 'Lynx'"),
        ({"target": "uniform", "counts": "x.csv"}, "Give one"),
        ({"target": "unifrom"}, "`target` must be one of"),
        ({"adapt": True, "logit_prior": "measured"}, "needs labels"),
        (
            {"adapt": True, "logit_prior": "transport"},
            "needs data of known distribution",
        ),
        ({"adapt": True, "scores": "softmax"}, "`scores` must be one of"),
        ({"classes": ["lynx", "red fox"], "floor": 1.0}, "`floor` must be in"),
        ({"adapt": True, "match": "exactly"}, "'expected' or 'predicted'"),
        ({"adapt": True, "reference_prior": "uniform"}, "needs a file `reference`"),
        ({"adapt": True, "site_column": "place"}, "no column 'place'.*image"),
    ],
)
def test_retarget__options_are_checked(
    options: dict[str, object], match: str, tmp_path: Path
) -> None:
    path = _csv(tmp_path / "in.csv", _rows())
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        ts.retarget(path, tmp_path / "out.csv", **options)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"one column\n1\n", "has one column"),
        (b"image,a,b\n", "no row"),
        (b"image,a,a\nx,0.5,0.5\n", "Two classes have the name 'a'"),
        (b"PAR1 cut short", "no Parquet table or is cut short"),
        (b'{"predictions": [{"filepath"', "no JSON file or is cut short"),
        (b'{"images": []}', "no classification"),
        (b'{"rows": []}', "holds neither"),
        (b"PK\x03\x04zip", "no .npz archive"),
        (b"\x93NUMPY\x01\x00", "no .npy array"),
    ],
)
def test_retarget__unreadable_files_are_told(
    content: bytes, match: str, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(content)
    with pytest.raises(ValueError, match=match):
        ts.retarget(tmp_path / "in", tmp_path / "out", target="uniform")
    assert not (tmp_path / "out").exists()


def test_retarget__name_that_matches_two_classes_is_told() -> None:
    names = ("Canis lupus (wolf)", "Canis lupus (dog)", "Felis catus (cat)")
    with pytest.raises(ValueError, match="matches 2 classes"):
        ts.retarget(_rows(), class_names=names, classes=["canis lupus", "cat"])


def test_retarget__million_classes() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(1_000_000), 2)
    names = [f"species {c}" for c in range(1_000_000)]
    found = ts.retarget(p, class_names=names, classes=["Species 5", "species 999999"])
    assert found.scores is not None
    expected = p[:, [5, 999_999]] / p[:, [5, 999_999]].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.scores[:, [5, 999_999]], expected)


def _world(counts: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return calibrated logits under the uniform prior, and labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    x = torch.randn(len(y), 3, generator=generator) + 2 * torch.eye(3)[y]
    return (2 * x).double(), y


def _accuracy(found: Retargeted, y: torch.Tensor) -> float:
    assert found.scores is not None
    return float((torch.from_numpy(found.scores).argmax(1) == y).double().mean())


def test_adapt__without_labels_reaches_the_true_prior() -> None:
    f, y = _world([900, 80, 20], seed=1)
    found = ts.retarget(f, class_names=NAMES, adapt=True)
    known = ts.retarget(f, class_names=NAMES, target=[0.9, 0.08, 0.02])
    plain = float((f.argmax(1) == y).double().mean())
    assert _accuracy(found, y) > plain + 0.5 * (_accuracy(known, y) - plain)
    assert found.interval is not None
    low, high = found.interval
    assert (low < torch.tensor([0.9, 0.08, 0.02])).all()
    assert (high > torch.tensor([0.9, 0.08, 0.02])).all()
    assert any("unverified" in note for note in found.notes)


def test_adapt__labels_repair_a_miscalibrated_model() -> None:
    held_out, labels = _world([200, 200, 200], seed=2)
    f, y = _world([600, 200, 40], seed=3)
    bias = torch.tensor([0.0, 2.0, 1.0])
    biased = ts.retarget(f + bias, class_names=NAMES, adapt=True)
    for n in (30, 600):
        order = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:n]
        some = (held_out[order] + bias, labels[order])
        found = ts.retarget(f + bias, class_names=NAMES, adapt=True, labels=some)
        assert _accuracy(found, y) > _accuracy(biased, y) + 0.02
        assert (found.adaptation is not None) == (n >= 100)


def test_labels__by_key_and_by_scores_agree(tmp_path: Path) -> None:
    f, y = _world([60, 60, 60], seed=4)
    p = f.softmax(1).numpy()
    path = _csv(tmp_path / "in.csv", p)
    keyed = "".join(f"{i}.jpg,{NAMES[c].upper()}\n" for i, c in enumerate(y[:50]))
    (tmp_path / "keyed.csv").write_text("image,label\n" + keyed)
    lines = [",".join(["label", *NAMES])]
    lines += [",".join([NAMES[c], *map(str, r)]) for c, r in zip(y, p, strict=True)]
    (tmp_path / "scored.csv").write_text("\n".join(lines[:51]))
    outputs = []
    for labels in ("keyed.csv", "scored.csv"):
        out = tmp_path / f"out_{labels}"
        found = ts.retarget(path, out, labels=tmp_path / labels, target="uniform")
        assert any("calibrated on 50 labels" in note for note in found.notes)
        outputs.append(_read(out))
    np.testing.assert_allclose(*outputs)


def test_logit_prior__estimated_from_data_of_known_distribution(tmp_path: Path) -> None:
    f, _ = _world([2000, 2000, 2000], seed=5)
    prior = torch.tensor([0.7, 0.2, 0.1]).double()
    p = (f + prior.log()).softmax(1).numpy()
    path = _csv(tmp_path / "in.csv", p)
    found = ts.retarget(
        path, tmp_path / "out.csv", target="uniform", logit_prior="transport"
    )
    assert (found.logit_prior - prior).abs().max() < 0.03


def test_sites__each_gets_its_own_prior(tmp_path: Path) -> None:
    a, _ = _world([300, 10, 10], seed=6)
    b, _ = _world([10, 300, 10], seed=7)
    c, _ = _world([1, 0, 0], seed=8)
    lines = [",".join(["image", "station", *NAMES])]
    for site, f in (("a", a), ("b", b), ("c", c)):
        rows = f.softmax(1).tolist()
        lines += [
            f"{site}{i},{site},{','.join(map(str, r))}" for i, r in enumerate(rows)
        ]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    found = ts.retarget(tmp_path / "in.csv", tmp_path / "o.csv", site_column="station")
    priors = found.site_priors
    assert priors["a"][0] > 0.8
    assert priors["b"][1] > 0.8
    assert priors["c"].max() < 0.75  # one image tells little


@pytest.mark.parametrize("match", ["expected", "predicted"])
def test_match__counts_equal_the_target(match: str) -> None:
    f, _ = _world([100, 300, 200], seed=9)
    found = ts.retarget(f, class_names=NAMES, target=[0.5, 0.25, 0.25], match=match)
    p = torch.from_numpy(np.array(found.scores)).softmax(1)
    if match == "expected":
        assert p.mean(0).tolist() == pytest.approx([0.5, 0.25, 0.25], abs=1e-9)
    else:
        counts = torch.bincount(p.argmax(1), minlength=3)
        assert (counts - torch.tensor([300, 150, 150])).abs().max() <= 3


def test_rows__permuting_classes_permutes_scores() -> None:
    f, _ = _world([50, 30, 20], seed=10)
    order = [2, 0, 1]
    names = [NAMES[c] for c in order]
    found = ts.retarget(f, class_names=NAMES, adapt=True, classes=NAMES[:2])
    other = ts.retarget(f[:, order], class_names=names, adapt=True, classes=NAMES[:2])
    assert found.scores is not None
    assert other.scores is not None
    np.testing.assert_allclose(other.scores, found.scores[:, order], atol=1e-6)


def test_command__writes_the_file_and_says_what_it_assumed(tailshift, tmp_path) -> None:
    _csv(tmp_path / "in.csv", _rows())
    (tmp_path / "list.txt").write_text("Red Fox\nLYNX\n")
    result = tailshift(
        *("retarget", "in.csv", "--classes", "list.txt", "-o", "out.csv"),
        *("--prior-output", "prior.json"),
    )
    assert result.code == 0, result.err
    assert result.out == "out.csv\n"
    assert "2 of 3 classes can occur" in result.err
    assert "logit prior: assumed uniform" in result.err
    prior = json.loads((tmp_path / "prior.json").read_text())
    assert prior == {"red deer": 0.0, "red fox": 0.5, "lynx": 0.5}
    again = tailshift("retarget", "in.csv", "--adapt", "-o", "out.csv")
    assert again.code == 2
    assert re.search("--force", again.err)
