from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tailshift.models import (
    MODELS,
    Classifier,
    DigitsNet,
    LinearHead,
    build_backbone,
)


@pytest.mark.parametrize("name", MODELS.names())
@pytest.mark.parametrize("in_channels", [1, 4])
def test_classifier__gradient_flows_into_all_parameters(
    name: str, in_channels: int, linear_model: Callable[..., Classifier]
) -> None:
    model = linear_model(name, 5, in_channels=in_channels)
    size = MODELS.get(name).image_size
    logits = model(torch.randn(4, in_channels, size, size))
    assert logits.shape == (4, 5)
    F.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize("name", MODELS.names())
def test_classifier__evaluation_sees_each_image_alone(
    name: str, linear_model: Callable[..., Classifier]
) -> None:
    """The logits of an image do not change with the company it is in."""
    model = linear_model(name, 5).double()
    size = MODELS.get(name).image_size
    images = torch.randn(4, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        model(images)  # moves the running statistics off their start
        together = model.eval()(images)
        alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("name", MODELS.names())
def test_classifier__same_seed_same_weights(
    name: str, linear_model: Callable[..., Classifier]
) -> None:
    torch.manual_seed(1)
    first = linear_model(name, 5).state_dict()
    torch.manual_seed(1)
    second = linear_model(name, 5).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_classifier__is_the_head_on_the_features() -> None:
    backbone, head = DigitsNet().eval(), LinearHead(128, 3)
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(Classifier(backbone, head)(images), head(backbone(images)))


def test_classifier__feature_dims_differ() -> None:
    with pytest.raises(ValueError, match="features") as error:
        Classifier(DigitsNet(), LinearHead(64, 3))
    assert str(error.value) == "`head` takes 64 features but `backbone` gives 128."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet23",
            "unknown model 'resnet23'; did you mean 'resnet32'? "
            f"Known: {', '.join(MODELS.names())}",
        ),
        ("resnet50", "unknown model 'resnet50'; did you mean 'timm:resnet50'?"),
        ("timm:resnet5", "unknown timm model 'resnet5'; did you mean 'resnet50'?"),
    ],
)
def test_build_backbone__unknown_name(name: str, message: str) -> None:
    with pytest.raises(ValueError, match="unknown") as error:
        build_backbone(name)
    assert str(error.value) == message


def test_build_backbone__no_channels() -> None:
    with pytest.raises(ValueError, match="in_channels") as error:
        build_backbone("digits_net", in_channels=0)
    assert str(error.value) == "`in_channels` must be >= 1, but is 0."


def test_build_backbone__pretrained_without_timm() -> None:
    with pytest.raises(ValueError, match="pretrained") as error:
        build_backbone("resnet32", pretrained=True)
    assert str(error.value) == (
        "`pretrained` weights exist for timm models only, but `name` is 'resnet32'. "
        "Drop `pretrained`, or use a model such as 'timm:resnet50'."
    )
