"""Metrics of the server for Prometheus."""

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tailshift.serving.inference import Batcher
from tailshift.serving.sites import Sites
from tailshift.serving.work import WorkInFlight

__all__ = ["CONTENT_TYPE", "ServerMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

disable_created_metrics()  # type: ignore[no-untyped-call] # one more line per label


class ServerMetrics:
    """Metrics of one service.

    Attributes:
        requests: Requests by route and status.
        images: Images by the origin of the prior that their predictions use.
        seconds: Wall time of predictions.

    Args:
        batcher: Gives the batches so far.
        sites: Gives the sites and their alarms.
        work: Gives the images of requests in progress.
    """

    def __init__(self, batcher: Batcher, sites: Sites, work: WorkInFlight) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "tailshift_requests",
            "Requests by route and status.",
            ["path", "status"],
            registry=self._registry,
        )
        self.images = Counter(
            "tailshift_images",
            "Images by the origin of the prior in use.",
            ["mix"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "tailshift_predict_seconds",
            "Wall time of predictions.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_State(batcher, sites, work))

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)


class _State(Collector):
    """Reads the metrics that the batcher and the sites keep themselves."""

    def __init__(self, batcher: Batcher, sites: Sites, work: WorkInFlight) -> None:
        self._batcher, self._sites, self._work = batcher, sites, work

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its present value."""
        sizes, names = self._batcher.sizes, self._sites.names()
        counters = {
            "batches": ("Batches that the model has run.", sizes.total()),
            "batched_images": ("Images in these batches.", _total(sizes)),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"tailshift_{name}", text, value)
        alarms = sum(bool(self._sites.alarms(name)) for name in names)
        gauges = {
            "queued_images": ("Images of requests in progress.", self._work.num_images),
            "sites": ("Known sites.", len(names)),
            "sites_with_alarms": ("Sites with an alarm.", alarms),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"tailshift_{name}", text, value)


def _total(sizes: dict[int, int]) -> int:
    return sum(size * count for size, count in sizes.items())
