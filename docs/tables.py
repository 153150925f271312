"""Fill the tables of README and docs from ``results/*.csv``.

Run ``python docs/tables.py``; with ``--check`` it only says whether they are current.
"""

import csv
import math
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import retarget_figure
import retarget_table
import torch

from tailshift import Predictions, post_compensate, priors, reproduce
from tailshift.evaluation.results import read_results
from tailshift.methods import METHODS
from tailshift.metrics import class_groups
from tailshift.paper.comparison import Comparison
from tailshift.report.runs import row_names

ROOT = Path(__file__).parents[1]
MAIN = ("softmax", "balanced_softmax", "lade")
"""The methods of the shift tables, one column each; all others have a row."""
SHORT = ("Softmax", "PC Softmax", "Balanced Softmax", "PC Balanced Softmax", "LADE")
"""The methods of the README's first table."""
GUIDE = (
    "PC Softmax",
    "PC Balanced Softmax",
    "LADE (official)",
    "LADE (paper, alpha=0.01)",
    "PC SADE",
    "Softmax",
)
"""The rows of the guide's table, as :func:`columns` names them."""
LADE_SETTINGS = "alpha=0.1 lam=0.01 class_weights=source"
UNFITTED = ("bbn", "cb_focal")
"""Methods that the quick recipes do not fit; their rows would mislead."""
TARGETS = ("forward:50", "forward:10", "uniform", "backward:10", "backward:50")
PRINTED = {
    "softmax": "41.0",
    "focal": "38.4",
    "cb_focal": "",
    "ldam": "about 39",
    "ldam_drw": "42.0",
    "oltr": "",
    "crt": "40.3 (re-run)",
    "tau_norm": "41.0 (re-run)",
    "lws": "40.2 (re-run)",
    "ncm": "",
    "bbn": "42.6",
    "causal_norm": "44.1",
    "balanced_softmax": "45.1",
    "logit_adjustment": "",
    "lade": "45.4",
    "sade": "49.8 (its own paper)",
    "mislas": "47.0 (its own paper)",
}
"""The methods in the order of tables, with the accuracy on the uniform test set after
200 epochs as printed: the paper's, or an independent re-run's if it has none."""

SADE_UNKNOWN = {
    "forward:50": 65.9,
    "forward:10": 58.3,
    "uniform": 49.8,
    "backward:10": 43.9,
    "backward:50": 42.4,
}
"""What SADE's paper prints for an unknown prior, imbalance ratio 100."""

Rows = list[dict[str, str]]


def read(name: str) -> Rows:
    """Return the rows of a results file."""
    path = ROOT / "results" / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_runs(name: str) -> Rows:
    """Return the rows of a file of runs, methods in the order of tables."""
    order = list(PRINTED)
    rows = read_results(ROOT / "results" / f"{name}.csv")
    return sorted(rows, key=lambda row: order.index(row["method"]))


RUN = ("recipe", "method", "mode", "settings", "seed")
"""The columns that tell two runs apart."""


def alike(rows: Rows) -> Rows:
    """Return one row per run and target, with the same kind of test sets if possible.

    Rows by expectation are taken if every run has them, else rows of the first images
    of each class if every run has those. Otherwise each run has what there is.
    """
    ways: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in rows:
        ways[_run(row)].add(row["sampling"])
    shared = set.intersection(*ways.values()) if ways else set()
    chosen = {run: min(shared or own) for run, own in ways.items()}
    return [row for row in rows if row["sampling"] == chosen[_run(row)]]


def _run(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[column] for column in RUN)


SAMPLING = {
    "expected": "shifted test sets by expectation",
    "first": "shifted test sets of the first images of each class",
    "reweighted": "re-weighted test images",
}
"""How test sets were drawn, as captions say it."""


def changes(row: dict[str, str]) -> str:
    """Return the settings of a run that are not its recipe's, the method's apart."""
    return " ".join(
        part for part in row["settings"].split() if "." in part.partition("=")[0]
    )


