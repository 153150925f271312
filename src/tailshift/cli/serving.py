"""Commands that put a trained run to use: predict, export."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor

from tailshift.cli.app import Force, announce, app
from tailshift.cli.loading import check_new
from tailshift.estimators import adapt
from tailshift.evaluation.shifts import HELP
from tailshift.evaluation.targets import exact_prior
from tailshift.predictions import Predictions
from tailshift.priors import from_counts
from tailshift.serving import (
    ImageLogits,
    answer_rows,
    image_logits,
    image_paths,
    write_answers,
)
from tailshift.serving.answers import check_output, print_answers
from tailshift.training import Run, load
from tailshift.training.run import predictions_path

SOURCE = "source"

HeldOut = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labelled logits to calibrate on; by default the run's validation set.",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET", help=f"The class mix to answer for: {SOURCE}, {HELP}"
    ),
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
    prior = _target_prior(loaded, target or SOURCE)
    found = served_logits(loaded, image_paths(images))
    if is_adapted:
        prior = _adapted_prior(loaded, held_out, found.logits, prior)
    counts = torch.tensor(loaded.facts["source_counts"])
    rows = answer_rows(
        found.paths,
        found.logits,
        loaded.class_names,
        trained_prior=loaded.config.trained_prior(counts),
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
    force: Force = False,
) -> None:
    """Write a run as an ONNX file, checked against PyTorch: uint8 pixels in.

    Without --target or --target-input the answers are for the mix of the training data.
    """
    from tailshift.export import export_onnx, export_program

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
    prior = None if is_input else _target_prior(loaded, target or SOURCE)
    for path, write in files.items():
        gap = write(loaded, path, target_prior=prior)
        announce(f"{path} (probabilities within {gap:.0e} of PyTorch's)")


def _target_prior(run: Run, target: str) -> Tensor:
    counts = torch.tensor(run.facts["source_counts"])
    if target == SOURCE:
        return from_counts(counts)
    return exact_prior(target, counts, per_class=1)


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
