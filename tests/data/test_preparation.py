import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2

from tailshift.data.images import BrokenImageError, Preparation


@pytest.fixture
def picture():
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((400, 300))


def _tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_evaluation__is_resize_256_and_centre_crop_224(picture):
    reference = transforms.Compose(
        [transforms.Resize(256), transforms.CenterCrop(224), _tensor]
    )
    assert torch.equal(Preparation(224).evaluation()(picture), reference(picture))


def test_training__is_a_resized_crop_with_flip_and_jitter(picture):
    """The classic transforms, seeded alike, give the same pixels."""
    reference = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4),
            _tensor,
        ]
    )
    ours = Preparation(224, jitter=0.4).training()
    for seed in range(4):
        torch.manual_seed(seed)
        expected = reference(picture)
        torch.manual_seed(seed)
        assert torch.equal(ours(picture), expected)


def test_training__random_crop_is_of_a_square_of_256(picture):
    reference = transforms.Compose(
        [transforms.Resize((256, 256)), transforms.RandomCrop(224), _tensor]
    )
    ours = Preparation(224, crop="random", flip=False).training()
    torch.manual_seed(0)
    expected = reference(picture)
    torch.manual_seed(0)
    assert torch.equal(ours(picture), expected)


def test_training__a_shift_shows_the_whole_image_and_zeros(picture):
    reference = transforms.Compose(
        [transforms.Resize((32, 32)), transforms.RandomCrop(32, padding=4), _tensor]
    )
    ours = Preparation(32, crop="padded", fit="whole", flip=False).training()
    seen = []
    for seed in range(8):
        torch.manual_seed(seed)
        expected = reference(picture)
        torch.manual_seed(seed)
        seen.append(ours(picture))
        assert torch.equal(seen[-1], expected)
    assert len({image.sum().item() for image in seen}) > 1


@pytest.mark.parametrize(
    ("policy", "transform"),
    [("auto", v2.AutoAugment()), ("rand", v2.RandAugment())],
)
def test_training__ends_with_the_policy(picture, policy, transform):
    """AutoAugment has ImageNet's policy."""
    assert v2.AutoAugment().policy == v2.AutoAugmentPolicy.IMAGENET
    crop = [v2.RandomResizedCrop(64), v2.RandomHorizontalFlip()]
    reference = v2.Compose([*crop, transform, _tensor])
    ours = Preparation(64, policy=policy).training()
    for seed in range(12):
        torch.manual_seed(seed)
        expected = reference(picture)
        torch.manual_seed(seed)
        assert torch.equal(ours(picture), expected)


def test_preparation__strong_augmentation_changes_no_evaluation(picture):
    strong = Preparation(64, policy="auto", cutout=32)
    plain = Preparation(64)
    assert torch.equal(strong.evaluation()(picture), plain.evaluation()(picture))
    assert str(strong) == f"{plain}, AutoAugment, cutout of 32 pixels"


def test_preparation__mapping_of_older_versions_and_back():
    assert set(Preparation(64).to_mapping()) == {
        *("image_size", "crop", "area", "fit", "flip", "jitter")
    }
    strong = Preparation(64, policy="rand", cutout=8)
    assert Preparation(**strong.to_mapping()) == strong


def test_evaluation__nothing_is_cut_off_a_whole_image():
    """A line at every edge is still there."""
    pixels = np.full((90, 60, 3), 255, dtype=np.uint8)
    pixels[6:-6, 6:-6] = 0
    ours = Preparation(32, crop="none", fit="whole", flip=False)
    shown = ours.evaluation()(Image.fromarray(pixels))
    edges = (shown[:, 0], shown[:, -1], shown[..., 0], shown[..., -1])
    assert min(int(edge.min()) for edge in edges) > 200
    assert torch.equal(ours.training()(Image.fromarray(pixels)), shown)


@pytest.mark.parametrize(("image_size", "resized"), [(224, 256), (32, 37), (28, 32)])
def test_preparation__size_before_cropping(image_size, resized):
    assert Preparation(image_size).resized == resized


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 0}, "`image_size` must be in 1..2048, but is 0."),
        ({"image_size": 60000}, "`image_size` must be in 1..2048, but is 60000."),
        ({"jitter": 1.5}, "`jitter` must be in [0, 1], but is 1.5."),
        (
            {"cutout": 225},
            "`cutout` must be in 0..224 pixels (the image's size), but is 225.",
        ),
    ],
)
def test_preparation__refuses(settings, message):
    with pytest.raises(ValueError, match="`") as error:
        Preparation(**settings)
    assert str(error.value) == message


@pytest.mark.parametrize("size", [(1, 100_000), (100_000, 1)])
def test_evaluation__long_and_narrow_images_do_not_fill_the_memory(size):
    """300 bytes of a file would be 20 GB at a height of 256."""
    narrow, wide = Image.new("RGB", size), Preparation(224)
    padded = Preparation(224, crop="padded")
    for transform, side in (
        (wide.evaluation(), 256),
        (wide.evaluation("five_crop"), 248),
        (padded.training(), 256),
    ):
        with pytest.raises(BrokenImageError) as error:
            transform(narrow)
        assert str(error.value) == (
            f"has {size[0]} × {size[1]} pixels, too long and narrow to be resized to "
            f"{side} at its shorter side"
        )
    assert Preparation(8, fit="whole").evaluation("five_crop")(narrow).shape[0] == 5
    assert wide.training()(narrow).shape == (3, 224, 224)
    assert Preparation(8).evaluation()(Image.new("RGB", (1, 1000))).shape == (3, 8, 8)
