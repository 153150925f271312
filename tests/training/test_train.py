"""Training takes odd data and machines, or says in a sentence why not."""

import copy
import dataclasses
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

import tailshift as ts
from tailshift.data import DATASETS, Dataset, DigitsLT, LongTailedData
from tailshift.data.image_loader import FileLoader
from tailshift.recipes import data_settings
from tailshift.runs.network import build_network
from tailshift.training.build import build_optimizer, build_trainer
from tailshift.training.distributed import build_fabric, machine_precision
from tailshift.training.loop import Trainer
from tailshift.training.progress import training_progress
from tailshift.training.resolve import new_model
from tailshift.workers import StopRequest

TinyConfig = Callable[..., ts.RunConfig]
ODD_NAMES = (
    "C:\\new\\text",
    "Größe",
    "猫 🐈",
    "",
    "a/b",
    "[bold]",
    "x\n",
    "{y}",
    "0",
    "1",
)


def _empty(data: LongTailedData, name: str) -> LongTailedData:
    split = getattr(data, name)
    none = dataclasses.replace(split, images=split.images[:0], labels=split.labels[:0])
    return dataclasses.replace(data, **{name: none})


CHANGES: dict[str, Callable[[LongTailedData], LongTailedData]] = {
    "names": lambda data: dataclasses.replace(data, class_names=ODD_NAMES),
    "same_names": lambda data: dataclasses.replace(data, class_names=("a",) * 10),
    "no_train": lambda data: _empty(data, "train"),
    "no_val": lambda data: _empty(data, "val"),
    "no_test": lambda data: _empty(data, "test"),
}


@dataclass(frozen=True)
class OddData(Dataset):
    sentence: ClassVar[str] = "The digits, with a change."
    change: str = "names"

    def load(self, *, root: Path | None, seed: int) -> LongTailedData:
        return CHANGES[self.change](DigitsLT().load(root=root, seed=seed))


@pytest.fixture
def odd_config(
    monkeypatch: pytest.MonkeyPatch, tiny_config: TinyConfig
) -> Callable[[str], ts.RunConfig]:
    monkeypatch.setitem(DATASETS._entries, "odd", OddData)
    return lambda change: tiny_config(
        "data.name=odd", f"data.change={change}", "train.epochs=1"
    )


def test_train__class_names_survive(
    tmp_path: Path, odd_config: Callable[[str], ts.RunConfig]
) -> None:
    ts.train(odd_config("names"), output=tmp_path / "run")
    run = ts.load_run(tmp_path / "run")
    assert run.class_names == run.predictions().class_names == ODD_NAMES


def test_train__rejects_equal_class_names(
    tmp_path: Path, odd_config: Callable[[str], ts.RunConfig]
) -> None:
    with pytest.raises(ValueError, match=r"class names of digits_lt .* 'a' names 10"):
        ts.train(odd_config("same_names"), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["train", "test"])
def test_train__empty_split(
    tmp_path: Path, odd_config: Callable[[str], ts.RunConfig], split: str
) -> None:
    with pytest.raises(ValueError, match="empty") as error:
        ts.train(odd_config(f"no_{split}"), output=tmp_path / "run")
    assert str(error.value) == (
        f"the {split} split of digits_lt must not be empty, but has no image."
    )
    assert not (tmp_path / "run").exists()


def test_train__empty_validation_split_is_left_out(
    tmp_path: Path, odd_config: Callable[[str], ts.RunConfig]
) -> None:
    run = ts.train(odd_config("no_val"), output=tmp_path / "run")
    assert run.predictions("test").num_classes == 10
    with pytest.raises(FileNotFoundError):
        run.predictions("val")


