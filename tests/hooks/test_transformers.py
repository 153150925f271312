"""TrainerLoss in the real Trainer: an optimiser step against one by hand."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tailshift as ts
from tailshift.hooks import TrainerLoss

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed"
)
pytest.importorskip("accelerate", reason="accelerate is not installed")

PRIOR = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
LOSSES = {
    "lade": ts.LADELoss(PRIOR, alpha=0.5, lam=0.1),
    "balanced softmax": ts.BalancedSoftmaxLoss(PRIOR),
    "logit adjustment": ts.LogitAdjustedLoss(PRIOR, tau=1.5),
}
LABELS = [0, 0, 1, 0, 2, 1, 0]
SIZES = [3, 3, 1]
"""Of the pieces: three at a time, so that the last is smaller."""


def _model() -> Any:
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(1)
    return transformers.BertForSequenceClassification(config).double()


def _samples() -> list[dict[str, Any]]:
    ids = torch.randint(30, (7, 5), generator=torch.Generator().manual_seed(2))
    return [{"input_ids": row, "labels": y} for row, y in zip(ids, LABELS, strict=True)]


def _trainer(model: Any, folder: Path, loss: TrainerLoss) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=3,
        gradient_accumulation_steps=3,
        num_train_epochs=1,
        learning_rate=1.0,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        train_sampling_strategy="sequential",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return transformers.Trainer(
        model, arguments, train_dataset=_samples(), compute_loss_func=loss
    )


@pytest.mark.parametrize("name", LOSSES)
def test_trainer_loss__accumulates_to_the_mean_over_all_samples(
    name: str, tmp_path: Path
) -> None:
    loss, model = LOSSES[name], _model()
    before = copy.deepcopy(model)
    _trainer(model, tmp_path, TrainerLoss(loss)).train()
    ids, y = torch.stack([s["input_ids"] for s in _samples()]), torch.tensor(LABELS)
    f = before(input_ids=ids).logits
    pieces = zip(f.split(SIZES), y.split(SIZES), strict=True)
    value = torch.stack([len(y_k) * loss(f_k, y_k) for f_k, y_k in pieces]).sum() / 7
    if name != "lade":  # the mean over samples does not know of pieces
        torch.testing.assert_close(value, loss(f, y))
    gradient = torch.autograd.grad(value, before.classifier.weight)[0]
    step = before.classifier.weight - model.classifier.weight
    torch.testing.assert_close(step, gradient, rtol=0, atol=1e-10)
    assert gradient.abs().max() > 1e-3


def test_trainer_loss__predictions_are_retargeted(tmp_path: Path) -> None:
    trainer = _trainer(_model(), tmp_path, TrainerLoss(LOSSES["lade"]))
    found = trainer.predict(_samples())
    kept = ts.Predictions(
        found.predictions,
        found.label_ids,
        source_counts=torch.tensor([60, 30, 10]),
        logit_prior=ts.priors.uniform(3),
    )
    assert kept.labels.tolist() == LABELS
    f = ts.post_compensate(
        found.predictions, logit_prior=kept.logit_prior, target_prior=[0, 0.5, 0.5]
    )
    expected = found.predictions + torch.tensor([0, 0.5, 0.5]).mul(3).log().numpy()
    assert f == pytest.approx(expected)
    by_hand = LOSSES["lade"](kept.logits.double(), kept.labels)
    assert found.metrics["test_loss"] == pytest.approx(by_hand.item(), rel=1e-6)


def test_trainer_loss__tokens_without_a_class_are_no_samples() -> None:
    f, loss = torch.randn(2, 3, 3).double(), TrainerLoss(LOSSES["lade"])
    y = torch.tensor([[0, -100, 2], [-100, 1, 0]])
    rows = f.view(6, 3)[[0, 2, 4, 5]]
    expected = LOSSES["lade"](rows, torch.tensor([0, 2, 1, 0]))
    torch.testing.assert_close(loss((f,), y), expected)
    torch.testing.assert_close(loss({"logits": f}, y, 16), expected / 4)


def test_trainer_loss__a_piece_without_samples_has_no_gradient() -> None:
    f = torch.randn(2, 3, requires_grad=True)
    value: Tensor = TrainerLoss(LOSSES["lade"])((f,), torch.tensor([-100, -100]), 5)
    value.backward()
    assert (value.item(), f.grad.abs().sum().item()) == (0, 0)  # type: ignore[union-attr]
