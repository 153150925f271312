"""A network without batch normalisation, whose weights any number of hosts agree on."""

from torch import Tensor, nn

from tailshift.models import MODELS, Backbone


@MODELS.register("plain_net")
class PlainNet(Backbone):
    """Two convolutions."""

    feature_dim = 8

    def __init__(self, in_channels: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, 4, 3, stride=2),
            nn.Tanh(),
            nn.Conv2d(4, 8, 3),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.body(images)
        return features
