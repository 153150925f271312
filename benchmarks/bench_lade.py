"""Time and memory of LADE beside plain cross-entropy and the published formulation.

Run with::

    python benchmarks/bench_lade.py

Time is the processor's for forward and backward on a batch of 256 by one thread, the
median of many repeats in which the losses take turns, in milliseconds and as a multiple
of the time of ``F.cross_entropy``. Memory is the most that one forward and backward
pass holds at a time beyond the logits and their gradient, by the allocations and
releases that torch.profiler records on the CPU, as a multiple of the logits' size.
"""

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tailshift import priors
from tailshift.losses import BalancedSoftmaxLoss, LADELoss

Loss = Callable[[Tensor, Tensor], Tensor]

NUM_SAMPLES = 256
REPEATS = {100: 400, 1000: 150, 8142: 40}  # number of classes: repeats
ALPHA, LAM = 0.1, 0.01


class PublishedLADE(nn.Module):
    """LADE as it is computed in public code: with masks of C × N entries.

    The regulariser looks at every class, and the importance weight is that of the
    logit's class (the mode ``"official"`` computes the same number).
    """

    def __init__(self, source_prior: Tensor) -> None:
        super().__init__()
        self.p_s = source_prior.float()

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        num_samples, num_classes = logits.shape
        mask = labels == torch.arange(num_classes)[:, None]  # (C, N)
        counts = mask.sum(-1).float()
        positive = (logits.T * mask).sum(-1) / (counts + 1e-8)
        log_ratio = math.log(1 / num_classes) - torch.log(self.p_s + 1e-9)
        weighted = (logits + log_ratio).T  # (C, N)
        t = torch.logsumexp(weighted, -1) - math.log(num_samples)
        regulariser = ((-positive + t + LAM * t**2) * self.p_s).sum()
        log_p_s = torch.log(self.p_s + 1e-9)
        return F.cross_entropy(logits + log_p_s, labels) + ALPHA * regulariser


def make_losses(source_prior: Tensor) -> dict[str, Loss]:
    """Return the compared losses by their column's name."""
    settings = {"alpha": ALPHA, "lam": LAM}
    return {
        "cross-entropy": F.cross_entropy,
        "balanced softmax": BalancedSoftmaxLoss(source_prior),
        "LADE": LADELoss(source_prior, **settings),
        "LADE official": LADELoss(source_prior, mode="official", **settings),
        "published": PublishedLADE(source_prior),
    }


def step(loss: Loss, logits: Tensor, labels: Tensor) -> None:
    """Run one forward and backward pass."""
    logits.grad = None
    loss(logits, labels).backward()


def median_times(
    losses: dict[str, Loss], logits: Tensor, labels: Tensor, repeats: int
) -> dict[str, float]:
    """Return each loss's median time in seconds, the losses taking turns."""
    times: dict[str, list[float]] = {name: [] for name in losses}
    for repeat in range(repeats + 5):
        for name, loss in losses.items():
            start = time.process_time()
            step(loss, logits, labels)
            if repeat >= 5:  # the first ones warm up
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(loss: Loss, logits: Tensor, labels: Tensor) -> float:
    """Return the peak memory beyond logits and gradient, in sizes of the logits."""
    logits.grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss(logits, labels).backward()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    events = [event for event in events if event.get("name") == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak / logits.nbytes - 1


def main() -> None:
    """Print one line for each number of classes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # Once a large block has come and gone, as with any network's activations, glibc
    # keeps freed memory. Before, each loss pays for new pages at the allocator's whim.
    torch.empty(31 * 2**20, dtype=torch.uint8)
    print(f"torch {torch.__version__}, one thread, N = {NUM_SAMPLES}, float32")
    print(f"{'C':>5}  {'loss':<17}{'ms':>8}{'× CE':>7}{'memory':>8}")
    for num_classes, repeats in REPEATS.items():
        counts = priors.long_tailed_counts(1280, 256, num_classes)
        p_s = priors.from_counts(counts)
        labels = torch.multinomial(p_s, NUM_SAMPLES, replacement=True)
        logits = torch.randn(NUM_SAMPLES, num_classes, requires_grad=True)
        losses = make_losses(p_s)
        times = median_times(losses, logits, labels, repeats)
        for name, loss in losses.items():
            ratio = times[name] / times["cross-entropy"]
            memory = peak_memory(loss, logits, labels)
            milliseconds = 1e3 * times[name]
            print(
                f"{num_classes:>5}  {name:<17}"
                f"{milliseconds:>8.3f}{ratio:>7.2f}{memory:>8.2f}"
            )


if __name__ == "__main__":
    main()
