"""Methods: one a file, each its stages and the prior that its logits carry."""

from tailshift.methods.balanced_softmax import BalancedSoftmax
from tailshift.methods.bbn import BBN
from tailshift.methods.causal_norm import CausalNorm
from tailshift.methods.cb_focal import ClassBalancedFocal
from tailshift.methods.crt import CRT
from tailshift.methods.focal import Focal
from tailshift.methods.lade import LADE
from tailshift.methods.ldam import LDAM
from tailshift.methods.ldam_drw import LDAMDRW
from tailshift.methods.logit_adjustment import LogitAdjustment
from tailshift.methods.lws import LWS
from tailshift.methods.method import METHODS, Decoupled, Method, Stage
from tailshift.methods.ncm import NCM
from tailshift.methods.oltr import OLTR
from tailshift.methods.resampled_softmax import ResampledSoftmax
from tailshift.methods.reweighted_softmax import ReweightedSoftmax
from tailshift.methods.sade import SADE
from tailshift.methods.softmax import Softmax
from tailshift.methods.tau_norm import TauNorm

METHODS.add("softmax", Softmax)
METHODS.add("focal", Focal)
METHODS.add("cb_focal", ClassBalancedFocal)
METHODS.add("ldam", LDAM)
METHODS.add("ldam_drw", LDAMDRW)
METHODS.add("oltr", OLTR)
METHODS.add("crt", CRT)
METHODS.add("tau_norm", TauNorm)
METHODS.add("lws", LWS)
METHODS.add("ncm", NCM)
METHODS.add("bbn", BBN)
METHODS.add("causal_norm", CausalNorm)
METHODS.add("balanced_softmax", BalancedSoftmax)
METHODS.add("logit_adjustment", LogitAdjustment)
METHODS.add("lade", LADE)
METHODS.add("reweighted_softmax", ReweightedSoftmax)
METHODS.add("resampled_softmax", ResampledSoftmax)
METHODS.add("sade", SADE)

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
    "BalancedSoftmax",
    "CausalNorm",
    "ClassBalancedFocal",
    "Decoupled",
    "Focal",
    "LogitAdjustment",
    "Method",
    "ResampledSoftmax",
    "ReweightedSoftmax",
    "Softmax",
    "Stage",
    "TauNorm",
]
