"""A batch without images gives no rows, and every parameter the gradient 0."""

import pytest
import torch
from torch import nn

from tailshift.methods import METHODS
from tailshift.models import Classifier, build_backbone
from tailshift.models.classifier import of_any_batch


def test_of_any_batch__is_the_module_where_there_are_images() -> None:
    module, images = nn.Conv2d(1, 2, 3), torch.randn(3, 1, 4, 4)
    assert torch.equal(of_any_batch(module, images), module(images))


@pytest.mark.parametrize("name", ["softmax", "causal_norm", "oltr", "bbn", "sade"])
def test_classifier__empty_batch_in_training(name: str) -> None:
    method = METHODS.get(name)()
    backbone = method.branch(build_backbone("digits_net", in_channels=1))
    stage = method.stages()[-1]
    model = Classifier(backbone, stage.head(backbone.feature_dim, 10))
    output = model(torch.zeros(0, 1, 8, 8))
    logits = output if isinstance(output, torch.Tensor) else output.logits
    assert logits.shape == (0, 10)
    tensors = [output] if isinstance(output, torch.Tensor) else output
    sum(tensor.flatten()[:0].sum() for tensor in tensors).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert not parameter.grad.any(), key
