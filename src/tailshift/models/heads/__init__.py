"""Heads: from features to one logit for each class."""

from tailshift.models.heads.causal import CausalHead as CausalHead
from tailshift.models.heads.class_means import ClassMeanHead as ClassMeanHead
from tailshift.models.heads.class_means import class_means as class_means
from tailshift.models.heads.experts import BilateralHead as BilateralHead
from tailshift.models.heads.experts import ExpertHead as ExpertHead
from tailshift.models.heads.experts import ExpertOutput as ExpertOutput
from tailshift.models.heads.head import HEADS as HEADS
from tailshift.models.heads.head import Head as Head
from tailshift.models.heads.head import HeadBuilder as HeadBuilder
from tailshift.models.heads.head import StageFeatures as StageFeatures
from tailshift.models.heads.linear import CosineHead as CosineHead
from tailshift.models.heads.linear import LinearHead as LinearHead
from tailshift.models.heads.linear import ScaledLinearHead as ScaledLinearHead
from tailshift.models.heads.memory import MemoryHead as MemoryHead
from tailshift.models.heads.memory import MemoryOutput as MemoryOutput
from tailshift.models.heads.normed_linear import NormedLinearHead as NormedLinearHead
