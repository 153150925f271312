"""Train a classifier once on long-tailed data, serve it on any label distribution."""

from importlib.metadata import version

from tailshift import data, losses, methods, metrics, models, priors
from tailshift.compensation import PostCompensated, post_compensate
from tailshift.config import RunConfig
from tailshift.evaluation import evaluate
from tailshift.losses import (
    BalancedSoftmaxLoss,
    CrossEntropyLoss,
    LADELoss,
    balanced_softmax_loss,
    cross_entropy_loss,
    lade_loss,
    lader,
)
from tailshift.predictions import Predictions
from tailshift.recipes import load_recipe
from tailshift.training import Run, load, train

__version__ = version("tailshift")

__all__ = [
    "BalancedSoftmaxLoss",
    "CrossEntropyLoss",
    "LADELoss",
    "PostCompensated",
    "Predictions",
    "Run",
    "RunConfig",
    "balanced_softmax_loss",
    "cross_entropy_loss",
    "data",
    "evaluate",
    "lade_loss",
    "lader",
    "load",
    "load_recipe",
    "losses",
    "methods",
    "metrics",
    "models",
    "post_compensate",
    "priors",
    "train",
]
