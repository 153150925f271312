"""Losses: one concept a file, the function that carries the equation and its module."""

from tailshift.losses.balanced_softmax import BalancedSoftmaxLoss, balanced_softmax_loss
from tailshift.losses.balpoe import BalPoELoss, balpoe_loss, balpoe_priors
from tailshift.losses.base import (
    LOSSES,
    Loss,
    LossFunction,
    as_loss,
)
from tailshift.losses.bilateral import BilateralLoss, bilateral_loss
from tailshift.losses.class_balanced import (
    ClassBalancedCrossEntropyLoss,
    ClassBalancedFocalLoss,
    class_balanced_cross_entropy_loss,
    class_balanced_focal_loss,
    class_balanced_weights,
)
from tailshift.losses.cross_entropy import (
    CrossEntropyLoss,
    WeightedCrossEntropyLoss,
    cross_entropy_loss,
    weighted_cross_entropy_loss,
)
from tailshift.losses.discriminative_centroids import centroid_loss, centroid_pull
from tailshift.losses.distributed import DistributedLoss, loss_over_processes
from tailshift.losses.focal import FocalLoss, focal_log_posteriors, focal_loss
from tailshift.losses.lade import LADELoss, lade_ce_loss, lade_loss
from tailshift.losses.lader import lader
from tailshift.losses.ldam import LDAMLoss, ldam_loss, ldam_margins
from tailshift.losses.logit_adjusted import LogitAdjustedLoss, logit_adjusted_loss
from tailshift.losses.reduction import Reduction
from tailshift.losses.sade import SADELoss, inverse_prior, sade_loss, sade_priors
from tailshift.losses.soft_targets import (
    LabelAwareSmoothing,
    SoftTargetLoss,
    label_smoothing_factors,
    mixup,
    mixup_loss,
    smooth_labels,
    smoothed_loss,
    soft_target_loss,
)
from tailshift.processes import Processes

__all__ = [
    "LOSSES",
    "BalPoELoss",
    "BalancedSoftmaxLoss",
    "BilateralLoss",
    "ClassBalancedCrossEntropyLoss",
    "ClassBalancedFocalLoss",
    "CrossEntropyLoss",
    "DistributedLoss",
    "FocalLoss",
    "LADELoss",
    "LDAMLoss",
    "LabelAwareSmoothing",
    "LogitAdjustedLoss",
    "Loss",
    "LossFunction",
    "Processes",
    "Reduction",
    "SADELoss",
    "SoftTargetLoss",
    "WeightedCrossEntropyLoss",
    "as_loss",
    "balanced_softmax_loss",
    "balpoe_loss",
    "balpoe_priors",
    "bilateral_loss",
    "centroid_loss",
    "centroid_pull",
    "class_balanced_cross_entropy_loss",
    "class_balanced_focal_loss",
    "class_balanced_weights",
    "cross_entropy_loss",
    "focal_log_posteriors",
    "focal_loss",
    "inverse_prior",
    "label_smoothing_factors",
    "lade_ce_loss",
    "lade_loss",
    "lader",
    "ldam_loss",
    "ldam_margins",
    "logit_adjusted_loss",
    "loss_over_processes",
    "mixup",
    "mixup_loss",
    "sade_loss",
    "sade_priors",
    "smooth_labels",
    "smoothed_loss",
    "soft_target_loss",
    "weighted_cross_entropy_loss",
]