def title(row: dict[str, str]) -> str:
    """Return the method as tables show it, with its mode if it has several."""
    name = METHODS.get(row["method"]).title
    notes = [row["mode"]] if row["mode"] else []
    if row["method"] == "lade":
        known = [*LADE_SETTINGS.split(), *changes(row).split()]
        notes += [part for part in row["settings"].split() if part not in known]
    return f"{name} ({', '.join(notes)})" if notes else name


def columns(rows: Rows) -> dict[str, dict[str, list[float]]]:
    """Return accuracies by column of a table (raw and PC) and target."""
    table: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        compensates = METHODS.get(row["method"]).compensates
        names = row_names(title(row), compensates=compensates)
        for is_compensated, name in names.items():
            accuracy = float(row["compensated" if is_compensated else "raw"])
            table[name][row["target"]].append(accuracy)
    return table


def cell(values: list[float]) -> str:
    """Return mean ± sd, or the one value there is."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{fmean(values):.1f} ± {stdev(values):.1f}"


def shift_table(rows: Rows) -> str:
    """Return targets down, methods across, the best of each target in bold."""
    table = columns(rows)
    lines = [
        "| target | " + " | ".join(table) + " |",
        "|---|" + "---|" * len(table),
    ]
    for target in dict.fromkeys(row["target"] for row in rows):
        means = {name: fmean(by[target]) for name, by in table.items()}
        best = f"{max(means.values()):.1f}"
        cells = [
            f"**{cell(by[target])}**"
            if f"{means[name]:.1f}" == best
            else cell(by[target])
            for name, by in table.items()
        ]
        lines.append(f"| {target.replace(':', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def guide_table(rows: Rows) -> str:
    """Return the methods of the guide down, three targets across."""
    table = columns(rows)
    targets = ("forward:50", "uniform", "backward:50")
    heads = " | ".join(target.replace(":", " ") for target in targets)
    lines = [f"| method | seeds | {heads} |", "|---|---:|---:|---:|---:|"]
    for name in GUIDE:
        cells = " | ".join(cell(table[name][target]) for target in targets)
        lines.append(f"| {name} | {len(table[name]['uniform'])} | {cells} |")
    return "\n".join(lines)


def method_table(rows: Rows) -> str:
    """Return a Markdown table, one row a method: raw → compensated, by target.

    If the runs say so, also what one took of the processor.
    """
    by_method: dict[str, dict[str, Rows]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_method[title(row)][row["target"]].append(row)
    is_timed = any(row.get("processor_minutes") for row in rows)
    heads = [target.replace(":", " ") for target in TARGETS]
    heads += ["printed, uniform", *(["CPU minutes"] if is_timed else [])]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name, by_target in by_method.items():
        cells = [
            " → ".join(
                cell([float(row[way]) for row in by_target[target]])
                for way in ("raw", "compensated")
            )
            for target in TARGETS
        ]
        own = by_target["uniform"]
        is_printed = own[0]["mode"] in (
            "",
            "official",
        )  # the paper's LADE is the code's
        cells.append(PRINTED.get(own[0]["method"], "") if is_printed else "")
        if is_timed:
            cells.append(_processor_minutes(own))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _processor_minutes(rows: Rows) -> str:
    known = [float(text) for row in rows if (text := row.get("processor_minutes"))]
    return f"{fmean(known):.1f}" if known else ""


def ratio_table(rows: Rows) -> str:
    """Return a Markdown table of the uniform test set, an imbalance ratio a column."""
    table: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["target"] == "uniform":
            mode = f" ({row['mode']})" if row["mode"] else ""  # α goes by the ratio
            name = METHODS.get(row["method"]).title + mode
            table[name][row["imbalance_ratio"]].append(float(row["compensated"]))
    ratios = ("100", "50", "10")
    several = {name: by for name, by in table.items() if len(by) > 1}
    lines = ["| compensated to uniform | 100 | 50 | 10 |", "|---|---|---|---|"]
    for name, by in several.items():
        cells = " | ".join(cell(by[r]) if r in by else "" for r in ratios)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def unknown_table() -> str:
    """Return targets down, and across the prior that is answered for."""
    rows = read("unknown_prior")
    columns = ("none", "estimated", "adapt", "known")
    sade_head = "SADE, estimated, as printed by SADE"
    lines = [f"| target | {' | '.join(columns)} | {sade_head} |", "|---" * 6 + "|"]
    for target, sade in SADE_UNKNOWN.items():
        own = [row for row in rows if row["target"] == target]
        cells = [cell([float(row[column]) for row in own]) for column in columns]
        lines.append(f"| {target.replace(':', ' ')} | {' | '.join(cells)} | {sade} |")
    return "\n".join(lines)


MEASURES = {
    "accuracy, prior known": ("accuracy", "known", "1", 1),
    "accuracy, prior estimated": ("accuracy", "estimated", "1", 1),
    "NLL": ("nll", "known", "1", 3),
    "NLL, temperature fitted": ("nll", "known", "fitted", 3),
    "Brier score": ("brier", "known", "1", 3),
    "Brier score, temperature fitted": ("brier", "known", "fitted", 3),
    "ECE": ("ece", "known", "1", 3),
    "ECE, temperature fitted": ("ece", "known", "fitted", 3),
}
"""Rows of the table of what LADE buys: column, prior, temperature and decimals."""


def gains_table() -> str:
    """Return measures down, targets across: Balanced Softmax / LADE, same seeds."""
    rows = read("calibration")
    pair = [
        [row for row in rows if row["run"] == f"cifar100_lt_ir100_{run}"]
        for run in ("balanced_softmax_quick", "lade_quick-official")
    ]
    seeds = set.intersection(*({row["seed"] for row in own} for own in pair))
    heads = " | ".join(target.replace(":", " ") for target in TARGETS)
    lines = [f"| Balanced Softmax / LADE | {heads} |", "|---" * 6 + "|"]
    for name, (measure, *case, decimals) in MEASURES.items():
        cells = []
        for target in TARGETS:
            means = [
                fmean(
                    float(row[measure])
                    for row in own
                    if row["seed"] in seeds
                    and [row["target"], row["prior"], row["temperature"]]
                    == [target, *case]
                )
                for own in pair
            ]
            cells.append(" / ".join(f"{mean:.{decimals}f}" for mean in means))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Means over seeds {', '.join(sorted(seeds))}."])


@cache
def printed(what: str) -> list[Comparison]:
    """Return the cells of a table of the paper, ours from the kept logits."""
    logits = ROOT / "results" / "logits"
    return reproduce(
        what, runs=ROOT / "results", logits=logits, dry_run=True
    ).comparisons()


def printed_cells(what: str) -> dict[str, dict[str, str]]:
    """Return ours (printed) of a table of the paper, by method and column.

    Methods of which there is no run are left out.
    """
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for number in printed(what):
        if number.num_seeds:
            ours = f"{number.ours_mean:.{number.decimals}f}"
            paper = f"{number.paper:.{number.decimals}f}"
            shown = ours if math.isnan(number.paper) else f"{ours} ({paper})"
            cells[number.row][number.column] = shown
    return cells


def printed_table(what: str, columns: Sequence[str] = ()) -> str:
    """Return a table of the paper, ours (printed), columns down and methods across.

    ``columns`` are those that are shown, all if none is named.
    """
    cells = printed_cells(what)
    found = dict.fromkeys(column for by in cells.values() for column in by)
    return _across({name.replace(":", " "): (cells, name) for name in columns or found})


def spread_line(what: str) -> str:
    """Return how far one test set can lie from the expectation, by column."""
    largest: dict[str, tuple[float, float]] = {}
    for number in printed(what):
        if number.num_seeds:
            sd, error = largest.get(number.column, (0.0, 0.0))
            error = max(error, number.standard_error)
            largest[number.column] = max(sd, number.subset_sd), error
    parts = [
        f"{column.replace(':', ' ')} {sd:.1f} and {error:.1f}"
        for column, (sd, error) in largest.items()
    ]
    return (
        "Standard deviation over test sets with the paper's counts and standard error "
        f"over test images, in points: {', '.join(parts)}."
    )


def short_table() -> str:
    """Return ours (printed) at two ratios and two shifts, and what is not run."""
    ratios, shifts = printed_cells("table2"), printed_cells("table9")
    table = _across(
        {
            "CIFAR-100-LT, ratio 100, uniform": (ratios, "100"),
            "CIFAR-100-LT, ratio 50, uniform": (shifts, "uniform"),
            "CIFAR-100-LT, ratio 50, forward 50": (shifts, "forward:50"),
            "CIFAR-100-LT, ratio 50, backward 50": (shifts, "backward:50"),
        },
        SHORT,
    )
    missing = ", ".join(
        name
        for name, (what, columns) in OTHER_BENCHMARKS.items()
        if not any(n.num_seeds and n.column in columns for n in printed(what))
    )
    lines = [table, f"| {missing} | {' | '.join(['not run'] * len(SHORT))} |"]
    caption = (
        "Accuracy in %, ours (printed); the paper's recipe of 200 epochs; one seed, "
        "bf16, two CPU cores. LADE is in mode `official`."
    )
    return "\n".join([*lines, "", caption])


OTHER_BENCHMARKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "CIFAR-100-LT, ratio 10": ("table2", ("10",)),
    "Places-LT": ("table3", ("All",)),
    "ImageNet-LT": ("table4", ("All",)),
    "iNaturalist 2018": ("table5", ("All",)),
}
"""The paper's other benchmarks: the table, and its columns."""


