"""Training takes odd data and machines, or says in a sentence why not."""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

import tailshift as ts
from tailshift.data import DATASETS, Dataset, DigitsLT, LongTailedData

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
    "0",
)


def _empty(data: LongTailedData, name: str) -> LongTailedData:
    split = getattr(data, name)
    none = dataclasses.replace(split, images=split.images[:0], labels=split.labels[:0])
    return dataclasses.replace(data, **{name: none})


CHANGES: dict[str, Callable[[LongTailedData], LongTailedData]] = {
    "names": lambda data: dataclasses.replace(data, class_names=ODD_NAMES),
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
    run = ts.load(tmp_path / "run")
    assert run.class_names == run.predictions().class_names == ODD_NAMES


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
        "`train.accelerator` must be there, but 'cuda' is not. Take 'auto' or 'cpu'."
    )
    assert not (tmp_path / "run").exists()


def test_train__several_processes(tmp_path: Path, tiny_config: TinyConfig) -> None:
    with pytest.raises(ValueError, match="devices") as error:
        ts.train(tiny_config("train.devices=2"), output=tmp_path / "run")
    assert str(error.value) == (
        "`train.devices` times `train.num_nodes` must be 1, but is 2. "
        "One process trains at a time for now."
    )


def test_train__tells_the_model_the_image_size(
    tmp_path: Path, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of fixed size, such as vision transformers, are built for it."""
    asked = []

    def build(name: str, **settings: Any) -> Any:
        asked.append(settings["image_size"])
        return ts.models.build_model(name, **settings)

    for module in ("train", "run"):
        name = f"tailshift.training.{module}"
        monkeypatch.setattr(sys.modules[name], "build_model", build)
    run = ts.train(tiny_config("train.epochs=1"), output=tmp_path / "run")
    assert run.model.training is False
    assert asked == [8, 8]