def test_train__batch_larger_than_the_data(
    tmp_path: Path, tiny_config: TinyConfig
) -> None:
    run = ts.train(tiny_config("train.batch_size=5000"), output=tmp_path / "run")
    assert run.is_finished
    too_large = tiny_config("train.batch_size=5000", "train.drop_last=true")
    with pytest.raises(ValueError, match="batch_size") as error:
        ts.train(too_large, output=tmp_path / "other")
    assert str(error.value) == (
        "`batch_size` must be at most the number of samples (276) with `drop_last`, "
        "but is 5000: no batch would be left."
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", torch.float32), ("64-true", torch.float64)]
)
def test_train__precision(
    tmp_path: Path, tiny_config: TinyConfig, precision: str, dtype: torch.dtype
) -> None:
    config = tiny_config(
        f"train.precision={precision}", "method.name=lade", "train.accelerator=cpu"
    )
    run = ts.train(config, output=tmp_path / "run")
    assert all(0 < record["loss"] < 10 for record in run.metrics)
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert weights["head.weight"].dtype == dtype
    assert run.predictions().logits.dtype == torch.float32
    assert run.model.head(torch.zeros(1, 128)).shape == (1, 10)


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ({"avx512_bf16": True}, "bf16-mixed"),
        ({"amx_bf16": True}, "bf16-mixed"),
        ({"avx512_f": True, "avx512_bf16": False}, "32-true"),
        (None, "32-true"),
    ],
)
def test_machine_precision__of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, bool] | None, precision: str
) -> None:
    if flags is None:  # an older PyTorch does not tell
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags, raising=False)
    assert machine_precision("cpu") == precision


@pytest.mark.parametrize("has_bf16", [True, False])
def test_machine_precision__of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool
) -> None:
    asked: list[dict[str, bool]] = []

    def is_supported(**given: bool) -> bool:
        asked.append(given)
        return has_bf16

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    expected = "bf16-mixed" if has_bf16 else "32-true"
    assert machine_precision("auto") == machine_precision("cuda") == expected
    assert asked == [{"including_emulation": False}] * 2


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_train__auto_precision_is_recorded_and_resumed(
    tmp_path: Path,
    tiny_config: TinyConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    precision: str,
) -> None:
    """A run is the one that names the precision, also on a machine of another kind."""
    kind = "tailshift.training.distributed.machine_precision"
    settings = ["train.accelerator=cpu", "method.name=lade"]
    auto = tiny_config("train.precision=auto", *settings)
    monkeypatch.setattr(kind, lambda accelerator: precision)
    named = tiny_config(f"train.precision={precision}", *settings)
    expected = ts.train(named, output=tmp_path / "named").predictions().logits
    run = ts.train(auto, output=tmp_path / "auto")
    assert run.config == named
    assert torch.equal(run.predictions().logits, expected)
    other = {"32-true": "bf16-mixed", "bf16-mixed": "32-true"}[precision]
    monkeypatch.setattr(kind, lambda accelerator: other)
    shutil.rmtree(tmp_path / "auto" / "predictions")
    again = ts.train(auto, output=tmp_path / "auto", resume=True)
    assert again.config == named
    assert torch.equal(again.predictions().logits, expected)
    assert caplog.messages == []


