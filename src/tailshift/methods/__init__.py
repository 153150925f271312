"""Methods: one a file, each a loss, a head and the prior that its logits carry."""

from tailshift.methods.balanced_softmax import BalancedSoftmax
from tailshift.methods.lade import LADE
from tailshift.methods.method import METHODS, Method
from tailshift.methods.softmax import Softmax

METHODS.add("softmax", Softmax)
METHODS.add("balanced_softmax", BalancedSoftmax)
METHODS.add("lade", LADE)

__all__ = ["LADE", "METHODS", "BalancedSoftmax", "Method", "Softmax"]
