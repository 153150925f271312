"""The command that re-targets predictions of any model: retarget."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tailshift.cli.app import TARGETS, Force, announce, app, print_note

_Kinds = Literal["logits", "log_probabilities", "probabilities", "sigmoid"]


@app.command(
    "retarget",
    epilog="Example: tailshift retarget predictions.csv --classes species.txt --adapt "
    "-o site.csv",
)
def retarget_command(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTIONS",
            help="CSV, TSV, Parquet, .npz, .npy, safetensors or JSON.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, same format.")
    ],
    classes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Classes that can occur, one per line."),
    ] = None,
    floor: Annotated[
        float, typer.Option(help="Share that all other classes keep together.")
    ] = 0.0,
    target: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help=f"Target prior: {TARGETS}"),
    ] = None,
    counts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV of names and counts as target prior."),
    ] = None,
    smoothing: Annotated[
        float, typer.Option(help="Added to the count of each class.")
    ] = 1.0,
    is_adapted: Annotated[
        bool, typer.Option("--adapt", help="Estimate the target prior.")
    ] = False,
    match: Annotated[
        Literal["expected", "predicted"] | None,
        typer.Option(help="Match the target prior exactly with these counts."),
    ] = None,
    site_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Estimate a prior per value of a column."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Labelled rows, to calibrate on."),
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of labels.")
    ] = None,
    logit_prior: Annotated[
        str,
        typer.Option(
            metavar="PRIOR",
            help="uniform, measured, mean, transport or a count file.",
        ),
    ] = "uniform",
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Predictions of known distribution."),
    ] = None,
    reference_prior: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="Class distribution of --reference."),
    ] = None,
    scores: Annotated[
        _Kinds | None, typer.Option(help="Kind of scores; default: recognised.")
    ] = None,
    class_columns: Annotated[
        str | None,
        typer.Option(metavar="FIRST:LAST", help="Columns of scores, or a pattern."),
    ] = None,
    logit_scale: Annotated[
        float, typer.Option(help="Multiply logits, e.g. 100 for cosines.")
    ] = 1.0,
    multilabel: Annotated[
        bool, typer.Option("--multilabel", help="Several labels per image.")
    ] = False,
    taxonomy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV of child and parent, for --nodes."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability that a node must reach.")
    ] = 0.9,
    nodes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the most specific sure node."),
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave unusable rows as they are.")
    ] = False,
    prior_output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the target prior."),
    ] = None,
    force: Force = False,
) -> None:
    """Re-target predictions of any model to other classes."""
    from tailshift.files import check_new
    from tailshift.retarget import retarget

    if prior_output is not None:
        check_new(prior_output, force)
    found = retarget(
        predictions,
        output,
        classes=classes,
        floor=floor,
        target=target,
        counts=counts,
        smoothing=smoothing,
        adapt=is_adapted,
        match=match,
        site_column=site_column,
        labels=labels,
        label_column=label_column,
        logit_prior=logit_prior,
        reference=reference,
        reference_prior=reference_prior,
        scores=scores,
        class_columns=class_columns,
        logit_scale=logit_scale,
        multilabel=multilabel,
        taxonomy=taxonomy,
        confidence=confidence,
        nodes=nodes,
        skip_broken=skip_broken,
        force=force,
    )
    for note in found.notes:
        print_note(note)
    if prior_output is not None:
        found.save_prior(prior_output)
    announce(str(output))