def worst_line() -> str:
    """Return how far ours is below the printed number of Table 9, at most."""
    gaps = [n.paper - n.ours_mean for n in printed("table9") if n.num_seeds]
    return (
        "On the data that was run, yes: in Table 9 of the paper, no cell is more than "
        f"{max(gaps):.1f} points below the printed one."
    )


def picture_line() -> str:
    """Return the caption of the README's picture, with the gains that it shows."""
    targets, lines = retarget_figure.accuracies()
    gains = {
        target: after - before
        for target, before, after in zip(
            targets, lines[False], lines[True], strict=True
        )
    }
    return (
        "Softmax on CIFAR-100-LT, imbalance ratio 100, the paper's recipe of 200 "
        f"epochs, one seed. Re-targeting adds {gains['uniform']:.1f} points on the "
        f"uniform test set and {gains['backward:50']:.1f} points on the reversed one."
    )


README_TARGETS = {
    "forward:50": "as in training (forward 50)",
    "uniform": "uniform",
    "backward:50": "reversed (backward 50)",
}
"""The rows of the README's small table."""


def readme_table() -> str:
    """Return three targets down: training prior, estimated prior and known prior."""
    rows = read("unknown_prior")
    heads = ("as trained", "prior estimated, no labels", "prior known")
    lines = [f"| class distribution | {' | '.join(heads)} |", "|---|---:|---:|---:|"]
    for target, name in README_TARGETS.items():
        own = [row for row in rows if row["target"] == target]
        cells = [
            f"{fmean(float(row[column]) for row in own):.1f}"
            for column in ("none", "adapt", "known")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    caption = (
        "CIFAR-100-LT, imbalance ratio 100: a linear classifier on frozen ImageNet "
        f"features, mean of {len({row['seed'] for row in rows})} choices of "
        f"{int(rows[0]['held_out']):,} held-out images. *As trained* predicts for the "
        "training prior. The "
        "estimates are those of version 0.2."
    )
    return "\n".join([*lines, "", caption])


def _across(
    rows: dict[str, tuple[dict[str, dict[str, str]], str]], methods: Sequence[str] = ()
) -> str:
    """Return a table of cells and column by the row's name, methods across."""
    first, _ = next(iter(rows.values()))
    names = methods or list(first)
    lines = [
        f"| ours (printed) | {' | '.join(names)} |",
        "|---" * (1 + len(names)) + "|",
    ]
    for row, (cells, column) in rows.items():
        shown = (cells.get(name, {}).get(column, "") for name in names)
        lines.append(f"| {row} | {' | '.join(shown)} |")
    return "\n".join(lines)


def mean_and_error(values: list[float]) -> str:
    """Return mean ± standard error, with its sign; of one value that alone."""
    if len(values) == 1:
        return f"{values[0]:+.1f}"
    return f"{fmean(values):+.1f} ± {stdev(values) / len(values) ** 0.5:.1f}"


BySeed = dict[str, dict[str, float]]
"""Compensated accuracies by target and seed."""


def by_method(rows: Rows) -> dict[str, BySeed]:
    """Return compensated accuracies by method, target and seed."""
    table: dict[str, BySeed] = {}
    for row in rows:
        own = table.setdefault(title(row), defaultdict(dict))
        own[row["target"]][row["seed"]] = float(row["compensated"])
    return table


def gain(own: BySeed, base: BySeed, target: str) -> str:
    """Return the gain over a method with the same seeds, mean ± standard error."""
    if own is base:
        return ""
    pairs = sorted(own[target].keys() & base[target].keys())
    return mean_and_error([own[target][s] - base[target][s] for s in pairs])


SEEDS_TARGETS = ("forward:50", "uniform", "backward:50")
"""The targets of tables over seeds."""


def seeds_table(rows: Rows) -> str:
    """Return methods down: mean ± sd over seeds, and the gain on Balanced Softmax."""
    table = by_method(rows)
    base = table[METHODS.get("balanced_softmax").title]
    heads = [target.replace(":", " ") for target in SEEDS_TARGETS]
    heads += [f"{head}, gain" for head in heads]
    lines = [
        f"| compensated | seeds | {' | '.join(heads)} |",
        "|---" * (2 + len(heads)) + "|",
    ]
    for name, own in table.items():
        cells = [", ".join(sorted(own["uniform"]))]
        cells += [cell(list(own[target].values())) for target in SEEDS_TARGETS]
        cells += [gain(own, base, target) for target in SEEDS_TARGETS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def changed_table(rows: Rows) -> str:
    """Return quick recipes with other settings down, by method.

    Across are seeds, accuracy on training images that are not used, on the test set,
    and the gain on Balanced Softmax with the same settings.
    """
    heads = ["settings", "method", "seeds", "unused images"]
    heads += [target.replace(":", " ") for target in SEEDS_TARGETS] + ["uniform, gain"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    unused = read("unused_images")
    for settings in sorted({changes(row) for row in rows}):
        here = [row for row in rows if changes(row) == settings]
        table = by_method(here)
        base = table.get(METHODS.get("balanced_softmax").title)
        for name, own in table.items():
            scores = [
                float(row["unused"])
                for row in unused
                if (changes(row), title(row)) == (settings, name)
            ]
            cells = [f"`{settings}`" if settings else "as they are", name]
            cells += [", ".join(sorted(own["uniform"])), cell(scores) if scores else ""]
            cells += [cell(list(own[target].values())) for target in SEEDS_TARGETS]
            cells.append(gain(own, base, "uniform") if base else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


MODES = {
    "200 epochs, ratio 100": {
        "Balanced Softmax": "cifar100_lt_ir100_balanced_softmax-seed0",
        "PC Softmax": "cifar100_lt_ir100_softmax-seed0",
        "LADE `official`": "cifar100_lt_ir100_lade-official-seed0",
    },
    "200 epochs, ratio 50": {
        "Balanced Softmax": "cifar100_lt_ir50_balanced_softmax-seed0",
        "PC Softmax": "cifar100_lt_ir50_softmax-seed0",
        "LADE `official`": "cifar100_lt_ir50_lade-official-seed0",
        "LADE `paper`": "cifar100_lt_ir50_lade_paper-paper-seed0",
    },
    "quick, ratio 100": {
        "Balanced Softmax": "cifar100_lt_ir100_balanced_softmax_quick-seed0",
        "PC Softmax": "cifar100_lt_ir100_softmax_quick-seed0",
        "LADE `official`": "cifar100_lt_ir100_lade_quick-official-seed0",
        "LADE `paper`": "cifar100_lt_ir100_lade_paper_quick-paper-seed0",
    },
}
"""Kept logits by recipe and method; gains are on the first of each recipe."""


def modes_table() -> str:
    """Return runs down: groups, gain over paired test images, size of the logits."""
    heads = ("all", "many", "medium", "few", "gain", "log E[e^f]", "own logit")
    lines = [f"| recipe | method | {' | '.join(heads)} |", "|---" * 9 + "|"]
    for recipe, files in MODES.items():
        base: torch.Tensor | None = None
        for name, file in files.items():
            correct, cells = _mode_cells(file)
            gain = "" if base is None else _paired(100 * (correct - base))
            base = correct if base is None else base
            lines.append(
                f"| {recipe} | {name} | {' | '.join([*cells[:4], gain, *cells[4:]])} |"
            )
    return "\n".join(lines)


def _mode_cells(file: str) -> tuple[torch.Tensor, list[str]]:
    kept = Predictions.load(ROOT / "results" / "logits" / f"{file}.safetensors")
    f, y = kept.logits.float(), kept.labels  # (N, C), (N,)
    f = post_compensate(
        f,
        logit_prior=kept.logit_prior,
        target_prior=priors.uniform(f.shape[1]),
    )
    correct = (f.argmax(1) == y).double()
    groups = class_groups(kept.source_counts).values()
    parts = [correct, *(correct[torch.isin(y, classes)] for classes in groups)]
    t = f.logsumexp(0) - math.log(len(f))  # log E[e^f], (C,)
    own = f[torch.arange(len(f)), y].mean()
    cells = [f"{100 * part.mean():.1f}" for part in parts]
    return correct, [*cells, f"{t.mean():.1f} ± {t.std():.1f}", f"{own:.1f}"]


def _paired(gains: torch.Tensor) -> str:
    return f"{gains.mean():+.2f} ± {gains.std() / len(gains) ** 0.5:.2f}"


CROSSED = {
    "Balanced Softmax": ("", ""),
    "sample's weight, classes of the batch (`paper`)": ("sample", "batch"),
    "sample's weight, all classes (`all_classes`)": ("sample", "all"),
    "logit's weight, classes of the batch": ("logit", "batch"),
    "logit's weight, all classes (`official`)": ("logit", "all"),
}
"""Rows of the table of LADER's forms: weight and set."""


def crossed_table() -> str:
    """Return LADER's forms down and batch sizes across, α chosen on held-out images."""
    rows = [row for row in read("lade_crossed") if row["weight_decay"] == "0.0005"]
    sizes = list(dict.fromkeys(row["batch_size"] for row in rows))
    heads = " | ".join(f"batches of {size}" for size in sizes)
    lines = [f"| weight and set | {heads} |", "|---" * (1 + len(sizes)) + "|"]
    for name, form in CROSSED.items():
        cells = []
        for size in sizes:
            own = [row for row in rows if row["batch_size"] == size]
            base = {row["seed"]: float(row["uniform"]) for row in own if not row["set"]}
            tried: dict[str, Rows] = defaultdict(list)
            for row in own:
                if (row["weight"], row["set"]) == form:
                    tried[row["alpha"]].append(row)
            alpha, best = max(tried.items(), key=lambda item: _held_out(item[1]))
            gains = [float(row["uniform"]) - base[row["seed"]] for row in best]
            accuracy = fmean(float(row["uniform"]) for row in best)
            ece = fmean(float(row["ece"]) for row in best)
            gain = f", {mean_and_error(gains)} (α {alpha})" if form[0] else ""
            cells.append(f"{accuracy:.1f}{gain}, ECE {ece:.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _held_out(rows: Rows) -> float:
    return fmean(float(row["held_out"]) for row in rows)


def decay_table() -> str:
    """Return weight decays down, Balanced Softmax and the paper's form across."""
    rows = [row for row in read("lade_crossed") if row["batch_size"] == "128"]
    cases = {"Balanced Softmax": "0.0", "LADE `paper`, α 0.03": "0.03"}
    lines = [
        f"| weight decay | {' | '.join(cases)} | difference |",
        "|---" * 4 + "|",
    ]
    for decay in dict.fromkeys(row["weight_decay"] for row in rows):
        pair = [
            [
                row
                for row in rows
                if (row["weight_decay"], row["alpha"]) == (decay, alpha)
                and (row["weight"], row["set"]) in (("", ""), ("sample", "batch"))
            ]
            for alpha in cases.values()
        ]
        uniform = [[float(row["uniform"]) for row in own] for own in pair]
        cells = [
            f"{fmean(values):.1f} (held out {_held_out(own):.1f}), "
            f"ECE {fmean(float(row['ece']) for row in own):.3f}"
            for values, own in zip(uniform, pair, strict=True)
        ]
        gains = [ours - base for base, ours in zip(*uniform, strict=True)]
        lines.append(f"| {decay} | {' | '.join(cells)} | {mean_and_error(gains)} |")
    return "\n".join(lines)


def tuned_table() -> str:
    """Return α of LADE `paper` down, and across its score on the images held out."""
    rows = read("tune")
    searches: dict[str, Rows] = {}
    for epochs in dict.fromkeys(row["epochs"] for row in rows):
        own = [row for row in rows if row["epochs"] == epochs]
        seeds = dict.fromkeys(row["seed"] for row in own)
        for seed in seeds:
            name = f"{epochs} epochs, seed {seed}"
            searches[name] = [row for row in own if row["seed"] == seed]
        if len(seeds) > 1:
            searches[f"{epochs} epochs, mean"] = own
    lines = [f"| α | {' | '.join(searches)} |", "|---" * (1 + len(searches)) + "|"]
    for alpha in sorted({row["alpha"] for row in rows}, key=float):
        scores = [
            fmean(float(row["held_out"]) for row in own if row["alpha"] == alpha)
            for own in searches.values()
        ]
        lines.append(f"| {alpha} | {' | '.join(f'{score:.1f}' for score in scores)} |")
    return "\n".join(lines)


def load_table() -> str:
    """Return commands down, and across what they took with so many files."""
    rows = read("load")
    sizes = list(dict.fromkeys(row["files"] for row in rows))
    heads = [f"{int(files):,} files" for files in sizes]
    heads.append(f"growth, files × {int(sizes[-1]) / int(sizes[0]):.1f}")
    lines = [f"| command | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for command in dict.fromkeys(row["command"] for row in rows):
        own = {row["files"]: row for row in rows if row["command"] == command}
        cells = [_load_cell(own[files]) if files in own else "" for files in sizes]
        first, last = own.get(sizes[0]), own.get(sizes[-1])
        if first and last:
            key = "processor_seconds"
            cells.append(f"× {float(last[key]) / float(first[key]):.1f}")
        else:
            cells.append("")
        lines.append(f"| `{command}` | {' | '.join(cells)} |")
    where = sorted({f"{row['hardware']}; commit {row['commit']}" for row in rows})
    made = f"CPU time (wall time), peak memory; {'; '.join(where)}."
    return "\n".join([*lines, "", made])


def _load_cell(row: dict[str, str]) -> str:
    taken, clock = float(row["processor_seconds"]), float(row["clock_seconds"])
    return f"{taken:.0f} s ({clock:.0f} s), {row['peak_megabytes']} MB"


def kills_table() -> str:
    """Return commands down, and across how often each was knocked, and how."""
    rows = read("kills")
    knocks = ("SIGKILL", "SIGTERM", "SIGINT", "full disk", "cut", "flipped")
    heads = [*knocks, "all", "refused by name", "lost"]
    lines = [f"| command | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    names = [*dict.fromkeys(row["subject"] for row in rows), "all"]
    for name in names:
        own = [row for row in rows if name in (row["subject"], "all")]
        counts = [sum(row["knock"] == knock for row in own) for knock in knocks]
        refused = sum(row["outcome"].startswith("refused") for row in own)
        lost = sum(row["outcome"].startswith("LOST") for row in own)
        cells = map(str, [*counts, sum(counts), refused, lost])
        lines.append(f"| {name} | {' | '.join(cells)} |")
    made = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    rounds = len({row["seed"] for row in rows})
    return "\n".join([*lines, "", f"{rounds} rounds; commits {made}."])


def provenance(rows: Rows) -> str:
    """Return seeds, epochs, hardware, torch and commit of a table's runs."""

    def values(column: str) -> str:
        return ", ".join(sorted({row[column] for row in rows}))

    ways = [SAMPLING[way] for way in sorted({row["sampling"] for row in rows})]
    return (
        f"Accuracy in percent; {'; '.join(ways)}; "
        f"seeds {values('seed')}; {values('epochs')} epochs; "
        f"{values('hardware')}; torch {values('torch')}; commit {values('commit')}."
    )


def commands(rows: Rows) -> str:
    """Return the command of each run, in a block."""
    lines = dict.fromkeys(f"    {row['command']}" for row in rows)
    return "\n".join(lines)


def blocks() -> dict[str, str]:
    """Return the text of each marked block."""
    digits, cifar = read_runs("digits_lt"), read_runs("cifar100_lt")
    every = [
        row
        for row in cifar
        if row["recipe"].endswith("_quick") and row["method"] not in UNFITTED
    ]
    quick = alike([row for row in every if not changes(row)])
    main = alike([row for row in quick if row["method"] in MAIN])
    tried = alike(
        [
            row
            for row in every
            if row["method"] == "balanced_softmax" or row["mode"] == "official"
        ]
    )
    features = alike([row for row in cifar if "_lite0_" in row["recipe"]])
    longest = [row for row in features if row["imbalance_ratio"] == "100"]
    paper = alike([row for row in cifar if row["epochs"] == "200"])
    ratios = printed_table("table2", ("100", "50"))
    shifts = [
        row
        for row in paper
        if row["imbalance_ratio"] == "50" and row["mode"] != "paper"  # as in Table 9
    ]
    return {
        "readme picture": picture_line(),
        "readme targets": readme_table(),
        "paper in short": f"{short_table()}\n\n- {worst_line()}",
        "paper ratios": f"{ratios}\n\n{provenance(paper)}",
        "paper regularisation": printed_table("table8"),
        "paper shifts": (
            f"{printed_table('table9')}\n\n{spread_line('table9')} {provenance(shifts)}"
        ),
        "paper calibration": printed_table("table10"),
        "paper commands": commands(paper),
        "digits": f"{shift_table(digits)}\n\n{provenance(digits)}",
        "cifar": f"{shift_table(main)}\n\n{provenance(main)}",
        "cifar guide": guide_table(quick),
        "cifar seeds": seeds_table(main),
        "cifar changed": f"{changed_table(tried)}\n\n{provenance(tried)}",
        "cifar changed commands": commands([row for row in tried if changes(row)]),
        "cifar methods": f"{method_table(quick)}\n\n{provenance(quick)}",
        "cifar commands": commands(quick),
        "features methods": f"{method_table(longest)}\n\n{provenance(longest)}",
        "features ratios": ratio_table(features),
        "features commands": commands(features),
        "features unknown": unknown_table(),
        "lade gains": gains_table(),
        "lade modes": modes_table(),
        "lade crossed": crossed_table(),
        "lade decays": decay_table(),
        "lade tuned": tuned_table(),
        "load": load_table(),
        "kills": kills_table(),
        "retarget": retarget_table.accuracy_table(),
    }


def fill(text: str, blocks: dict[str, str]) -> str:
    """Return ``text`` with what stands between the markers made anew."""
    for name, content in blocks.items():
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        text = re.sub(
            pattern,
            lambda match, content=content: f"{match[1]}\n{content}\n\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


def main() -> None:
    """Fill or check every document."""
    stale, made = [], blocks()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        filled = fill(text, made)
        if filled != text:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in sys.argv:
                path.write_text(filled, encoding="utf-8")
    if stale and "--check" in sys.argv:
        raise SystemExit(f"run `python docs/tables.py`: {', '.join(stale)}")


if __name__ == "__main__":
    main()
