"""Pretrained networks: adapters, five crops, pixels as the weights expect, --from."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision import transforms

import tailshift as ts
from tailshift.config import ConfigError
from tailshift.models.pretrained import pixel_statistics
from tailshift.recipes import recipe_names
from tailshift.runs.files import WEIGHTS
from tailshift.serving.images import image_logits
from tailshift.training.progress import TrainingProgress
from tailshift.training.resolve import as_weights_expect, new_model
from tailshift.training.start import start_from

ON_FEATURES = ("model.frozen=true", "model.adapter=none", "eval.views=one")
WriteBenchmark = Callable[..., Path]
COUNTS = (9, 6, 4, 3)
CUT_DOWN = (
    "data.check_counts=false",
    "data.image_size=32",
    "train.batch_size=8",
    "train.precision=32-true",
    "train.num_workers=0",
)


@pytest.fixture(scope="module")
def root(
    tmp_path_factory: pytest.TempPathFactory, write_benchmark: WriteBenchmark
) -> Path:
    """Return the lists and images of a tiny Places-LT; read only."""
    folder = tmp_path_factory.mktemp("places")
    return write_benchmark(folder, "places_lt", counts=COUNTS)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a file of timm's weights for each of two tiny networks."""
    torch.manual_seed(5)
    folder, sizes = tmp_path_factory.mktemp("weights"), {"img_size": 32}
    files = {}
    for name in ("test_vit", "test_resnet"):
        model = timm.create_model(name, **(sizes if name == "test_vit" else {}))
        files[name] = folder / f"{name}.safetensors"
        save_file(model.state_dict(), files[name])
    return files


def _lift(weights: dict[str, Path], *settings: str) -> ts.RunConfig:
    """Return the recipe, cut down, with a tiny vision transformer."""
    model = ("model.name=timm:test_vit", f"model.weights={weights['test_vit']}")
    parts = ("model.adapter=adaptformer", "model.head=cosine", "train.epochs=2")
    return ts.load_recipe("places_lt_lift", [*CUT_DOWN, *model, *parts, *settings])


@pytest.fixture(scope="module")
def lift(
    tmp_path_factory: pytest.TempPathFactory, root: Path, weights: dict[str, Path]
) -> ts.Run:
    """Return a finished run of the LIFT-like recipe; read only."""
    output = tmp_path_factory.mktemp("lift") / "run"
    return ts.train(_lift(weights), output=output, data_root=root)


def test_lift__trains_adapters_and_head_alone(
    lift: ts.Run, weights: dict[str, Path]
) -> None:
    """Every other weight is the file's; the adapters have left 0."""
    published = load_file(weights["test_vit"])
    found = load_file(lift.directory / WEIGHTS)
    prefix = "backbone.model."
    kept = 0
    for name, value in found.items():
        if ".adapter." in name or name.startswith("head."):
            assert "up." not in name or value.abs().max() > 0, name
            continue
        own = name.removeprefix(prefix)
        own = own.replace("mlp.layer.0", "norm2").replace("mlp.layer.1", "mlp")
        assert torch.equal(value, published[own]), name
        kept += 1
    assert kept == len(published) - 2  # but timm's classifier
    assert sum(".adapter." in name for name in found) == 6 * 7
    assert lift.facts.mean == (0.5, 0.5, 0.5)  # the weights', not the data set's
    assert lift.config.data.preparation(32).jitter == 0
    assert torch.allclose(lift.logit_prior, torch.full((4,), 0.25).double())


def _interrupted(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    steps: list[None] = []

    def step(*args: Any) -> None:
        steps.append(None)
        if len(steps) == after:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingProgress, "step", step)


