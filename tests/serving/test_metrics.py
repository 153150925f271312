"""Metrics for Prometheus."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
pytest.importorskip("python_multipart")

from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)
Connect = Callable[..., Any]


def test_metrics__are_prometheus_text(connect: Connect, send_images: Any) -> None:
    client = connect(held_out=None)
    send_images(client, range(5), "a")
    client.get("/nowhere/%1b%0a")
    text = client.get("/metrics").text
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {name for name in families if not name.startswith("tailshift_")} == set()
    for sample in (
        'tailshift_requests_total{path="/predict",status="200"} 1.0',
        'tailshift_requests_total{path="other",status="404"} 1.0',
        'tailshift_images_total{mix="training"} 5.0',
        'tailshift_predict_seconds_bucket{le="+Inf"} 1.0',
        "tailshift_batched_images_total 5.0",
        "tailshift_sites 1.0",
    ):
        assert sample in text.splitlines()
