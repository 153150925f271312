"""Train a classifier once on long-tailed data, serve it on any label distribution."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tailshift import (
    calibration,
    data,
    estimators,
    losses,
    methods,
    metrics,
    models,
    priors,
)
from tailshift.compensation import PostCompensated, post_compensate
from tailshift.config import RunConfig
from tailshift.estimators import (
    Adaptation,
    BBSEEstimator,
    EMEstimator,
    MAPEstimator,
    OnlineEstimator,
    RLLSEstimator,
    TiltEstimator,
    adapt,
)
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
from tailshift.registry import load_plugin
from tailshift.runs.run import Run, load
from tailshift.serving import estimate, predict
from tailshift.training import train

__version__ = version("tailshift")

__all__ = [
    "Adaptation",
    "BBSEEstimator",
    "BalancedSoftmaxLoss",
    "ClassBalancedFocalLoss",
    "CrossEntropyLoss",
    "EMEstimator",
    "FocalLoss",
    "LADELoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "MAPEstimator",
    "OnlineEstimator",
    "PostCompensated",
    "Predictions",
    "RLLSEstimator",
    "Run",
    "RunConfig",
    "TiltEstimator",
    "adapt",
    "balanced_softmax_loss",
    "calibration",
    "class_balanced_focal_loss",
    "cross_entropy_loss",
    "data",
    "estimate",
    "estimators",
    "evaluate",
    "export",
    "focal_loss",
    "lade_loss",
    "lader",
    "ldam_loss",
    "load",
    "load_plugin",
    "load_recipe",
    "logit_adjusted_loss",
    "losses",
    "methods",
    "metrics",
    "models",
    "post_compensate",
    "predict",
    "priors",
    "report",
    "reproduce",
    "sklearn",
    "train",
]

if TYPE_CHECKING:
    from tailshift import sklearn
    from tailshift.paper.reproduce import reproduce
    from tailshift.report import report
    from tailshift.serving.export import export
else:

    def __getattr__(name: str) -> Any:
        """Import what is slow to import when it is first asked for."""
        if name in ("report", "sklearn"):
            return import_module(f"tailshift.{name}")
        if name == "export":
            return import_module("tailshift.serving.export").export
        if name == "reproduce":
            return import_module("tailshift.paper.reproduce").reproduce
        raise AttributeError(f"module 'tailshift' has no attribute {name!r}")
