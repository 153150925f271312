"""Re-target predictions of a classifier that somebody else trained."""

import sys
from types import ModuleType

from tailshift.retarget.matching import matching_bias, matching_weights
from tailshift.retarget.multilabel import estimate_frequencies
from tailshift.retarget.rollup import Taxonomy
from tailshift.retarget.run import Retargeted, retarget
from tailshift.retarget.scores import RetargetRule
from tailshift.retarget.tables import open_table
from tailshift.retarget.unlabelled import (
    UnlabelledEstimate,
    estimate_logit_prior,
    estimate_unlabelled,
)

__all__ = [
    "RetargetRule",
    "Retargeted",
    "Taxonomy",
    "UnlabelledEstimate",
    "estimate_frequencies",
    "estimate_logit_prior",
    "estimate_unlabelled",
    "matching_bias",
    "matching_weights",
    "open_table",
    "retarget",
]


class _CallableModule(ModuleType):
    """This package, which `ts.retarget(predictions, output)` calls."""

    __call__ = staticmethod(retarget)


_package = sys.modules[__name__]
_package.__class__ = _CallableModule