def test_lift__resumes_bit_for_bit(
    lift: ts.Run,
    root: Path,
    weights: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _interrupted(monkeypatch, after=4)  # of six steps
    options: dict[str, Any] = {"output": tmp_path / "run", "data_root": root}
    assert not ts.train(_lift(weights), **options).is_finished
    again = ts.train(_lift(weights), resume=True, **options)
    assert torch.equal(again.predictions().logits, lift.predictions().logits)


def test_lift__exports(lift: ts.Run, tmp_path: Path) -> None:
    [gap] = ts.export(lift, tmp_path / "lift.onnx").values()
    assert gap < 1e-4


def _paths(root: Path) -> list[str]:
    lines = (root / "Places_LT_test.txt").read_text().splitlines()
    return [str(root / line.split()[0]) for line in lines]


@torch.no_grad()
def _five_crops(run: ts.Run, paths: list[str], size: int, expanded: int) -> Tensor:
    """Return the logits with torchvision's own transforms, crop after crop."""
    crops = transforms.Compose(
        [transforms.Resize(expanded), transforms.FiveCrop(size), list]
    )
    norm = transforms.Normalize(run.facts.mean, run.facts.std)
    logits = []
    for path in paths:
        views = crops(Image.open(path).convert("RGB"))
        one = [run.model(norm(transforms.ToTensor()(view))[None]) for view in views]
        logits.append(torch.cat(one).mean(0))
    return torch.stack(logits)


def test_five_crop__is_torchvisions(lift: ts.Run, root: Path) -> None:
    """The saved logits and those of `predict` are the means over five crops of 35."""
    paths = _paths(root)
    expected = _five_crops(lift, paths, 32, 35)
    torch.testing.assert_close(lift.predictions().logits, expected, atol=2e-4, rtol=0)
    found = image_logits(lift, paths).logits
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    one = image_logits(lift, paths, views="one").logits
    assert (one - expected).abs().max() > 1e-2


def test_five_crop__of_images_in_memory(
    tmp_path: Path, tiny_config: Callable[..., ts.RunConfig]
) -> None:
    """The digits, 8 × 8: crops of 9 × 9, resized by torchvision from the pixels."""
    config = tiny_config("eval.views=five_crop", "train.epochs=1")
    run = ts.train(config, output=tmp_path / "run")
    images = config.data.load(root=None, seed=0).test.images[:20]
    whole = transforms.functional.resize(images, [9, 9], antialias=True)
    views = torch.stack(transforms.functional.five_crop(whole, [8, 8]))  # (5, N, …)
    mean, std = (np.float32(v[0]) for v in (run.facts.mean, run.facts.std))
    with torch.no_grad():
        logits = [run.model((view / 255 - mean) / std) for view in views]
        once = run.model((images / 255 - mean) / std)
    found = run.predictions().logits[:20]
    gap = (found - torch.stack(logits).mean(0)).abs().max()  # pixels are rounded
    assert gap < 0.02 < (found - once).abs().max()


def test_predict__five_crop_on_the_command_line(
    lift: ts.Run, root: Path, tailshift: Callable[..., Any]
) -> None:
    images = _paths(root)[:3]
    once = tailshift("predict", lift.directory, *images, "--views", "one")
    five = tailshift("predict", lift.directory, *images, "--views", "five_crop")
    assert (once.code, five.code) == (0, 0)
    assert five.out == tailshift("predict", lift.directory, *images).out != once.out


def test_predict__other_views_than_those_held_out(lift: ts.Run, root: Path) -> None:
    with pytest.raises(ValueError, match="views") as error:
        ts.predict(lift, root, adapt=True, views="one")
    assert str(error.value) == (
        "`views` must be 'five_crop' with `adapt`, as the run's held-out logits have "
        "it, but is 'one'. Leave one of the two out, or train with eval.views set."
    )


def test_as_weights_expect__no_recipe_of_the_paper_changes() -> None:
    """Published weights of the paper's recipes expect what the data sets have."""
    starting = []
    for recipe in recipe_names():
        config = ts.load_recipe(recipe)
        name = config.model.name.removeprefix("timm:")
        if config.model.pretrained is True and not recipe.endswith("_lift"):
            mean, std, _ = pixel_statistics(name)
            assert (mean, std) == (config.data.mean, config.data.std), recipe
            starting.append(recipe)
    assert len(starting) > 5
    clip = ts.load_recipe("imagenet_lt_lift").model.name.removeprefix("timm:")
    assert pixel_statistics(clip)[0] == (0.48145466, 0.4578275, 0.40821073)


def test_as_weights_expect__random_weights_keep_the_datas(root: Path) -> None:
    settings = ("model.name=timm:test_vit", "model.pretrained=false")
    config = ts.load_recipe("places_lt_softmax", [*CUT_DOWN, *settings])
    data = config.data.load(root=root, seed=0)
    assert as_weights_expect(config, data) is data


def _on_features(config: ts.RunConfig, folder: Path, root: Path) -> ts.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return ts.train(config, output=folder / "features", data_root=root)


@pytest.fixture(scope="module")
def features(
    root: Path, weights: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> ts.Run:
    """Return a finished run on the features of a tiny ResNet; read only."""
    model = ("model.name=timm:test_resnet", f"model.weights={weights['test_resnet']}")
    settings = (*CUT_DOWN, *model, "model.frozen=true", "train.epochs=2")
    config = ts.load_recipe("places_lt_softmax", [*settings, "model.image_size=48"])
    return _on_features(config, tmp_path_factory.mktemp("resnet"), root)


def _thawed(features: ts.Run, *settings: str) -> ts.RunConfig:
    start = f"train.start_from={features.directory}"
    rest = (
        "model.name=auto",
        "train.epochs=1",
        "optim.lr=1e-9",
        "optim.backbone_lr=1e-9",
    )
    return ts.load_recipe(
        "places_lt_balanced_softmax", [*CUT_DOWN, *rest, start, *settings]
    )


def test_start_from__features_then_the_whole_network(
    features: ts.Run, root: Path, tmp_path: Path
) -> None:
    """At a rate of almost 0 it answers as the run on features does, from images."""
    config = _thawed(features, "optim.weight_decay=0")
    run = ts.train(config, output=tmp_path / "run", data_root=root)
    assert run.config.model.name == "timm:test_resnet"
    assert len(run.metrics) == 1
    assert run.facts.mean == features.facts.mean
    assert run.facts.image_size == run.config.model.image_size == 48
    before, after = (
        dict(model.named_parameters()) for model in (features.model, run.model)
    )
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-6, rtol=0)
    assert all(parameter.requires_grad for parameter in run.model.parameters())
    batch = torch.randn(2, 3, 32, 32)
    data = run.config.data.load(root=root, seed=0)
    model = new_model(run.config, data)
    start_from(model, run.config, data)
    torch.testing.assert_close(model.eval()(batch), features.model(batch))


def test_start_from__features_then_adapters(
    root: Path, weights: dict[str, Path], tmp_path: Path
) -> None:
    """LIFT's order: the head is fitted first, and adapters change nothing at first."""
    size = "model.image_size=32"
    before = _on_features(_lift(weights, *ON_FEATURES, size), tmp_path, root)
    config = _lift(weights, f"train.start_from={before.directory}", size)
    data = config.data.load(root=root, seed=0)
    model = new_model(config, data)
    start_from(model, config, data)
    batch = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model.eval()(batch), before.model(batch))
    run = ts.train(config, output=tmp_path / "run", data_root=root)
    assert not torch.equal(run.model(batch), before.model(batch))


