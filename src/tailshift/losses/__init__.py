"""Losses: one concept a file, the function that carries the equation and its module."""

from tailshift.losses.balanced_softmax import BalancedSoftmaxLoss, balanced_softmax_loss
from tailshift.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from tailshift.losses.lade import LADELoss, lade_ce_loss, lade_loss
from tailshift.losses.lader import lader
from tailshift.losses.reduction import Reduction

__all__ = [
    "BalancedSoftmaxLoss",
    "CrossEntropyLoss",
    "LADELoss",
    "Reduction",
    "balanced_softmax_loss",
    "cross_entropy_loss",
    "lade_ce_loss",
    "lade_loss",
    "lader",
]
