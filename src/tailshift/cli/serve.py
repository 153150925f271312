"""Commands that put a trained run to use: predict, estimate, export."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from torch import Tensor

from tailshift.cli.app import (
    Force,
    Plugins,
    announce,
    app,
    check_new,
    console,
    write_text,
)
from tailshift.data.own_forms import EXTENSIONS
from tailshift.estimators import adapt
from tailshift.predictions import Predictions
from tailshift.runs.run import Run, load, predictions_path
from tailshift.serving import (
    ImageLogits,
    ShiftReport,
    Unlabelled,
    answer_rows,
    estimate_shift,
    image_logits,
    image_paths,
    read_unlabelled,
    write_answers,
)
from tailshift.serving.images import check_output, print_answers
from tailshift.targets import HELP, SOURCE

HeldOut = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labelled logits to calibrate on; by default the run's validation set.",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(metavar="TARGET", help=f"The class mix to answer for: {HELP}"),
]


@app.command(
    epilog="Example: tailshift predict runs/own_images/lade-seed0 photos --adapt "
    "-o answers.csv"
)
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES…", help="Image files or folders.")
    ],
    target: Target = None,
    is_adapted: Annotated[
        bool,
        typer.Option("--adapt", help="Estimate the class mix from these images."),
    ] = False,
    held_out: HeldOut = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .csv or .parquet; else printed as CSV."),
    ] = None,
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Classify images under a class mix: path, class, probability, the next four.

    Without --target or --adapt the answers are for the mix of the training data.
    """
    if target is not None and is_adapted:
        raise ValueError(
            "`--target` names a class mix and `--adapt` finds one: give one of them."
        )
    if output is not None:
        check_output(output)
        check_new(output, force)
    loaded = load(run)
    prior = loaded.target_prior(target or SOURCE)
    found = served_logits(loaded, image_paths(images))
    if is_adapted:
        prior = _adapted_prior(loaded, held_out, found.logits, prior)
    rows = answer_rows(
        found.paths,
        found.logits,
        loaded.class_names,
        trained_prior=loaded.trained_prior,
        target_prior=prior,
    )
    if output is None:
        print_answers(sys.stdout, rows)
        return
    write_answers(output, rows)
    print(output)


@app.command(
    epilog="Example: tailshift export runs/digits_lt/lade-seed0 -o digits.onnx "
    "--target uniform"
)
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="An .onnx file.")],
    target: Target = None,
    is_input: Annotated[
        bool,
        typer.Option("--target-input", help="Make the class mix a second input."),
    ] = False,
    program: Annotated[
        bool,
        typer.Option("--program", help="Beside it, a torch.export program (.pt2)."),
    ] = False,
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Write a run as an ONNX file, checked against PyTorch: uint8 pixels in.

    Without --target or --target-input the answers are for the mix of the training data.
    """
    from tailshift.serving.export import export_onnx, export_program

    if target is not None and is_input:
        raise ValueError(
            "`--target` builds a class mix in and `--target-input` leaves it open: "
            "give one of them."
        )
    if output.suffix.lower() != ".onnx":
        raise ValueError(f"`output` must end in .onnx, but is {output}.")
    files = {output: export_onnx}
    if program:
        files[output.with_suffix(".pt2")] = export_program
    for path in files:
        check_new(path, force)
    loaded = load(run)
    prior = None if is_input else loaded.target_prior(target or SOURCE)
    for path, write in files.items():
        gap = write(loaded, path, target_prior=prior)
        announce(f"{path} (probabilities within {gap:.0e} of PyTorch's)")


def served_logits(run: Run, paths: Sequence[str]) -> ImageLogits:
    """Return the logits of image files; each that is broken is pointed out."""
    terminal = Console(stderr=True)

    def show(starts: Sequence[int]) -> Iterable[int]:
        if not terminal.is_terminal:
            return starts
        return track(starts, "images", console=terminal, transient=True)

    found = image_logits(run, paths, track=show)
    for path, reason in found.broken.items():
        note(f"`{path}` {reason} and is left out.", kind="warning")
    return found


def _adapted_prior(
    run: Run, held_out: Path | None, logits: Tensor, source_prior: Tensor
) -> Tensor:
    """Return the estimate, or the source prior; which, and why, is pointed out."""
    if held_out is None and not _val_file(run).is_file():
        note(
            f"{run.directory} has no validation logits to calibrate on, so that the "
            "source prior is kept. Give labelled logits with --held-out."
        )
        return source_prior
    found = adapt(held_out_logits(run, held_out or run.directory), logits)
    note(found.reason)
    return found.target_prior


def held_out_logits(run: Run | None, path: Path) -> Predictions:
    """Return the labelled logits of a file, or a run's validation logits."""
    if not path.is_dir():
        return Predictions.load(path)
    assert run is not None
    if not _val_file(run).is_file():
        raise FileNotFoundError(
            f"{run.directory} has no validation logits to calibrate on. Give labelled "
            "logits with --held-out."
        )
    return run.predictions("val")


def _val_file(run: Run) -> Path:
    return predictions_path(run.directory, "val")


def note(text: str, kind: str = "note") -> None:
    """Print a remark beside the command's output."""
    print(f"{kind}: {text}", file=sys.stderr)


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
    plugin: Plugins = None,
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
