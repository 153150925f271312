"""The command that estimates an unknown class mix: estimate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text
from torch import Tensor

from tailshift.cli.app import Force, announce, app, console, write_text
from tailshift.cli.loading import check_new
from tailshift.cli.serving import HeldOut, held_out_logits, served_logits
from tailshift.data.image_folder import EXTENSIONS
from tailshift.predictions import Predictions
from tailshift.serving import (
    ShiftReport,
    Unlabelled,
    estimate_shift,
    image_paths,
    read_unlabelled,
)
from tailshift.training import Run, load

PER = 10**12  # counts that a prior is written as
MOST_CLASSES = 20  # a table of more shows those that moved most

RunOrLogits = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|LOGITS",
        help="A run directory, or a file of labelled held-out logits.",
    ),
]


@app.command(
    epilog="Example: tailshift estimate runs/digits_lt/lade-seed0 "
    "--unlabelled runs/digits_lt/lade-seed0/predictions/test.safetensors"
)
def estimate(
    source: RunOrLogits,
    unlabelled: Annotated[
        Path,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Logits of the same model (.npz, .npy, safetensors), or images.",
        ),
    ],
    held_out: HeldOut = None,
    interval: Annotated[
        bool, typer.Option("--interval", help="Also the 95 % bootstrap intervals.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the prior here, for --target."),
    ] = None,
    force: Force = False,
) -> None:
    """Estimate the class mix of unlabelled data, and say whether to follow it.

    Labels in the file of unlabelled logits are used for the last column alone.
    """
    if output is not None:
        check_new(output, force)
    run = load(source) if source.is_dir() else None
    known = held_out_logits(run, held_out or source)
    given = _read_unlabelled(run, unlabelled)
    report = estimate_shift(known, given, with_interval=interval)
    _print_report(report, known, given)
    if output is not None:
        _write_prior(output, report.adaptation.target_prior)


def _read_unlabelled(run: Run | None, path: Path) -> Unlabelled:
    """Return logits from a file, or those of images by the run's model."""
    if path.is_dir() or path.suffix.lower() in EXTENSIONS:
        if run is None:
            raise ValueError(
                f"`--unlabelled` {path} are images, which only the model of a run can "
                "judge. Name a run directory, or give a file of logits."
            )
        return Unlabelled(served_logits(run, image_paths([path])).logits)
    return read_unlabelled(path)


def _print_report(
    report: ShiftReport, held_out: Predictions, unlabelled: Unlabelled
) -> None:
    found = report.adaptation
    low, high = found.gamma_interval
    announce(
        f"{len(held_out.labels)} labelled samples held out, "
        f"{len(unlabelled.logits)} unlabelled, {held_out.num_classes} classes"
    )
    announce(found.reason)
    announce(
        f"tilt {found.gamma:.2f}, 95 % interval {low:.2f} to {high:.2f} "
        "(1 is the source prior, 0 uniform, -1 reversed)"
    )
    console.print(_table(report, held_out.class_names))


def _table(report: ShiftReport, class_names: Sequence[str]) -> Table:
    """Return shares in percent a class, and the accuracies where labels tell them."""
    found, columns = report.adaptation, _columns(report)
    table = Table(box=box.SIMPLE_HEAD, show_footer=bool(report.accuracies))
    table.add_column("class, share in %", footer="accuracy")
    for name in columns:
        accuracy = report.accuracies.get(name)
        footer = "" if accuracy is None else f"{accuracy:.1f}"
        table.add_column(name, footer=footer, justify="right")
    moved = (found.estimated_prior - report.source_prior).abs()
    shown = moved.topk(min(MOST_CLASSES, len(moved))).indices.sort().values.tolist()
    for c in shown:
        table.add_row(Text(class_names[c]), *(cells[c] for cells in columns.values()))
    if len(shown) < len(moved):
        table.caption = f"the {len(shown)} of {len(moved)} classes that moved most"
    return table


def _columns(report: ShiftReport) -> dict[str, list[str]]:
    found = report.adaptation
    columns = {
        "no adaptation": _percent(report.source_prior),
        "estimated": _percent(found.estimated_prior),
    }
    if found.interval is not None:
        low, high = map(_percent, found.interval)
        columns["95 % interval"] = [
            f"{a} to {b}" for a, b in zip(low, high, strict=True)
        ]
    if report.true_prior is not None:
        columns["oracle"] = _percent(report.true_prior)
    return columns


def _percent(prior: Tensor) -> list[str]:
    return [f"{100 * share:.1f}" for share in prior.tolist()]


def _write_prior(path: Path, prior: Tensor) -> None:
    """Write a prior as counts, as --target reads them."""
    counts = [str(round(PER * share)) for share in prior.tolist()]
    if path.suffix.lower() == ".json":
        write_text(path, f"[{', '.join(counts)}]\n")
        return
    heading = ["count"] if path.suffix.lower() == ".csv" else []
    write_text(path, "\n".join([*heading, *counts]) + "\n")
