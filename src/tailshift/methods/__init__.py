"""Methods: each its stages and the prior that its logits carry."""

from tailshift.methods.balanced_softmax import BalancedSoftmax as BalancedSoftmax
from tailshift.methods.balpoe import BalPoE as BalPoE
from tailshift.methods.bbn import BBN as BBN
from tailshift.methods.causal_norm import CausalNorm as CausalNorm
from tailshift.methods.decoupling import CRT as CRT
from tailshift.methods.decoupling import LWS as LWS
from tailshift.methods.decoupling import NCM as NCM
from tailshift.methods.decoupling import TauNorm as TauNorm
from tailshift.methods.focal import ClassBalancedFocal as ClassBalancedFocal
from tailshift.methods.focal import Focal as Focal
from tailshift.methods.lade import LADE as LADE
from tailshift.methods.ldam import LDAM as LDAM
from tailshift.methods.ldam import LDAMDRW as LDAMDRW
from tailshift.methods.logit_adjustment import LogitAdjustment as LogitAdjustment
from tailshift.methods.method import METHODS as METHODS
from tailshift.methods.method import Decoupled as Decoupled
from tailshift.methods.method import Method as Method
from tailshift.methods.method import Stage as Stage
from tailshift.methods.mislas import MiSLAS as MiSLAS
from tailshift.methods.oltr import OLTR as OLTR
from tailshift.methods.sade import SADE as SADE
from tailshift.methods.schedules import SCHEDULES as SCHEDULES
from tailshift.methods.softmax import ResampledSoftmax as ResampledSoftmax
from tailshift.methods.softmax import ReweightedSoftmax as ReweightedSoftmax
from tailshift.methods.softmax import Softmax as Softmax