@pytest.mark.parametrize("method", ["softmax", "lade"])
def test_train__mixed_precision_keeps_losses_and_logits_in_float32(
    tmp_path: Path,
    tiny_config: TinyConfig,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """The layers are in bf16, what is summed and saved is not."""
    layers, losses = set(), set()

    def watched(*args: Any) -> Any:
        trainer = build_trainer(*args)
        trainer.model.module.head.register_forward_hook(
            lambda module, given, output: layers.add(output.dtype)
        )
        trainer.loss.register_forward_hook(
            lambda module, given, output: losses.update((given[0].dtype, output.dtype))
        )
        return trainer

    module = sys.modules["tailshift.training.train"]
    monkeypatch.setattr(module, "build_trainer", watched)
    config = tiny_config(
        "train.precision=bf16-mixed",
        "train.accelerator=cpu",
        f"method.name={method}",
    )
    run = ts.train(config, output=tmp_path / "run")
    assert layers == {torch.bfloat16, torch.float32}  # in training, in evaluation
    assert losses == {torch.float32}
    saved = load_file(tmp_path / "run" / "checkpoint.safetensors")
    of_run = [v for k, v in saved.items() if k.startswith(("model.", "optimizer."))]
    assert {v.dtype for v in of_run if v.is_floating_point()} == {torch.float32}
    test = run.config.data.load(root=None, seed=0).test
    (batch,) = test.loader(batch_size=len(test), training=False).epoch(0)
    with torch.no_grad():
        logits = run.model(batch.images)  # in float32
    torch.testing.assert_close(run.predictions().logits, logits)


def test_train__half_logits(tmp_path: Path, tiny_config: TinyConfig) -> None:
    run = ts.train(tiny_config("eval.half_logits=true"), output=tmp_path / "run")
    assert run.predictions().logits.dtype == torch.float16
    assert len(ts.evaluate(run.predictions(), ["uniform"])) == 2


def test_train__tensorboard(
    tmp_path: Path, tiny_config: TinyConfig, recwarn: pytest.WarningsRecorder
) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    run = ts.train(tiny_config("train.tensorboard=true"), output=tmp_path / "run")
    folder = tmp_path / "run" / "tensorboard"
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    events = accumulator.EventAccumulator(str(folder)).Reload()
    losses = {event.step: event.value for event in events.Scalars("loss")}
    assert losses == {
        record["epoch"]: pytest.approx(record["loss"]) for record in run.metrics
    }


def test_train__tensorboard_not_installed(
    tmp_path: Path, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError) as error:
        ts.train(tiny_config("train.tensorboard=true"), output=tmp_path / "run")
    assert str(error.value) == (
        "`train.tensorboard` needs TensorBoard, which is not installed. "
        "Install tailshift[tensorboard]."
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_train__no_such_accelerator(tmp_path: Path, tiny_config: TinyConfig) -> None:
    with pytest.raises(ValueError, match="accelerator") as error:
        ts.train(tiny_config("train.accelerator=cuda"), output=tmp_path / "run")
    assert str(error.value) == (
        "`train.accelerator` must be available, but 'cuda' is not on this machine. "
        "Use 'auto' or 'cpu'."
    )
    assert not (tmp_path / "run").exists()


def test_train__tells_the_model_the_image_size(
    tmp_path: Path, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of fixed size, such as vision transformers, are built for it."""
    asked = []

    def build(name: str, **settings: Any) -> Any:
        asked.append(settings["image_size"])
        return ts.models.build_backbone(name, **settings)

    monkeypatch.setattr("tailshift.runs.network.build_backbone", build)
    run = ts.train(tiny_config("train.epochs=1"), output=tmp_path / "run")
    assert run.model.training is False
    assert asked == [8, 8]


def test_train__takes_the_splits_it_is_given(
    tmp_path: Path, tiny_config: TinyConfig
) -> None:
    """The configuration's own, at imbalance ratio 50, are not loaded."""
    data = CHANGES["names"](DigitsLT(imbalance_ratio=5).load(root=None, seed=3))
    run = ts.train(tiny_config("train.epochs=1"), output=tmp_path / "run", data=data)
    assert run.source_counts.tolist() == data.class_counts.tolist()
    assert run.facts.data_fingerprint == data.fingerprint
    assert run.predictions("test").labels.tolist() == data.test.labels.tolist()
    assert run.class_names == ODD_NAMES


@pytest.mark.parametrize("sampler", ["instance", "class_balanced"])
def test_train__softmax_saves_the_prior_its_sampler_sampled(
    tmp_path: Path, tiny_config: TinyConfig, sampler: str
) -> None:
    config = tiny_config(f"train.sampler={sampler}", "train.epochs=1")
    run = ts.train(config, output=tmp_path / "run")
    predictions = run.predictions()
    counts, prior = predictions.source_counts, predictions.logit_prior
    assert counts is not None
    assert prior is not None
    wanted = ts.priors.from_counts(counts)
    if sampler == "class_balanced":
        wanted = ts.priors.uniform(10)
    torch.testing.assert_close(prior, wanted)
    assert counts.tolist() == run.source_counts.tolist()  # what there is, all the same


def _trainer(config: ts.RunConfig) -> Trainer:
    torch.manual_seed(0)
    data = config.data.load(root=None, seed=0)
    return build_trainer(config, data, new_model(config, data), build_fabric(config))


def _one_epoch(trainer: Trainer) -> dict[str, Any]:
    """Train and return the epoch's metrics."""
    found: list[dict[str, Any]] = []
    with training_progress("test", trainer.num_steps, done=0) as progress:
        trainer.fit(on_epoch=found.append, stop=StopRequest(), log=progress.step)
    return found[0]


def test_build_trainer__backbone_has_a_learning_rate_of_its_own(
    tiny_config: TinyConfig,
) -> None:
    """The schedule's factor of the last step holds for both groups."""
    trainer = _trainer(
        tiny_config(
            "optim.lr=0.05",
            "optim.backbone_lr=0.001",
            "optim.schedule=cosine",
            "train.epochs=1",
        )
    )
    backbone, head = trainer.optimizer.param_groups
    model = trainer.model
    assert [*map(id, backbone["params"])] == [*map(id, model.backbone.parameters())]
    assert [*map(id, head["params"])] == [*map(id, model.head.parameters())]
    metrics = _one_epoch(trainer)
    factor = trainer.schedule(trainer.num_steps - 1)
    assert 0 < factor < 0.5
    assert backbone["lr"] == pytest.approx(0.001 * factor)
    assert head["lr"] == pytest.approx(0.05 * factor) == metrics["lr"]


def test_build_trainer__one_learning_rate_where_no_other_is_given(
    tiny_config: TinyConfig,
) -> None:
    trainer = _trainer(tiny_config("optim.lr=0.05", "optim.schedule=constant"))
    trainer.set_learning_rate()
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.05, 0.05]


def test_build_trainer__backbone_moves_by_its_own_learning_rate(
    tiny_config: TinyConfig,
) -> None:
    """One plain step of SGD: at a 50th of the rate the backbone goes a 50th as far."""

    def first_step(*overrides: str) -> tuple[Tensor, Tensor]:
        trainer = _trainer(
            tiny_config(
                "optim.nesterov=false",
                "optim.momentum=0",
                "optim.schedule=constant",
                "optim.lr=0.05",
                "train.epochs=1",
                "train.batch_size=276",
                *overrides,
            )
        )
        parts = (trainer.model.backbone, trainer.model.head)
        before = [_flat(part).clone() for part in parts]
        _one_epoch(trainer)
        backbone, head = (
            _flat(part) - old for part, old in zip(parts, before, strict=True)
        )
        return backbone, head

    plain, slow = first_step(), first_step("optim.backbone_lr=0.001")
    torch.testing.assert_close(slow[0], plain[0] / 50, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(slow[1], plain[1])
    assert plain[0].abs().max() > 1e-4


def _flat(module: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("most", [0.01, 1e6])
def test_fit__a_gradient_too_long_is_shortened(
    tiny_config: TinyConfig, most: float
) -> None:
    """One plain step of SGD goes lr · min(1, most / ‖g‖) · g, g by autograd itself."""
    settings = ("optim.nesterov=false", "optim.momentum=0", "optim.weight_decay=0")
    settings += ("optim.schedule=constant", "train.epochs=1", "train.batch_size=276")
    trainer = _trainer(
        tiny_config(*settings, "optim.lr=0.05", f"optim.clip_norm={most}")
    )
    model = copy.deepcopy(trainer.model.module).train()
    [batch] = trainer.loader.epoch(0)
    loss = nn.functional.cross_entropy(model(batch.images), batch.labels)
    g = torch.cat([x.flatten() for x in torch.autograd.grad(loss, model.parameters())])
    before = _flat(trainer.model).clone()
    _one_epoch(trainer)
    step = 0.05 * min(1.0, most / float(g.norm())) * g
    torch.testing.assert_close(
        before - _flat(trainer.model), step, rtol=1e-3, atol=1e-7
    )
    assert step.norm() > 1e-4


def _rates(config: ts.RunConfig) -> dict[str, tuple[float, float]]:
    """Return the learning rate and weight decay of each parameter, by its name."""
    model = build_network(config, num_classes=7, in_channels=3, image_size=160)
    optimizer = build_optimizer(config, model, config.method.stages()[0])
    found = {
        id(parameter): (group["highest_lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return {name: found[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_convnext"])
def test_build_optimizer__layers_learn_as_in_timm(
    tiny_config: TinyConfig, name: str
) -> None:
    """Against timm's own groups of the network that has its classifier."""
    whole = timm.create_model(name, num_classes=7)
    groups = param_groups_layer_decay(
        whole,
        weight_decay=0.05,
        no_weight_decay_list=whole.no_weight_decay() if name == "test_vit" else (),
        layer_decay=0.75,
    )
    names = {id(parameter): key for key, parameter in whole.named_parameters()}
    expected = {
        names[id(parameter)]: (1e-3 * group["lr_scale"], group["weight_decay"])
        for group in groups
        for parameter in group["params"]
    }
    settings = ("optim.name=adamw", "optim.lr=1e-3", "optim.weight_decay=0.05")
    found = _rates(
        tiny_config(*settings, f"model.name=timm:{name}", "optim.layer_decay=0.75")
    )
    head = whole.pretrained_cfg["classifier"]
    ours = {
        key.removeprefix("backbone.model.")
        if key.startswith("backbone.")
        else key.replace("head", head, 1): rates
        for key, rates in found.items()
    }
    assert ours.keys() == expected.keys()
    for key, rates in ours.items():
        assert rates == pytest.approx(expected[key]), key
    assert len(set(ours.values())) > 5


def test_build_optimizer__adamw_spares_biases_and_sgd_none(
    tiny_config: TinyConfig,
) -> None:
    adamw = _rates(
        tiny_config("optim.name=adamw", "optim.lr=1e-3", "model.name=resnet32")
    )
    spared = {name for name, (_, decay) in adamw.items() if decay == 0}
    model = build_network(
        tiny_config("model.name=resnet32"), num_classes=7, in_channels=3, image_size=32
    )
    assert spared == {n for n, p in model.named_parameters() if p.ndim == 1}
    sgd = _rates(tiny_config("model.name=resnet32", "optim.weight_decay=0.01"))
    assert {decay for _, decay in sgd.values()} == {0.01}


def test_train__starts_from_a_weights_file(
    tmp_path: Path, tiny_config: TinyConfig, digits_run: ts.Run
) -> None:
    path = digits_run.directory / "weights.safetensors"
    config = tiny_config(
        f"model.weights={path}", "optim.lr=1e-9", "optim.weight_decay=0"
    )
    run = ts.train(config, output=tmp_path / "run")
    torch.testing.assert_close(
        _flat(run.model.backbone), _flat(digits_run.model.backbone)
    )
    assert not torch.equal(run.model.head.weight, digits_run.model.head.weight)
    assert run.config.model.weights == str(path)


def test_train__weights_file_stands_in_for_published_weights(
    tmp_path: Path, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is fetched: that is what a file is given for."""
    create = timm.create_model
    published = create("test_resnet", in_chans=1).state_dict()
    save_file(published, tmp_path / "a.safetensors")

    def create_model(name: str, *, pretrained: bool, **settings: Any) -> Any:
        assert not pretrained
        return create(name, pretrained=False, **settings)

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tiny_config(
        "model.name=timm:test_resnet",
        "model.pretrained=true",
        "model.weights=~/a.safetensors",
    )
    model = new_model(config, config.data.load(root=None, seed=0))
    for name, tensor in model.backbone.state_dict().items():
        assert torch.equal(tensor, published[name.removeprefix("model.")])


def test_train__no_weights_file(tmp_path: Path, tiny_config: TinyConfig) -> None:
    path = tmp_path / "none.safetensors"
    with pytest.raises(FileNotFoundError) as error:
        ts.train(tiny_config(f"model.weights={path}"), output=tmp_path / "run")
    assert str(error.value) == f"there is no weights file {path}."
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["lade", "bbn"])
def test_train__closes_the_loaders_that_it_opens(
    method: str,
    tmp_path: Path,
    write_image: Callable[..., Path],
    opened_loaders: list[FileLoader],
) -> None:
    """Of training, whose batches BBN stacks, of validation and of the test."""
    for c, name in enumerate(("cat", "dog")):
        for i in range(12):
            path = tmp_path / "images" / name / f"{i}.png"
            write_image(path, seed=100 * c + i, size=(32, 32))
    data = data_settings(f"folder:{tmp_path / 'images'}")
    settings = (f"method.name={method}", "train.epochs=1", "train.num_workers=0")
    ts.train(ts.load_recipe("own_images", [*data, *settings]), output=tmp_path / "run")
    assert len({id(loader) for loader in opened_loaders}) >= 3
    assert [loader for loader in opened_loaders if loader._workers is not None] == []
