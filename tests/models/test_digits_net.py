import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from tailshift.models import Classifier, DigitsNet, LinearHead


@pytest.mark.parametrize("side", [1, 7, 8, 28])
def test_digits_net__takes_any_image_size(side: int) -> None:
    assert DigitsNet(2).eval()(torch.zeros(1, 2, side, side)).shape == (1, 128)


def test_digits_net__learns_digits_in_ten_epochs() -> None:
    """300 digits, tested on the 1497 others: 0.884 to 0.910 over seeds 0 to 19."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    model = Classifier(DigitsNet(), LinearHead(128, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(10):
        for batch in torch.randperm(300).split(30):
            optimiser.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        predicted = model.eval()(images[300:]).argmax(dim=1)
    assert (predicted == labels[300:]).float().mean() > 0.85
