"""Metrics of the server for Prometheus."""

import math
from collections import Counter

from tailshift.serving.inference import Batcher
from tailshift.serving.streams import Sites

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """Counts for Prometheus."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.images: Counter[str] = Counter()
        self._latencies: Counter[float] = Counter()
        self._seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count a prediction by how long it took."""
        self._seconds += seconds
        self._latencies[next((b for b in BUCKETS if seconds <= b), math.inf)] += 1

    def text(self, batcher: Batcher, sites: Sites) -> str:
        """Return all in the text format of Prometheus."""
        lines = ["# TYPE tailshift_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            labels = f'path="{path}",status="{status}"'
            lines.append(f"tailshift_requests_total{{{labels}}} {count}")
        lines.append("# TYPE tailshift_images_total counter")
        for origin, count in sorted(self.images.items()):
            lines.append(f'tailshift_images_total{{mix="{origin}"}} {count}')
        lines += self._histogram()
        batches, images = batcher.sizes.total(), _total(batcher.sizes)
        alarms = sum(bool(sites.alarms(name)) for name in sites.names())
        values = {
            "batches_total": ("counter", batches),
            "batched_images_total": ("counter", images),
            "queued_images": ("gauge", batcher.num_waiting),
            "sites": ("gauge", len(sites.names())),
            "sites_with_alarms": ("gauge", alarms),
        }
        for name, (kind, value) in values.items():
            lines.append(f"# TYPE tailshift_{name} {kind}\ntailshift_{name} {value}")
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        name, total = "tailshift_predict_seconds", 0
        lines = [f"# TYPE {name} histogram"]
        for bound in (*BUCKETS, math.inf):
            total += self._latencies[bound]
            label = "+Inf" if bound == math.inf else f"{bound:g}"
            lines.append(f'{name}_bucket{{le="{label}"}} {total}')
        return [*lines, f"{name}_sum {self._seconds:.6f}", f"{name}_count {total}"]


def _total(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())
