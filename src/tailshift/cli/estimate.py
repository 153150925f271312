"""Commands `estimate` and `certify`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.cli.app import (
    TARGETS,
    Force,
    Json,
    Plugins,
    announce,
    app,
    console,
    print_json,
    print_note,
    write_text,
)
from tailshift.cli.options import (
    Classes,
    EstimatorName,
    HeldOut,
    RunOrHeldOut,
    UnlabelledData,
    show_phases,
    show_progress,
    warn_of_broken,
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


@app.command(
    epilog="Example: tailshift estimate runs/digits_lt/lade-seed0 "
    "--unlabelled runs/digits_lt/lade-seed0/predictions/test.safetensors"
)
def estimate(
    source: RunOrHeldOut,
    unlabelled: UnlabelledData,
    held_out: HeldOut = None,
    classes: Classes = None,
    estimator: EstimatorName = "map_em",
    interval: Annotated[bool, typer.Option("--interval", hidden=True)] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the prior to this file, for --target."
        ),
    ] = None,
    json: Json = False,
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
    with show_phases() as announce_phase:
        report = serving.estimate(
            source,
            unlabelled,
            held_out=held_out,
            classes=classes,
            estimator=estimator,
            track=show_progress,
            announce=announce_phase,
        )
    warn_of_broken(report.broken)
    if json:
        print_json(_as_json(report))
    else:
        _print_report(report)
    if output is not None:
        report.save_prior(output)


def _as_json(report: "ShiftReport") -> dict[str, Any]:
    found = report.adaptation
    return {
        "decision": found.decision,
        "status": found.status,
        "reason": found.reason,
        "gain": found.gain,
        "gain_interval": found.gain_interval,
        "gamma": found.gamma,
        "assumption_p_value": found.assumption_p_value,
        "class_names": list(report.class_names),
        "source_prior": report.source_prior.tolist(),
        "target_prior": found.target_prior.tolist(),
        "estimated_prior": found.estimated_prior.tolist(),
        "interval": found.interval.tolist(),
        "accuracies": report.accuracies,
    }


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
            help=f"Target prior, if known; default: estimated. {TARGETS}",
        ),
    ] = None,
    held_out: HeldOut = None,
    classes: Classes = None,
    estimator: EstimatorName = "map_em",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Also write a page (.html) or all figures (.json)."
        ),
    ] = None,
    json: Json = False,
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Estimate accuracy on unlabelled data.

    Labels in the file of unlabelled logits are not read. The exit code is 3 if the
    certificate is refused.
    """
    from tailshift.estimators import certify as certify_logits
    from tailshift.serving.estimation import read_samples

    if output is not None:
        _check_certificate_path(output, force)
    with show_phases() as announce_phase:
        known, given = read_samples(source, unlabelled, held_out, show_progress)
        found = certify_logits(
            known,
            given.logits,
            target,
            classes=classes,
            estimator=estimator,
            announce=announce_phase,
        )
    warn_of_broken(given.broken)
    if json:
        print_json(_certificate_facts(found, known))
    else:
        _print_certificate(found, known)
    if output is not None:
        write_text(output, _certificate_text(found, known, output))
    if found.is_refused:
        raise SystemExit(REFUSED)


def _print_certificate(found: "Certificate", known: "Predictions") -> None:
    announce(
        f"{found.num_held_out} labelled samples held out, "
        f"{found.num_target} unlabelled, {known.num_classes} classes"
    )
    announce(found.reason)
    if not found.is_refused:
        console.print(_certificate_table(found))


def _check_certificate_path(output: Path, force: bool) -> None:
    if output.suffix.lower() not in (".html", ".json"):
        raise ValueError(
            f"`--output` must end in .html or .json, but is {output.name!r}."
        )
    check_new(output, force)


def _certificate_text(found: "Certificate", known: "Predictions", output: Path) -> str:
    """Return the page, or the figures as JSON, by the file's suffix."""
    if output.suffix.lower() == ".json":
        facts = _certificate_facts(found, known)
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    from tailshift.report.page.certificate import certificate_page

    return certificate_page(found, known.class_names)


def _certificate_facts(found: "Certificate", known: "Predictions") -> dict[str, Any]:
    return {"class_names": list(known.class_names), **found.as_json()}


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
