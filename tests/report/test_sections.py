"""Parts of the page that the whole page's tests cannot tell apart."""

import json

import plotly.graph_objects as go

from tailshift.evaluation.summary import Summary
from tailshift.report.page.page import lead, script_json


def test_script_json__cannot_end_its_script_element() -> None:
    name = "</script><!-- & \u2028 漢字"
    text = script_json(go.Figure(go.Scatter(name=name, y=[1.0, float("nan")])))
    assert text.isascii()
    assert not set("<>&") & set(text)
    [trace] = json.loads(text)["data"]
    assert trace["name"] == name
    assert trace["y"] == [1.0, None]


def test_lead__lade_alone_has_both_numbers() -> None:
    """LADE has one row in the tables, but its raw accuracy is known."""
    text = lead([Summary("LADE", "uniform", 0.71, 0.0, 0.82, 0.0, 1)])
    assert text == (
        "LADE, trained once, reaches <strong>71.0&nbsp;%</strong> as trained and "
        "<strong>82.0&nbsp;%</strong> compensated on <em>uniform</em>. Compensated: "
        "the logits are moved from the prior they carry to that of the target, "
        "without any training."
    )
