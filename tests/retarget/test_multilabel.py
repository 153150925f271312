"""Several labels per image, and rolling up: exact on discrete worlds."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import tailshift as ts
from tailshift.retarget.multilabel import estimate_frequencies
from tailshift.retarget.rollup import Taxonomy


def test_multilabel__is_exact_on_a_discrete_world(tmp_path: Path) -> None:
    """Two labels, four observations each; posteriors by enumeration."""
    rng = np.random.default_rng(0)
    likelihood = rng.dirichlet(np.ones(4), (2, 2))  # label, present, observation
    before, after = np.array([0.3, 0.6]), np.array([0.05, 0.9])

    def posterior(prior: np.ndarray) -> np.ndarray:
        joint = likelihood * np.stack([1 - prior, prior], axis=1)[:, :, None]
        return joint[:, 1] / joint.sum(axis=1)  # (label, observation)

    cells = list(product(range(4), repeat=2))
    old, new = (
        np.array([[posterior(prior)[c, x[c]] for c in (0, 1)] for x in cells])
        for prior in (before, after)
    )
    found = ts.retarget(
        old, class_names=["a", "b"], logit_prior=before, target=after, multilabel=True
    )
    np.testing.assert_allclose(found.scores, new, atol=1e-10)
    # EM on the exact frequencies of the observations finds the frequencies.
    counts = 20_000 * np.einsum(
        "cx,c->cx", likelihood[:, 1], after
    ) + 20_000 * np.einsum("cx,c->cx", likelihood[:, 0], 1 - after)
    for c in (0, 1):
        scores = np.repeat(posterior(before)[c], counts[c].round().astype(int))[:, None]
        q = estimate_frequencies(scores, before[c : c + 1])
        assert q[0] == pytest.approx(after[c], abs=2e-3)


def test_multilabel__sigmoid_scores_are_recognised_and_files_read(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    s = rng.random((50, 3))
    lines = ["file,blackbird,robin,wren"]
    lines += [f"{i}.wav,{','.join(map(repr, row))}" for i, row in enumerate(s.tolist())]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    (tmp_path / "f.csv").write_text("Robin,0.2\nwren,0.5\nblackbird,0.5\n")
    found = ts.retarget(
        tmp_path / "in.csv", tmp_path / "out.csv", target=tmp_path / "f.csv"
    )
    assert found.kind == "sigmoid"
    after = [line.split(",")[1:] for line in (tmp_path / "out.csv").read_text().split()]
    after = np.array(after[1:], dtype=float)
    np.testing.assert_allclose(after[:, [0, 2]], s[:, [0, 2]], atol=1e-9)
    np.testing.assert_allclose(
        after[:, 1], s[:, 1] * 0.25 / (s[:, 1] * 0.25 + 1 - s[:, 1])
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"target": [0.5, 1.5, 0.1]}, "a frequency from 0 to 1"),
        ({"target": "uniform"}, "a file of label names and frequencies"),
        ({"classes": ["x"]}, "names no label"),
        ({"adapt": True, "match": "expected"}, "one label per image"),
    ],
)
def test_multilabel__options_are_checked(options: dict, match: str) -> None:
    s = np.random.default_rng(0).random((9, 3))
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        ts.retarget(s, class_names=list("abc"), multilabel=True, **options)


NAMES = ("Fruit/Apple/Gala", "Fruit/Apple/Fuji", "Fruit/Pear", "Leaf")


def test_rollup__sums_agree_with_enumeration() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(4), 200)
    tree = Taxonomy.from_names(NAMES)
    sums = tree.node_probabilities(p)
    for i, node in enumerate(tree.nodes):
        below = [
            c
            for c, name in enumerate(NAMES)
            if node == tree.root or name == node or name.startswith(f"{node}/")
        ]
        np.testing.assert_allclose(sums[:, i], p[:, below].sum(axis=1), atol=1e-10)
    depth = {node: len(node.split("/")) for node in tree.nodes} | {tree.root: 0}
    for row, (node, value) in zip(sums, tree.roll_up(p, 0.6), strict=True):
        sure = [n for n, s in zip(tree.nodes, row, strict=True) if s >= 0.6]
        assert node == max(sure, key=depth.__getitem__)
        assert value == pytest.approx(row[tree.nodes.index(node)])


def test_rollup__file_of_parents_and_command_option(tmp_path: Path) -> None:
    (tmp_path / "tree.csv").write_text("roe,deer\nred,deer\ndeer,mammal\nowl,bird\n")
    names = ["roe", "red", "owl"]
    tree = Taxonomy.load(tmp_path / "tree.csv", names)
    assert tree.roll_up(np.array([[0.5, 0.45, 0.05]]), 0.9) == [("deer", 0.95)]
    assert tree.common_node([0, 1]) == "deer"
    (tmp_path / "in.csv").write_text("i,roe,red,owl\na,0.5,0.4,0.1\nb,0.9,0.1,0\n")
    ts.retarget(
        tmp_path / "in.csv",
        tmp_path / "out.csv",
        classes=["roe", "red"],
        taxonomy=tmp_path / "tree.csv",
        confidence=0.8,
        nodes=tmp_path / "nodes.csv",
    )
    lines = (tmp_path / "nodes.csv").read_text().splitlines()
    assert lines == ["row,node,probability", "1,deer,1.0", "2,roe,0.9"]
    (tmp_path / "loop.csv").write_text("roe,a\na,roe\n")
    with pytest.raises(ValueError, match="own ancestor"):
        Taxonomy.load(tmp_path / "loop.csv", names)
