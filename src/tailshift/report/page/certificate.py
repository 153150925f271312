"""A certificate as one HTML page that needs no script and no network."""

from collections.abc import Sequence
from importlib import metadata, resources
from string import Template

from tailshift.estimators.certificate import Certificate, Ends
from tailshift.report.page.html_tables import table_section
from tailshift.report.style import plain

FIGURE_TITLES = {
    "accuracy": "Accuracy, %",
    "macro_recall": "Macro recall, %",
    "ece": "ECE, % (lower is better)",
    "nll": "NLL, nats (lower is better)",
}
BAR_WIDTH = 120


def certificate_page(certificate: Certificate, class_names: Sequence[str]) -> str:
    """Return the page: the verdict, the figures, and a line for each class.

    Args:
        certificate: What was found; if it is refused, the page says so and no more.
        class_names: One per class, shown as text whatever they contain.
    """
    refused = certificate.is_refused
    parts = {
        "title": "No certificate" if refused else "What to expect on this data",
        "style": _part("page.css"),
        "lead": _lead(certificate),
        "facts": _facts(certificate, len(class_names)),
        "sections": ""
        if refused
        else f"{_figures(certificate)}\n{_classes(certificate, class_names)}",
        "reason": plain(certificate.reason),
        "version": metadata.version("tailshift"),
    }
    return Template(_part("certificate.html")).substitute(parts)


def _part(name: str) -> str:
    return (resources.files("tailshift.report.page") / name).read_text(encoding="utf-8")


def _lead(found: Certificate) -> str:
    if found.is_refused:
        return plain(found.reason[0].upper() + found.reason[1:])
    low, high = (f"{100 * end:.1f}" for end in found.accuracy_interval)
    return (
        f"Re-targeted, the model should be right in <strong>{100 * found.accuracy:.1f}"
        f"&nbsp;%</strong> of samples (95 % interval {low} to {high}); as trained, in "
        f"<strong>{100 * found.as_trained.accuracy:.1f}&nbsp;%</strong>."
    )


def _facts(found: Certificate, num_classes: int) -> str:
    items = [
        ("Classes", f"{num_classes:,}", ""),
        ("Labelled, held out", f"{found.num_held_out:,}", "source"),
        ("Unlabelled", f"{found.num_target:,}", "target"),
        ("Test of the assumption", f"p = {found.assumption_p_value:.3f}", ""),
    ]
    return "\n".join(
        f"<div><dt>{term}</dt><dd>{value} <small>{detail}</small></dd></div>"
        for term, value, detail in items
    )


def _figures(found: Certificate) -> str:
    """Return accuracy, macro recall, ECE and NLL, as trained and re-targeted."""
    body = []
    for name, title in FIGURE_TITLES.items():
        scale, digits = (1, 2) if name == "nll" else (100, 1)
        cells = [
            _cell(
                getattr(model, name), getattr(model, f"{name}_interval"), scale, digits
            )
            for model in (found.as_trained, found)
        ]
        body.append((title, cells))
    gain = _cell(found.gain, found.gain_interval, 100, 1)
    body.append(("Gain in accuracy, points", ["<td></td>", gain]))
    return table_section(
        "Expected on the target",
        "Each with its 95 % interval. As trained: answers for the class mix of the "
        "training data.",
        ["Figure", "As trained", "Re-targeted"],
        body,
    )


def _classes(found: Certificate, class_names: Sequence[str]) -> str:
    """Return a line for each class: its share and its recalls."""
    most = max(float(found.prior_interval.max()), float(found.source_prior.max()))
    body = []
    for c, name in enumerate(class_names):
        low, high = found.prior_interval[:, c].tolist()
        share = found.target_prior[c].item()
        bar = _bar(share, (low, high), found.source_prior[c].item(), most)
        cells = [f"<td>{bar}</td>", _cell(share, (low, high), 100, 1)]
        for model in (found.as_trained, found):
            ends = model.recall_interval[:, c].tolist()
            cells.append(_cell(model.recall[c].item(), (ends[0], ends[1]), 100, 0))
        body.append((f"<bdi>{plain(name)}</bdi>", cells))
    return table_section(
        "Class by class",
        "Share of each class in the target, and its recall, in % with 95 % intervals. "
        "Bars: the share, a line for its interval; the upright stroke is the share in "
        "the training data.",
        ["Class", "", "Share", "Recall as trained", "Recall re-targeted"],
        body,
    )


def _cell(value: float, interval: Ends, scale: float, digits: int) -> str:
    ends = (value, *interval)
    mean, low, high = (f"{scale * x:.{digits}f}".replace("-", "−") for x in ends)
    return f'<td>{mean} <span class="sd">{low} to {high}</span></td>'


def _bar(share: float, interval: Ends, source: float, most: float) -> str:
    """Return the share as a bar with its interval; the source's is a stroke."""
    ends = (share, *interval, source)
    width, low, high, at = (f"{BAR_WIDTH * x / most:.1f}" for x in ends)
    return (
        f'<svg class="bar" viewBox="0 0 {BAR_WIDTH} 14" preserveAspectRatio="none" '
        f'aria-hidden="true"><rect class="share" y="2" width="{width}" height="10"/>'
        f'<path class="interval" d="M{low} 7H{high}"/>'
        f'<path class="source" d="M{at} 0V14"/></svg>'
    )
