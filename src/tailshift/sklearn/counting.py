"""The labels that a sampler of imbalanced-learn leaves for a pipeline's last step."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator


class CountingEstimator(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Stands in for a pipeline's last step while it is fitted, and keeps its labels."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:  # noqa: N803
        """Keep the labels and fit the last step."""
        self.labels = np.asarray(y)
        self.estimator.fit(X, y, **fit_params)
        return self

    def get_metadata_routing(self) -> Any:
        """Return the last step's routing."""
        return self.estimator.get_metadata_routing()

    def __sklearn_tags__(self) -> Any:
        return self.estimator.__sklearn_tags__()
