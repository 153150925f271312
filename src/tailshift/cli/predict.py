"""Commands `predict` and `export`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tailshift.cli.app import Force, Plugins, announce, app, print_note
from tailshift.cli.options import (
    Classes,
    HeldOut,
    RunDirectory,
    TargetOption,
    show_phases,
    show_progress,
    warn_of_broken,
)
from tailshift.files import check_new


@app.command(
    epilog="Example: tailshift predict runs/own_images/lade-seed0 photos --adapt "
    "-o answers.csv"
)
def predict(
    run: RunDirectory,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES…", help="Image files or folders.")
    ],
    target: TargetOption = None,
    is_adapted: Annotated[
        bool,
        typer.Option("--adapt", help="Estimate the target prior from these images."),
    ] = False,
    site: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use the prior of this site of --book."),
    ] = None,
    sites: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Use the prior of each image's site: a CSV with columns path,site.",
        ),
    ] = None,
    book: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Book of priors for --site and --sites."),
    ] = None,
    sets: Annotated[
        float | None,
        typer.Option(
            metavar="LEVEL",
            help="Also give the set of classes that holds the right one this often, "
            "e.g. 0.9.",
        ),
    ] = None,
    classes: Classes = None,
    held_out: HeldOut = None,
    views: Annotated[
        Literal["one", "five_crop"] | None,
        typer.Option(
            help="How each image is seen; default: as the run's test images were."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write a .csv or .parquet file; default: print CSV."
        ),
    ] = None,
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Classify images for a given class distribution.

    Prints path, predicted class, probability and the next four classes. Without
    --target, --adapt or --book predictions are for the training prior.
    """
    from tailshift import serving
    from tailshift.serving.prediction_table import check_output, print_answers

    if output is not None:
        check_output(output)
        check_new(output, force)
    with show_phases() as announce_phase:
        answers = serving.predict(
            run,
            images,
            target=target,
            adapt=is_adapted,
            site=site,
            sites=sites,
            book=book,
            sets=sets,
            classes=classes,
            held_out=held_out,
            views=views,
            track=show_progress,
            announce=announce_phase,
        )
    warn_of_broken(answers.broken)
    if answers.reason:
        print_note(answers.reason)
    if output is None:
        print_answers(sys.stdout, answers.rows)
        return
    answers.save(output)
    print(output)


@app.command(
    epilog="Example: tailshift export runs/digits_lt/lade-seed0 -o digits.onnx "
    "--target uniform"
)
def export(
    run: RunDirectory,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The .onnx file to write.")
    ],
    target: TargetOption = None,
    is_input: Annotated[
        bool,
        typer.Option("--target-input", help="Make the target prior a second input."),
    ] = False,
    program: Annotated[
        bool,
        typer.Option("--program", help="Also write a torch.export program (.pt2)."),
    ] = False,
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Write a run as a verified ONNX file.

    The input is uint8 pixels; the file is compared with PyTorch. Without --target or
    --target-input predictions are for the training prior.
    """
    from tailshift.serving import export as module

    for path in module.export_files(output, program=program):
        check_new(path, force)
    written = module.export(
        run, output, target=target, target_input=is_input, program=program
    )
    for path, gap in written.items():
        announce(f"{path} (probabilities within {gap:.0e} of PyTorch's)")
