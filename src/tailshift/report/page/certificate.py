"""The certificate as an HTML page that needs no script and no network."""

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from tailshift.estimators.certificate import Certificate
from tailshift.report.page.render import render_page

_SCORES = (
    ("accuracy", "Accuracy, %", 100, 1),
    ("macro_recall", "Macro recall, %", 100, 1),
    ("ece", "ECE, % (lower is better)", 100, 1),
    ("nll", "NLL, nats (lower is better)", 1, 2),
)


def certificate_page(certificate: Certificate, class_names: Sequence[str]) -> str:
    """Return the page: the verdict, the expected scores, and a row per class.

    Args:
        certificate: If it is refused, the page gives the reason and no scores.
        class_names: One per class, shown as text whatever they contain.
    """
    refused = certificate.is_refused
    reason = certificate.reason.removeprefix("indicative only: ")
    page = render_page(
        "certificate.html",
        title="No certificate" if refused else "Expected performance on this data",
        certificate=certificate,
        is_indicative=getattr(certificate, "is_indicative", False),
        reason=reason[:1].upper() + reason[1:],
        facts=_facts(certificate),
        scores=_SCORES,
        classes=() if refused else _class_rows(certificate, class_names),
        number=_number,
        version=metadata.version("tailshift"),
    )
    return page.text


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _facts(certificate: Certificate) -> list[tuple[str, str, str]]:
    num_repeated = getattr(certificate, "num_repeated", 0)
    repeated = f", {num_repeated:,} repeated" if num_repeated else ""
    return [
        ("Classes", f"{len(certificate.source_prior):,}", ""),
        ("Labelled, held out", f"{certificate.num_held_out:,}", "source"),
        ("Unlabelled", f"{certificate.num_target:,}", f"target{repeated}"),
        ("Shift test", f"p = {certificate.assumption_p_value:.3f}", ""),
    ]


def _class_rows(
    certificate: Certificate, class_names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the name, the shares and the recalls of each class."""
    shares, source = certificate.target_prior, certificate.source_prior
    widest = max(float(certificate.prior_interval.max()), float(source.max()))
    rows = []
    for c, name in enumerate(class_names):
        interval = certificate.prior_interval[:, c].tolist()
        ends = (shares[c].item(), *interval, source[c].item())
        rows.append(
            {
                "name": name,
                "share": ends[0],
                "interval": interval,
                "bar": [f"{100 * end / widest:.1f}" for end in ends],
                "recalls": [
                    (model.recall[c].item(), model.recall_interval[:, c].tolist())
                    for model in (certificate.as_trained, certificate)
                ],
            }
        )
    return rows
