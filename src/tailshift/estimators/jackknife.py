"""How much an estimate owes to the held-out samples: a jackknife over groups."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from tailshift.calibration import Calibrator
from tailshift.estimators.posteriors import Posteriors

NUM_GROUPS = 10
REFIT_ELEMENTS = 2**20  # with more held-out posteriors the calibrator is sure enough
TARGET_ELEMENTS = 2**21  # of unlabelled posteriors that changes are measured on


def jackknife_variance(
    estimate: Callable[[Posteriors, Tensor], float],
    samples: Posteriors,
    held_out: Posteriors,
    labels: Tensor,
    calibrator: Calibrator | None,
) -> tuple[float, int]:
    r"""Return the variance of an estimate over held-out samples, and its freedom.

    .. math:: \frac{G-1}{G} \sum_k (\hat\gamma_{(k)} - \bar\gamma)^2

    where :math:`\hat\gamma_{(k)}` is the estimate without group k of the held-out
    samples, both for the denominator and for a calibrator fitted anew on top of the
    first.

    Args:
        estimate: Takes unlabelled posteriors and a denominator (C, 1).
        samples: Unlabelled posteriors.
        held_out: Held-out posteriors.
        labels: Their labels.
        calibrator: What made the posteriors; it is copied.
    """
    generator = torch.Generator().manual_seed(0)
    n = held_out.num_samples
    num_groups = min(NUM_GROUPS, n)
    if num_groups < 2:
        return 0.0, 1
    group = torch.randperm(n, generator=generator) % num_groups
    if held_out.num_samples * held_out.num_classes > REFIT_ELEMENTS:
        calibrator = None
    target = _some(samples, generator)
    known = torch.cat(list(held_out))
    values = []
    for k in range(num_groups):
        kept = group != k
        again = _calibrated_again(calibrator, known[kept], labels[kept])
        m = again(known[kept]).mean(dim=0)[:, None].clamp_min(1e-30)
        values.append(estimate(Posteriors.of(again(target)), m))
    spread = torch.tensor(values, dtype=torch.float64).var(correction=0)
    return (num_groups - 1) * spread.item(), num_groups - 1


def _calibrated_again(
    calibrator: Calibrator | None, posteriors: Tensor, labels: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return what a calibrator fitted to posteriors and labels does to posteriors."""
    if calibrator is None:
        return lambda p: p
    fitted = copy.deepcopy(calibrator)
    fitted.fit(posteriors.log(), labels)

    def again(p: Tensor) -> Tensor:
        logits: Tensor = fitted.transform(p.log())
        return logits.softmax(dim=1)

    return again


def _some(samples: Posteriors, generator: torch.Generator) -> Tensor:
    most = max(1, TARGET_ELEMENTS // samples.num_classes)
    if samples.num_samples <= most:
        return torch.cat(list(samples))
    order = torch.randperm(samples.num_samples, generator=generator)
    return samples.rows(order[:most])
