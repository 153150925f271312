"""The certificate's page: its status, its scores, and names as text."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tailshift.report.page.certificate import certificate_page

NAMES = ("<b>kea</b>", "two\nlines")


def _certificate(**fields: Any) -> Any:
    """Return what the page reads of a certificate on two classes."""
    scores = {"accuracy": 0.8, "macro_recall": 0.75, "ece": 0.05, "nll": 0.6}
    intervals = {f"{name}_interval": (x / 2, 2 * x) for name, x in scores.items()}
    recalls = {
        "recall": torch.tensor([0.9, 0.6]),
        "recall_interval": torch.tensor([[0.8, 0.5], [1.0, 0.7]]),
    }
    model = scores | intervals | recalls
    facts: dict[str, Any] = {
        "as_trained": SimpleNamespace(**model | {"accuracy": 0.7}),
        "target_prior": torch.tensor([0.25, 0.75]),
        "prior_interval": torch.tensor([[0.2, 0.7], [0.3, 0.8]]),
        "source_prior": torch.tensor([0.9, 0.1]),
        "gain": -0.012,
        "gain_interval": (-0.03, 0.01),
        "assumption_p_value": 0.4,
        "is_refused": False,
        "reason": "the target looks like a mixture.",
        "num_held_out": 1200,
        "num_target": 300,
    }
    return SimpleNamespace(**model | facts | fields)


def test_certificate_page__shows_scores_with_intervals_and_names_as_text() -> None:
    page = certificate_page(_certificate(), NAMES)
    for text in (
        "<strong>80.0&nbsp;%</strong> accuracy (95 % interval 40.0 to 160.0)",
        "as trained, <strong>70.0&nbsp;%</strong>",
        '<td>−1.2 <span class="sd">−3.0 to 1.0</span></td>',
        "<bdi>&lt;b&gt;kea&lt;/b&gt;</bdi>",
        "<bdi>two lines</bdi>",
        '<td>75.0 <span class="sd">70.0 to 80.0</span></td>',
        "default-src 'none'; style-src 'sha256-",
    ):
        assert text in page
    assert '<p class="banner"' not in page
    assert "<script" not in page


@pytest.mark.parametrize("prefix", ["", "indicative only: "])
def test_certificate_page__says_when_it_is_indicative_only(prefix: str) -> None:
    reason = f"{prefix}20 labels are too few for 10 <classes>."
    found = _certificate(is_indicative=True, num_repeated=12, reason=reason)
    page = certificate_page(found, NAMES)
    banner = "<strong>Indicative only.</strong> 20 labels are too few for 10 &lt;cla"
    assert banner in page
    assert "300 <small>target, 12 repeated</small>" in page


def test_certificate_page__refused_it_gives_the_reason_and_no_score() -> None:
    page = certificate_page(_certificate(is_refused=True, reason="no mixture."), NAMES)
    assert '<p class="lead">No mixture.</p>' in page
    assert "<table" not in page
    assert "&nbsp;%" not in page
