"""Train a classifier once on long-tailed data, serve it on any label distribution."""

from importlib.metadata import version

from tailshift import data, losses, methods, metrics, models, priors
from tailshift.compensation import PostCompensated, post_compensate
from tailshift.config import RunConfig
from tailshift.evaluation import evaluate
from tailshift.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedFocalLoss,
    CrossEntropyLoss,
    FocalLoss,
    LADELoss,
    LDAMLoss,
    LogitAdjustedLoss,
    balanced_softmax_loss,
    class_balanced_focal_loss,
    cross_entropy_loss,
    focal_loss,
    lade_loss,
    lader,
    ldam_loss,
    logit_adjusted_loss,
)
from tailshift.predictions import Predictions
from tailshift.recipes import load_recipe
from tailshift.training import Run, load, train

__version__ = version("tailshift")

__all__ = [
    "BalancedSoftmaxLoss",
    "ClassBalancedFocalLoss",
    "CrossEntropyLoss",
    "FocalLoss",
    "LADELoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "PostCompensated",
    "Predictions",
    "Run",
    "RunConfig",
    "balanced_softmax_loss",
    "class_balanced_focal_loss",
    "cross_entropy_loss",
    "data",
    "evaluate",
    "focal_loss",
    "lade_loss",
    "lader",
    "ldam_loss",
    "load",
    "load_recipe",
    "logit_adjusted_loss",
    "losses",
    "methods",
    "metrics",
    "models",
    "post_compensate",
    "priors",
    "train",
]
