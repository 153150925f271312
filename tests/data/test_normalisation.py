import pytest
import torch

from tailshift.data.memory import Normalisation


def test_normalisation__equals_the_formula():
    pixels = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    m, s = (torch.tensor(v)[:, None, None] for v in (mean, std))
    expected = (pixels.float() / 255 - m) / s
    torch.testing.assert_close(Normalisation(mean, std)(pixels), expected)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), (0.5, 0.5), "`mean` has 1 entries but `std` has 2."),
        ((0.5,) * 2, (1.0, 0.0), "`std` must be > 0, but is (1.0, 0.0)."),
    ],
)
def test_normalisation__refuses(mean, std, message):
    with pytest.raises(ValueError, match="`") as error:
        Normalisation(mean, std)
    assert str(error.value) == message