def _residual(weights: dict[str, Path]) -> ts.RunConfig:
    model = ("model.name=timm:test_resnet", f"model.weights={weights['test_resnet']}")
    parts = ("model.frozen=true", "model.adapter=residual", "model.image_size=48")
    rates = ("optim.name=lbfgs", "optim.lr=0.1", "optim.backbone_lr=0.1")
    settings = (*CUT_DOWN, *model, *parts, *rates, "train.epochs=6")
    return ts.load_recipe("places_lt_softmax", settings)


@pytest.fixture(scope="module")
def residual(
    root: Path, weights: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> ts.Run:
    """Return a finished run with an adapter behind a tiny ResNet; read only."""
    return _on_features(_residual(weights), tmp_path_factory.mktemp("residual"), root)


def test_residual__starts_from_plain_features(residual: ts.Run, root: Path) -> None:
    config = residual.config
    data = config.data.load(root=root, seed=0)
    adapted = new_model(config, data).eval()
    none = config.model.model_copy(update={"adapter": "none"})
    plain = new_model(config.model_copy(update={"model": none}), data).eval()
    plain.head.load_state_dict(adapted.head.state_dict())
    for batch in (torch.randn(2, 3, 32, 32), torch.randn(2, plain.head.feature_dim)):
        assert torch.equal(adapted(batch), plain(batch))


def test_residual__trains_adapter_and_head_alone(
    residual: ts.Run, weights: dict[str, Path]
) -> None:
    """Every other weight is the file's, and the loss falls."""
    losses = [row["loss"] for row in residual.metrics]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    given = load_file(weights["test_resnet"])
    found = load_file(residual.directory / WEIGHTS)
    prefix = "backbone.backbone.backbone.model."
    kept = {name.removeprefix(prefix): v for name, v in found.items() if prefix in name}
    assert len(kept) > 10
    assert all(torch.equal(given[name], value) for name, value in kept.items())
    rest = [name for name in found if prefix not in name]
    assert all(name.startswith(("backbone.adapter.", "head.")) for name in rest)
    assert found["backbone.adapter.up.weight"].abs().max() > 1e-4


def test_residual__predicts_and_exports_as_from_features(
    residual: ts.Run, root: Path, tmp_path: Path
) -> None:
    from_images = image_logits(residual, _paths(root)).logits
    from_features = residual.predictions().logits
    torch.testing.assert_close(from_images, from_features, atol=1e-3, rtol=0)
    model: Any = residual.model
    batch = torch.randn(4, 3, 32, 32)
    without = model.head(model.backbone.backbone(batch))
    assert (model(batch) - without).abs().max() > 0.02
    [gap] = ts.export(residual, tmp_path / "residual.onnx").values()
    assert gap < 1e-4


def test_residual__resumes_bit_for_bit(
    residual: ts.Run,
    root: Path,
    weights: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = _residual(weights)
    _interrupted(monkeypatch, after=4)
    assert not _on_features(config, tmp_path, root).is_finished
    options: dict[str, Any] = {"output": tmp_path / "features", "data_root": root}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    again = ts.train(config, resume=True, **options)
    assert torch.equal(again.predictions().logits, residual.predictions().logits)


def test_start_from__features_behind_an_adapter(
    residual: ts.Run, root: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="`") as error:
        ts.train(_thawed(residual), output=tmp_path / "run", data_root=root)
    assert str(error.value) == (
        f"`train.start_from` (--from) {residual.directory} must have no adapter, since "
        "the whole network starts from the plain features, but has "
        "model.adapter=residual. Train it with model.adapter=none."
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("model.image_size=40",),
            "`train.start_from` (--from) {} must have the model.image_size 40, but has "
            "48. Leave it out.",
        ),
        (
            ("model.head=cosine",),
            "`train.start_from` (--from) {} must have a CosineHead, but has a "
            "LinearHead. Train it with the same model.head.",
        ),
    ],
)
def test_start_from__features_that_do_not_fit(
    features: ts.Run,
    root: Path,
    tmp_path: Path,
    settings: tuple[str, ...],
    message: str,
) -> None:
    config = _thawed(features, *settings)
    with pytest.raises(ValueError, match="`") as error:
        ts.train(config, output=tmp_path / "run", data_root=root)
    assert str(error.value) == message.format(features.directory)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (
            ("model.frozen=true", "model.adapter=lora", "eval.views=one"),
            "`model.adapter` must be 'none' or 'residual' with model.frozen, whose "
            "features are computed once, but is 'lora'. Leave one of the two out.",
        ),
        (
            ("model.adapter=residual",),
            "`model.adapter` must be 'none', 'adaptformer' or 'lora' unless the "
            "backbone is frozen, but is 'residual'. Set model.frozen=true.",
        ),
        (
            ("model.frozen=true", "model.adapter=none"),
            "`eval.views` must be 'one' with model.frozen, whose features are computed "
            "once, but is 'five_crop'. `tailshift predict --views` has them.",
        ),
        (
            (*ON_FEATURES, "train.start_from=run"),
            "`model.frozen` must be false to start from another run (--from), since "
            "logit_adjustment has one stage, but is true. Leave one of the two out.",
        ),
        (
            ("method.name=ldam",),
            "`model.head` must be 'method', since ldam has a head of its own, but is "
            "'cosine'.",
        ),
    ],
)
def test_config__settings_that_do_not_go_together(
    settings: tuple[str, ...], fault: str
) -> None:
    with pytest.raises(ConfigError) as error:
        ts.load_recipe("places_lt_lift", settings)
    assert error.value.faults == (fault,)
