"""Backbones, heads and the classifiers made of them."""

from tailshift.models.adapters import (
    AdaptedBackbone,
    Adapter,
    AdapterName,
    add_adapters,
)
from tailshift.models.backbone import (
    MODELS,
    Backbone,
    BranchedBackbone,
    num_parameters,
)
from tailshift.models.classifier import (
    AUTO,
    MOST_SMALL,
    Classifier,
    build_backbone,
    check_model_name,
    load_backbone_weights,
    suitable_model,
)
from tailshift.models.digits_net import DigitsNet
from tailshift.models.heads import (
    HEADS,
    BilateralHead,
    CausalHead,
    ClassMeanHead,
    CosineHead,
    ExpertHead,
    ExpertOutput,
    Head,
    HeadBuilder,
    LinearHead,
    MemoryHead,
    MemoryOutput,
    NormedLinearHead,
    ScaledLinearHead,
    StageFeatures,
)
from tailshift.models.post_compensated import (
    PostCompensated,
    SupportsEstimate,
    UncalibratedWarning,
)
from tailshift.models.pretrained import PUBLISHED, FrozenBackbone, ResizedBackbone
from tailshift.models.resnet32 import ResNet32, TwoBranchResNet32
from tailshift.models.timm_backbone import TimmBackbone, layer_rates

__all__ = [
    "AUTO",
    "HEADS",
    "MODELS",
    "MOST_SMALL",
    "PUBLISHED",
    "AdaptedBackbone",
    "Adapter",
    "AdapterName",
    "Backbone",
    "BilateralHead",
    "BranchedBackbone",
    "CausalHead",
    "ClassMeanHead",
    "Classifier",
    "CosineHead",
    "DigitsNet",
    "ExpertHead",
    "ExpertOutput",
    "FrozenBackbone",
    "Head",
    "HeadBuilder",
    "LinearHead",
    "MemoryHead",
    "MemoryOutput",
    "NormedLinearHead",
    "PostCompensated",
    "ResNet32",
    "ResizedBackbone",
    "ScaledLinearHead",
    "StageFeatures",
    "SupportsEstimate",
    "TimmBackbone",
    "TwoBranchResNet32",
    "UncalibratedWarning",
    "add_adapters",
    "build_backbone",
    "check_model_name",
    "layer_rates",
    "load_backbone_weights",
    "num_parameters",
    "suitable_model",
]
