"""The tilt again, by the likelihood of held-out and unlabelled samples together."""

import torch
from torch import Tensor

from tailshift.estimators.posteriors import Posteriors
from tailshift.estimators.tilt import BOUND, tilted
from tailshift.estimators.two_samples import joint_scores, maximise_jointly

REACH, STEPS = 0.75, 11  # γ is sought this far on either side, on so many points
FIXED = 1e12  # pseudo-counts that leave q where it is


def joint_gamma(
    samples: Posteriors,
    held_out: Posteriors,
    source_prior: Tensor,
    denominator: Tensor,
    gamma: float,
) -> float:
    r"""Return the γ near a given one that makes both samples likeliest.

    The denominator m is free: each γ is judged with the m that suits it best. Where
    held-out samples are few this errs less than γ with their mean posterior put in.

    Args:
        samples: Unlabelled posteriors.
        held_out: Held-out posteriors.
        source_prior: :math:`p_s`, shape (C,).
        denominator: The first m, shape (C, 1).
        gamma: Where to search.
    """
    offsets = torch.linspace(-REACH, REACH, STEPS, dtype=torch.float64)
    gammas = (gamma + offsets).clamp(-BOUND, BOUND)
    q = tilted(source_prior, gammas)  # (C, steps)
    found = maximise_jointly(
        samples,
        held_out,
        start=q,
        denominator=denominator,
        pseudo_counts=FIXED * q,
        tolerance=1e-4,
        max_iter=200,
    )
    w = q / found.x.chunk(2)[1]
    ratio = samples.num_samples / held_out.num_samples
    values = torch.zeros(STEPS, dtype=torch.float64)
    for part, is_target in ((samples, True), (held_out, False)):
        for p in part:
            values += joint_scores(p.double() @ w, ratio, is_target=is_target).sum(
                dim=0
            )
    return _peak(gammas, values)


def _peak(x: Tensor, values: Tensor) -> float:
    """Return where the parabola through the best point and its neighbours peaks."""
    k = int(values.argmax())
    if k in (0, len(x) - 1):
        return x[k].item()
    left, top, right = values[k - 1 : k + 2].tolist()
    curvature = left - 2 * top + right
    step = (x[k + 1] - x[k]).item()
    return x[k].item() + (step * (left - right) / (2 * curvature) if curvature else 0.0)
