"""`tailshift figures` and `tailshift reproduce figure…`: what is drawn from what."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailshift as ts

Command = Callable[..., Any]

COUNTS = np.array([400, 100, 30, 8])
NAMES = (
    "accuracy_change",
    "average_probability",
    "class_counts",
    "class_logits",
    "reliability",
    "target_shift",
)


def _save(path: str, **fields: object) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(4).repeat(25)
    logits = rng.normal(size=(100, 4)) + 2 * np.eye(4)[y] + np.log(COUNTS / 538)
    np.savez(path, **({"logits": logits, "labels": y} | fields))


def _keep(folder: str, *recipes: str) -> None:
    """Keep logits under the names of recipes."""
    Path(folder).mkdir()
    _save("any.npz", source_counts=COUNTS, logit_prior=COUNTS / 538)
    for recipe in recipes:
        path = Path(folder) / f"cifar100_lt_ir100_{recipe}.safetensors"
        ts.Predictions.load("any.npz").save(path)


def test_help__ends_with_an_example(tailshift: Command) -> None:
    result = tailshift("figures", "--help")
    assert result.code == 0
    example = "tailshift figures runs/digits_lt/lade-seed0 -o figures"
    assert result.out.rstrip().splitlines()[-1] == f"  Example: {example}"


def test_figures__of_logits(tailshift: Command) -> None:
    _save("a.npz", source_counts=COUNTS, logit_prior=COUNTS / 538)
    result = tailshift("figures", "My model=a.npz", "-o", "out")
    names = [f"out/{name}.{kind}" for name in NAMES for kind in ("svg", "png")]
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == names
    assert all(Path(name).stat().st_size > 1000 for name in names)
    text = Path("out/average_probability.svg").read_text(encoding="utf-8")
    assert "PC My model" in text
    again = tailshift("figures", "My model=a.npz", "-o", "out")
    assert (again.code, again.out, again.err) == (
        2,
        "",
        "error: out/accuracy_change.svg exists. Replace it (--force) or name another "
        "folder.\n",
    )
    options = ("--figure", "reliability", "--force", "-o", "out")
    again = tailshift("figures", "a.npz", *options)
    assert again.out.splitlines() == ["out/reliability.svg", "out/reliability.png"]


def test_figures__of_logits_without_priors(tailshift: Command) -> None:
    _save("a.npz")
    result = tailshift("figures", "a.npz", "-o", "out")
    assert result.code == 0
    lines = result.err.splitlines()
    assert lines[0].startswith("note: a.npz does not say which prior")
    assert lines[2] == (
        "note: class_counts is skipped: the runs do not say how many training images "
        "each class has."
    )
    assert len(lines) == 4


def test_figures__of_runs_with_several_alphas(
    tailshift: Command, tiny_config: Callable[..., ts.RunConfig]
) -> None:
    for alpha in (0.0, 1.0):
        config = tiny_config("method.name=lade", f"method.alpha={alpha}")
        ts.train(config, output=f"alpha{alpha:g}")
    options = ("--figure", "class_logits", "-o", "out")
    result = tailshift("figures", "alpha0", "alpha1", *options)
    assert (result.code, result.err) == (0, "")
    text = Path("out/class_logits.svg").read_text(encoding="utf-8")
    assert "LADE (α = 0)" in text
    assert "LADE (α = 1)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Name a run directory, or a file of logits."),
        (
            ("a.npz", "--figure", "reliabilty"),
            "unknown figure 'reliabilty'; did you mean 'reliability'? Known: "
            f"{', '.join(NAMES)}",
        ),
    ],
)
def test_figures__refuses_with_a_sentence(
    tailshift: Command, arguments: tuple[str, ...], message: str
) -> None:
    _save("a.npz", source_counts=COUNTS, logit_prior=COUNTS / 538)
    result = tailshift("figures", *arguments, "-o", "out")
    assert (result.code, result.err) == (2, f"error: {message}\n")
    assert not Path("out").exists()


def test_reproduce__figure_from_kept_logits(tailshift: Command) -> None:
    _keep("kept", "softmax_quick-seed0", "lade_quick-official-seed0")
    command = ("reproduce", "figure2", "--quick", "--logits", "kept")
    title = (
        "Figure 2: Average probability of each class on the balanced test set, "
        "CIFAR-100-LT; ours: quick recipes, LADE in mode official\n"
    )
    assert tailshift(*command, "--dry-run") == (0, title, "")
    assert not Path("figures").exists()
    paths = "figures/figure2.svg\nfigures/figure2.png\n"
    assert tailshift(*command) == (0, title + paths, "")
    text = Path("figures/figure2.svg").read_text(encoding="utf-8")
    assert "PC Softmax" in text
    assert "LADE" in text
    assert tailshift(*command) == (
        2,
        "",
        "error: figures/figure2.svg exists. Replace it (--force) or name another.\n",
    )


def test_reproduce__quick_does_not_train_what_is_long(tailshift: Command) -> None:
    result = tailshift("reproduce", "figure4", "--quick")
    assert result.code == 0
    assert result.err.splitlines() == [
        f"note: there is no run of {title}."
        for title in ("Causal Norm", "Balanced Softmax", "Softmax", "LADE")
    ]
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("figure5",),
            "`what` must be one of table1, table2, table3, table4, table5, table6, "
            "table7, table8, table9, table10, table11, figure2, figure3, figure4, "
            "figure6, but is 'figure5'.",
        ),
        (
            ("figure2", "--csv", "a.csv"),
            "`--csv`, `--markdown` and `--latex` are for tables.",
        ),
    ],
)
def test_reproduce__refuses_with_a_sentence(
    tailshift: Command, arguments: tuple[str, ...], message: str
) -> None:
    result = tailshift("reproduce", *arguments)
    assert (result.code, result.out, result.err) == (2, "", f"error: {message}\n")


def test_other_commands__do_not_wait_for_matplotlib() -> None:
    code = "import tailshift.cli, sys; raise SystemExit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
