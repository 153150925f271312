"""The Lightning callback, DistributedLoss and ClassSampler in real Trainers."""

import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tailshift as ts
from tailshift.data import ClassSampler
from tailshift.hooks import keep_predictions
from tailshift.losses import DistributedLoss

lightning = pytest.importorskip(
    "lightning.pytorch", reason="lightning is not installed"
)
POSSIBLE = "lightning.fabric.utilities.warnings.PossibleUserWarning"  # hints
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{POSSIBLE}"),
    pytest.mark.filterwarnings("ignore:.*treespec.* is deprecated:FutureWarning"),
]

COUNTS = torch.tensor([24, 9, 3])
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def _data(seed: int, counts: Tensor = COUNTS) -> TensorDataset:
    y = torch.repeat_interleave(torch.arange(3), counts)
    noise = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset((noise + y[:, None]).double(), y)


class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 3).double()
        p_s = ts.priors.from_counts(COUNTS)
        self.loss = DistributedLoss(ts.LADELoss(p_s, alpha=0.5, lam=0.1))
        self.sampled: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.sampled.append(y)
        value: Tensor = self.loss(self.layer(x), y)
        return value

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return {"logits": self.layer(batch[0]), "labels": batch[1]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3)


def _fit_and_test(folder: Path, batch_size: int, **settings: Any) -> Model:
    """Train two epochs on class-balanced batches; write weights and predictions."""
    model, data = Model(), _data(0)
    callback = keep_predictions(
        folder / "test.safetensors",
        logit_prior=ts.priors.uniform(3),
        source_counts=COUNTS,
    )
    sampler = ClassSampler(data.tensors[1], "progressive", num_epochs=2)
    trainer = lightning.Trainer(max_epochs=2, callbacks=[callback], **QUIET, **settings)
    trainer.fit(model, DataLoader(data, batch_size, sampler=sampler))
    trainer.test(model, DataLoader(_data(1, COUNTS - 2), batch_size), verbose=False)
    return model


def _work(rank: int, folder: Path) -> None:
    model = _fit_and_test(folder, 6, devices=2, strategy="ddp")
    found = {"weight": model.layer.weight.detach(), "labels": torch.cat(model.sampled)}
    torch.save(found, folder / f"{rank}.pt")


def test_lightning__two_processes_are_as_one(tmp_path: Path) -> None:
    """Weights, sampled classes and kept predictions; 30 test samples, batches of 6."""
    (tmp_path / "one").mkdir()
    one = _fit_and_test(tmp_path / "one", 12)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "two").mkdir()
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path / "two")],
            env=os.environ
            | together
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"},
        )
        for rank in range(2)
    ]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    two = [
        torch.load(tmp_path / "two" / f"{rank}.pt", weights_only=True)
        for rank in range(2)
    ]
    for of_rank in two:
        expected = one.layer.weight.detach()
        torch.testing.assert_close(of_rank["weight"], expected, rtol=0, atol=1e-10)
    sampled = Counter(torch.cat([of_rank["labels"] for of_rank in two]).tolist())
    assert sampled == Counter(torch.cat(one.sampled).tolist())
    assert sampled != Counter(_data(0).tensors[1].tolist() * 2)
    kept = [
        ts.Predictions.load(tmp_path / d / "test.safetensors") for d in ("one", "two")
    ]
    assert (
        kept[0].labels.tolist() == kept[1].labels.tolist() == [0] * 22 + [1] * 7 + [2]
    )
    torch.testing.assert_close(kept[1].logits, kept[0].logits, rtol=0, atol=1e-6)


def test_keep_predictions__what_the_module_answered(tmp_path: Path) -> None:
    model, data = Model(), _data(1)
    callback = keep_predictions(
        tmp_path / "test.safetensors",
        logit_prior=[1 / 3] * 3,
        source_counts=COUNTS,
        class_names=("a", "b", "c"),
    )
    trainer = lightning.Trainer(callbacks=[callback], **QUIET)
    trainer.test(model, DataLoader(data, 5), verbose=False)
    kept = ts.Predictions.load(tmp_path / "test.safetensors")
    with torch.no_grad():
        f = model.layer(data.tensors[0]).float()
    torch.testing.assert_close(kept.logits, f)
    assert kept.labels.tolist() == data.tensors[1].tolist()
    assert kept.class_names == ("a", "b", "c")
    assert kept.logit_prior is not None
    records = ts.evaluate(kept, ["uniform"])
    assert len(records) == 2


def test_keep_predictions__refuses_other_outputs(tmp_path: Path) -> None:
    class Other(Model):
        def test_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": self.layer(batch[0]).mean()}

    callback = keep_predictions(tmp_path / "test.safetensors")
    trainer = lightning.Trainer(callbacks=[callback], **QUIET)
    with pytest.raises(TypeError) as error:
        trainer.test(Other(), DataLoader(_data(1), 5), verbose=False)
    assert str(error.value) == (
        "`test_step` must return a mapping with `logits` and `labels` for "
        "`keep_predictions`, but returned one with loss."
    )


def test_keep_predictions__refuses_several_loaders(tmp_path: Path) -> None:
    callback = keep_predictions(tmp_path / "test.safetensors")
    trainer = lightning.Trainer(callbacks=[callback], **QUIET)

    class Several(Model):
        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
            return super().test_step(batch, batch_idx)

    loaders = [DataLoader(_data(1), 18)] * 2
    with pytest.raises(ValueError, match="one test loader") as error:
        trainer.test(Several(), loaders, verbose=False)
    assert str(error.value) == (
        "`keep_predictions` must have one test loader, but there are several. "
        "Test one after the other, with a callback for each."
    )


def test_keep_predictions__without_lightning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks", None)
    with pytest.raises(ModuleNotFoundError) as error:
        keep_predictions(tmp_path / "test.safetensors")
    assert str(error.value) == (
        "this needs the package lightning, which is not installed. Install it with "
        "`pip install tailshift[lightning]`."
    )


if __name__ == "__main__":
    _work(int(sys.argv[1]), Path(sys.argv[2]))
