"""Projection to the simplex, against a search by SciPy."""

import numpy as np
import torch
from scipy.optimize import minimize

from tailshift.estimators.confusion import project_to_simplex


def test_project_to_simplex__worked_example():
    """0.9 and 0.4 sum to 1.3: both lose 0.15; the third is 0."""
    q = project_to_simplex(torch.tensor([0.9, 0.4, -0.5]))
    torch.testing.assert_close(q, torch.tensor([0.75, 0.25, 0.0]))


def test_project_to_simplex__leaves_a_prior_alone():
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    torch.testing.assert_close(project_to_simplex(p), p)


def test_project_to_simplex__is_the_nearest():
    for seed in range(5):
        v = np.random.default_rng(seed).normal(size=6)
        nearest = minimize(
            lambda q, v=v: ((q - v) ** 2).sum(),
            np.full(6, 1 / 6),
            bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
            options={"ftol": 1e-14},
        )
        ours = project_to_simplex(torch.from_numpy(v)).numpy()
        np.testing.assert_allclose(ours, nearest.x, atol=1e-5)
