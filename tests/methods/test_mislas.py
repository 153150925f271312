"""MiSLAS: what each of its stages blends, smooths, trains and leaves alone."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tailshift as ts
from tailshift.config import ConfigError
from tailshift.data import LongTailedData
from tailshift.methods import MiSLAS
from tailshift.runs.files import WEIGHTS
from tailshift.runs.network import place_head
from tailshift.training.build import build_loss, build_optimizer, build_trainer
from tailshift.training.distributed import build_fabric
from tailshift.training.resolve import new_model

COUNTS = torch.tensor([50, 20, 5, 1])
SHORT = ("method.name=mislas", "method.epochs=1", "train.epochs=1")


@pytest.fixture(scope="module")
def data() -> LongTailedData:
    return ts.load_recipe("digits_lt").data.load(root=None, seed=0)


def _reference_loss(f: list[list[float]], y: list[int]) -> float:
    """Return the mean of −Σ q log p, with ε_y/C of the label for every class."""
    n, num_classes = COUNTS.tolist(), len(COUNTS)
    total = 0.0
    for row, label in zip(f, y, strict=True):
        place = (n[label] - min(n)) / (max(n) - min(n))
        epsilon = 0.1 + (0.4 - 0.1) * math.sin(math.pi / 2 * place)
        log_sum = math.log(sum(math.exp(value) for value in row))
        for c, value in enumerate(row):
            q = epsilon / num_classes + (1 - epsilon if c == label else 0.0)
            total += q * (log_sum - value)
    return total / len(f)


def test_mislas__loss_of_the_second_stage_agrees_with_the_loop() -> None:
    config = ts.load_recipe("digits_lt", SHORT)
    loss = build_loss(config, COUNTS, MiSLAS().stages()[1])
    f = 3 * torch.randn(7, 4, dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1, 2, 3, 3])
    expected = _reference_loss(f.tolist(), y.tolist())
    assert loss(f, y).item() == pytest.approx(expected, abs=1e-12)


def test_mislas__first_stage_is_plain_cross_entropy() -> None:
    config = ts.load_recipe("digits_lt", SHORT)
    loss = build_loss(config, COUNTS, MiSLAS().stages()[0])
    f, y = torch.randn(7, 4), torch.tensor([0, 0, 1, 1, 2, 3, 3])
    assert torch.equal(loss(f, y), torch.nn.functional.cross_entropy(f, y))


def test_mislas__blends_images_in_the_first_stage_alone(data: LongTailedData) -> None:
    config = ts.load_recipe("digits_lt", [*SHORT, "method.mixup=0.7"])
    fabric, model = build_fabric(config), new_model(config, data)
    first = build_trainer(config, data, model, fabric)
    assert first.divided is not None
    assert first.divided.mixup == 0.7
    place_head(model, config, 1)
    assert build_trainer(config, data, model, fabric, 1).divided is None


def test_mislas__second_stage_has_a_rate_for_the_classifier(
    data: LongTailedData,
) -> None:
    """Each parameter in one group: the scales, and the classifier a fifth as fast."""
    config = ts.load_recipe("digits_lt", SHORT)
    model = new_model(config, data)
    place_head(model, config, 1)
    model.backbone.requires_grad_(False)
    optimizer = build_optimizer(config, model, config.method.stages()[1])
    groups = [
        (group["highest_lr"], [tuple(p.shape) for p in group["params"]])
        for group in optimizer.param_groups
    ]
    assert groups == [(0.1, [(10,)]), (0.02, [(10, 128), (10,)])]


def test_mislas__batch_statistics_move_and_weights_of_the_backbone_stay(
    tmp_path: Path,
) -> None:
    first = ["method.name=softmax", "train.epochs=1", "train.mixup=0.2"]
    softmax = ts.train(ts.load_recipe("digits_lt", first), output=tmp_path / "1")
    start = f"train.start_from={softmax.directory}"
    run = ts.train(ts.load_recipe("digits_lt", [*SHORT, start]), output=tmp_path / "2")
    before, after = (load_file(r.directory / WEIGHTS) for r in (softmax, run))
    moved = {
        name
        for name in before
        if name.startswith("backbone.") and not torch.equal(before[name], after[name])
    }
    buffers = {f"backbone.{name}" for name, _ in run.model.backbone.named_buffers()}
    assert moved == buffers
    assert not torch.equal(before["head.weight"], after["head.linear.weight"])
    assert (after["head.scales"] != 1).all()


def test_mislas__refuses_a_mixup_for_all_stages() -> None:
    with pytest.raises(ConfigError) as error:
        ts.load_recipe("digits_lt", [*SHORT, "train.mixup=0.4"])
    assert str(error.value) == (
        "`train.mixup` must not be set, since mislas says in which stage images are "
        "blended, but is 0.4. Set `method.mixup` instead."
    )
