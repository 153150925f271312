"""Time and memory of EM to convergence, beside QuaPy's for as many iterations.

Run with::

    python benchmarks/bench_estimators.py [--samples 50000] [--classes 1000]

Both get the same calibrated posteriors, by one thread. Time is the processor's, in
seconds and as a multiple of QuaPy's for the same number of passes over the data. Memory
is the most that the process holds during the call beyond what it held before, sampled
every 5 milliseconds, as a multiple of the float32 logits' size. The stopping rules of
both are switched off where passes are compared, so that both make as many.

The last line is `adapt`, which calibrates, estimates and tests, on many classes.
"""

import argparse
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from quapy.method.aggregative import EMQ

from tailshift import Predictions, priors
from tailshift.estimators import EMEstimator, FewSamplesWarning, adapt

PAGE = 4096
NUM_HELD_OUT = 20_000
NUM_ADAPTED = 5000  # held-out samples, and as many new ones
SIGNAL = 3.0  # distance of the classes' means, which are as many dimensions


class Cost(NamedTuple):
    """Seconds of processor time, and bytes at the peak beyond those before."""

    seconds: float
    peak: int


def resident() -> int:
    """Return the bytes that the process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def measure(call: Callable[[], object]) -> Cost:
    """Run a call and return what it cost."""
    before, peak, is_done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.005):
            peak = max(peak, resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    call()
    seconds = time.process_time() - start
    is_done.set()
    watcher.join()
    return Cost(seconds, max(peak, resident() - before))


def make_logits(
    num_samples: int, p_s: torch.Tensor, p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits that carry ``p_s``, and their labels, which follow ``p``."""
    y = torch.multinomial(p, num_samples, replacement=True)
    x = torch.randn(num_samples, len(p))
    x[torch.arange(num_samples), y] += SIGNAL
    return SIGNAL * x + p_s.log().float(), y


def quapy_em(posteriors: np.ndarray, prior: np.ndarray, num_iter: int) -> np.ndarray:
    """Return QuaPy's estimate after exactly ``num_iter`` iterations."""
    EMQ.MAX_ITER = num_iter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged, by its rule
        return EMQ.EM(prior, posteriors, epsilon=0.0)[0]


def measure_adapt(num_classes: int) -> Cost:
    """Return what `adapt` costs on the reversed mix of so many classes."""
    n = priors.long_tailed_counts(1280, 256, num_classes)
    p_s = priors.from_counts(n)
    logits, labels = make_logits(NUM_ADAPTED, p_s, p_s)
    held_out = Predictions(logits, labels, source_counts=n, logit_prior=p_s)
    new, _ = make_logits(NUM_ADAPTED, p_s, p_s.flip(0))
    return measure(lambda: adapt(held_out, new))


def compare_em(num_samples: int, num_classes: int) -> None:
    """Print one line for each of the two."""
    p_s = priors.from_counts(priors.long_tailed_counts(1280, 256, num_classes))
    held_out, labels = make_logits(NUM_HELD_OUT, p_s, p_s)
    x, _ = make_logits(num_samples, p_s, priors.uniform(num_classes))
    em = EMEstimator(source_prior=p_s, calibrator="temperature").fit(held_out, labels)

    ours = measure(lambda: em.estimate(x))
    num_iter, q = em.num_iter_, em.prior_
    p = em.posterior(x).numpy()
    m = em.denominator_.numpy()
    found: list[np.ndarray] = []
    theirs = measure(lambda: found.append(quapy_em(p, m, num_iter)))

    size = x.nbytes
    print(
        f"torch {torch.__version__}, one thread, {num_samples} × {num_classes}, "
        f"{num_iter} passes, converged: {em.converged_}"
    )
    print(f"{'EM':<10}{'s':>8}{'× QuaPy':>9}{'memory':>8}")
    for name, cost in (("tailshift", ours), ("QuaPy", theirs)):
        ratio = cost.seconds / theirs.seconds
        print(f"{name:<10}{cost.seconds:>8.2f}{ratio:>9.3f}{cost.peak / size:>8.2f}")
    print(f"L1 distance of both estimates: {np.abs(q.numpy() - found[0]).sum():.2e}")


def main() -> None:
    """Compare EM with QuaPy's, and print what `adapt` costs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--adapt-classes", type=int, default=5000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", FewSamplesWarning)
    compare_em(arguments.samples, arguments.classes)
    cost = measure_adapt(arguments.adapt_classes)
    print(
        f"adapt, {NUM_ADAPTED} × {arguments.adapt_classes}: {cost.seconds:.1f} s, "
        f"{cost.peak / 1e9:.2f} GB"
    )


if __name__ == "__main__":
    main()
