"""Methods: each its stages and the prior that its logits carry."""

from tailshift.methods.balanced_softmax import BalancedSoftmax
from tailshift.methods.balpoe import BalPoE
from tailshift.methods.bbn import BBN
from tailshift.methods.causal_norm import CausalNorm
from tailshift.methods.decoupling import CRT, LWS, NCM, TauNorm
from tailshift.methods.focal import ClassBalancedFocal, Focal
from tailshift.methods.lade import LADE
from tailshift.methods.ldam import LDAM, LDAMDRW
from tailshift.methods.logit_adjustment import LogitAdjustment
from tailshift.methods.method import METHODS, Decoupled, Method, Stage
from tailshift.methods.mislas import MiSLAS
from tailshift.methods.oltr import OLTR
from tailshift.methods.sade import SADE
from tailshift.methods.schedules import SCHEDULES
from tailshift.methods.softmax import ResampledSoftmax, ReweightedSoftmax, Softmax

__all__ = [
    "BBN",
    "CRT",
    "LADE",
    "LDAM",
    "LDAMDRW",
    "LWS",
    "METHODS",
    "NCM",
    "OLTR",
    "SADE",
    "SCHEDULES",
    "BalPoE",
    "BalancedSoftmax",
    "CausalNorm",
    "ClassBalancedFocal",
    "Decoupled",
    "Focal",
    "LogitAdjustment",
    "Method",
    "MiSLAS",
    "ResampledSoftmax",
    "ReweightedSoftmax",
    "Softmax",
    "Stage",
    "TauNorm",
]
