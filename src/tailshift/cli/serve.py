"""Commands that put a trained run to use: predict, estimate, certify, export, serve."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from tailshift.cli.app import (
    TARGETS,
    Force,
    Plugins,
    announce,
    app,
    console,
    print_note,
    write_text,
)
from tailshift.files import check_new
from tailshift.text import printable

if TYPE_CHECKING:
    from torch import Tensor

    from tailshift.estimators import Certificate
    from tailshift.predictions import Predictions
    from tailshift.serving import ShiftReport

REFUSED = 3
"""Exit code of `certify` if the certificate is refused."""
MOST_CLASSES = 20  # a table of more shows those that moved most
CERTIFIED = {
    "accuracy": "accuracy, %",
    "macro_recall": "macro recall, %",
    "ece": "ECE, %",
    "nll": "NLL, nats",
}
"""The figures of a certificate, as its table names them."""

RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
RunOrHeldOut = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|LOGITS",
        help="A run directory, or a file of labelled held-out logits.",
    ),
]
UnlabelledData = Annotated[
    Path,
    typer.Option(
        "--unlabelled",
        metavar="FILE|FOLDER",
        help="Logits of the same model (.npz, .npy, safetensors), or images.",
    ),
]
HeldOut = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labelled logits to calibrate on; default: the run's validation set.",
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Classes that can occur, one name per line."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(metavar="TARGET", help=f"The class mix to answer for: {TARGETS}"),
]


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
        typer.Option("--adapt", help="Estimate the class mix from these images."),
    ] = False,
    site: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Answer for the mix of this site of --book."),
    ] = None,
    sites: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Answer for the site of each image: a CSV with the columns path,site.",
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
    from tailshift.serving.images import check_output, print_answers

    if output is not None:
        check_output(output)
        check_new(output, force)
    with _phases() as announce_phase:
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
            track=_progress,
            announce=announce_phase,
        )
    _warn_of_broken(answers.broken)
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
        typer.Option("--target-input", help="Make the class mix a second input."),
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


@app.command(
    epilog="Example: tailshift estimate runs/digits_lt/lade-seed0 "
    "--unlabelled runs/digits_lt/lade-seed0/predictions/test.safetensors"
)
def estimate(
    source: RunOrHeldOut,
    unlabelled: UnlabelledData,
    held_out: HeldOut = None,
    classes: Classes = None,
    interval: Annotated[bool, typer.Option("--interval", hidden=True)] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the prior to this file, for --target."
        ),
    ] = None,
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Estimate the class distribution of unlabelled data.

    Also decides whether to use the estimate. Labels in the file of unlabelled logits
    are only used for the last column.
    """
    from tailshift import serving

    if interval:
        print_note("`--interval` is deprecated: intervals are always shown.")
    if output is not None:
        check_new(output, force)
    with _phases() as announce_phase:
        report = serving.estimate(
            source,
            unlabelled,
            held_out=held_out,
            classes=classes,
            track=_progress,
            announce=announce_phase,
        )
    _warn_of_broken(report.broken)
    _print_report(report)
    if output is not None:
        report.save_prior(output)


@app.command(
    epilog="Example: tailshift certify runs/digits_lt/lade-seed0 "
    "--unlabelled photos -o certificate.html"
)
def certify(
    source: RunOrHeldOut,
    unlabelled: UnlabelledData,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help=f"The class mix, if it is known; default: estimated. {TARGETS}",
        ),
    ] = None,
    held_out: HeldOut = None,
    classes: Classes = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Also write a page (.html) or all figures (.json)."
        ),
    ] = None,
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Estimate accuracy on unlabelled data.

    Labels in the file of unlabelled logits are not read. The exit code is 3 if the
    certificate is refused.
    """
    from tailshift.estimators import certify as certify_logits
    from tailshift.serving.estimation import both_samples

    if output is not None:
        _check_certificate_path(output, force)
    with _phases() as announce_phase:
        known, given = both_samples(source, unlabelled, held_out, _progress)
        found = certify_logits(
            known, given.logits, target, classes=classes, announce=announce_phase
        )
    _warn_of_broken(given.broken)
    announce(
        f"{found.num_held_out} labelled samples held out, "
        f"{found.num_target} unlabelled, {known.num_classes} classes"
    )
    announce(found.reason)
    if not found.is_refused:
        console.print(_certificate_table(found))
    if output is not None:
        write_text(output, _certificate_text(found, known, output))
    if found.is_refused:
        raise SystemExit(REFUSED)


def _check_certificate_path(output: Path, force: bool) -> None:
    if output.suffix.lower() not in (".html", ".json"):
        raise ValueError(
            f"`--output` must end in .html or .json, but is {output.name!r}."
        )
    check_new(output, force)


def _certificate_text(found: "Certificate", known: "Predictions", output: Path) -> str:
    """Return the page, or the figures as JSON, by the file's suffix."""
    if output.suffix.lower() == ".json":
        facts = {"class_names": list(known.class_names), **found.as_json()}
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    from tailshift.report.page.certificate import certificate_page

    return certificate_page(found, known.class_names)


def _certificate_table(found: "Certificate") -> Table:
    """Return the figures as trained and re-targeted, each with its interval."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("expected")
    for name in ("as trained", "re-targeted"):
        table.add_column(name, justify="right")
    for name, title in CERTIFIED.items():
        cells = [
            _with_interval(getattr(m, name), getattr(m, f"{name}_interval"), name)
            for m in (found.as_trained, found)
        ]
        table.add_row(title, *cells)
    gain = _with_interval(found.gain, found.gain_interval, "gain")
    table.add_row("gain, points", "", gain)
    return table


def _with_interval(value: float, interval: tuple[float, float], name: str) -> str:
    scale, digits = (1, 2) if name == "nll" else (100, 1)
    mean, low, high = (f"{scale * x:.{digits}f}" for x in (value, *interval))
    return f"{mean} ({low} to {high})"


@app.command(
    epilog="Example: tailshift serve runs/digits_lt/lade-seed0 --state sites.sqlite"
)
def serve(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|MODEL", help="A run directory, or a file of `export`."
        ),
    ],
    book: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Class mixes of known sites (SitePriors)."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")
    ] = 8000,
    token: Annotated[
        str,
        typer.Option(
            envvar="TAILSHIFT_TOKEN", help="Token that every request must bear."
        ),
    ] = "",
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="SQLite file that keeps the sites."),
    ] = None,
    held_out: HeldOut = None,
    adapt: Annotated[
        Literal["auto", "approve", "never"],
        typer.Option(help="Whose word changes the mix of a new site."),
    ] = "approve",
    plugin: Plugins = None,
) -> None:
    """Serve predictions over HTTP, with one prior per site."""
    from tailshift.serving import inference

    for package in ("fastapi", "uvicorn", "python_multipart", "onnxruntime"):
        inference.needed(package)
    from tailshift.serving import server

    service = server.open_service(
        source, held_out=held_out, book=book, state=state, adapt=adapt
    )
    if service.reason:
        print_note(service.reason)
    if state is None:
        print_note("the sites are kept in memory and lost at the end (--state).")
    server.serve(service, host=host, port=port, token=token, announce=announce)


def _progress(starts: Sequence[int]) -> Iterable[int]:
    """Show how many batches of images are done, if the output is a terminal."""
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        return starts
    return track(starts, "images", console=terminal, transient=True)


@contextmanager
def _phases() -> Iterator[Callable[[str], None]]:
    """Give a function that shows what is done at the moment, if somebody watches."""
    terminal = Console(stderr=True)
    status = terminal.status("")

    def show(phase: str) -> None:
        if terminal.is_terminal:
            status.update(phase)
            status.start()  # not before: images have a bar of their own

    try:
        yield show
    finally:
        status.stop()


def _warn_of_broken(broken: Mapping[str, str]) -> None:
    for path, reason in broken.items():
        text = printable(f"warning: `{path}` {reason} and is skipped.")
        print(text, file=sys.stderr)


def _print_report(report: "ShiftReport") -> None:
    found = report.adaptation
    announce(
        f"{report.num_held_out} labelled samples held out, "
        f"{report.num_unlabelled} unlabelled, {len(report.class_names)} classes"
    )
    announce(found.reason)
    announce(
        f"power-law exponent {found.gamma:.2f} "
        "(1 is the source prior, 0 uniform, -1 reversed)"
    )
    console.print(_table(report))


def _table(report: "ShiftReport") -> Table:
    """Return shares in percent per class, and the accuracies if there are labels."""
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
        cells = [column[c] for column in columns.values()]
        table.add_row(Text(printable(report.class_names[c])), *cells)
    if len(shown) < len(moved):
        table.caption = f"the {len(shown)} of {len(moved)} classes that moved most"
    return table


def _columns(report: "ShiftReport") -> dict[str, list[str]]:
    found = report.adaptation
    columns = {
        "as trained": _percent(report.source_prior),
        "estimated": _percent(found.estimated_prior),
    }
    low, high = map(_percent, found.interval)
    columns["95 % interval"] = [f"{a} to {b}" for a, b in zip(low, high, strict=True)]
    if report.true_prior is not None:
        columns["true"] = _percent(report.true_prior)
    return columns


def _percent(prior: "Tensor") -> list[str]:
    return [f"{100 * share:.1f}" for share in prior.tolist()]
