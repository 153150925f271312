"""Hooks: losses, predictions and models in the tools that people train with.

The libraries are imported when they are needed, so that none has to be installed.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DistributedSampler

from tailshift.deprecation import renamed_arguments
from tailshift.losses import DistributedLoss, LossFunction
from tailshift.predictions import Predictions, check_destination
from tailshift.priors import VectorLike, as_prior
from tailshift.runs.files import CONFIG, ENVIRONMENT, FACTS, WEIGHTS
from tailshift.runs.run import Run, as_run, load_run
from tailshift.serving.export import ServedModel
from tailshift.serving.images import PathLike, preparation_of
from tailshift.target_names import SOURCE
from tailshift.targets import Target

IGNORED = -100
"""The label that Hugging Face gives to positions that are no samples."""


class TrainerLoss:
    r"""Any loss as the ``compute_loss_func`` of ``transformers.Trainer``.

    For the means :math:`L_k` of an optimiser step's K pieces of :math:`n_k` samples,
    the trainer sums what this returns, :math:`n_k L_k / \sum_j n_j`: the mean over all
    samples, whatever the sizes of the pieces. LADER goes by each piece, over all
    processes. Labels of −100 are no samples, as for tokens without a class.

    Args:
        loss: Module of this package, or function of logits and labels that returns a
            mean over samples.

    Example:
        >>> from tailshift.losses import BalancedSoftmaxLoss
        >>> loss = TrainerLoss(BalancedSoftmaxLoss([0.7, 0.2, 0.1]))
        >>> outputs, labels = {"logits": torch.zeros(2, 3)}, torch.tensor([0, 2])
        >>> loss(outputs, labels), loss(outputs, labels, num_items_in_batch=8)
        (tensor(1.3296), tensor(0.3324))
    """

    def __init__(self, loss: LossFunction) -> None:
        self.loss = loss if isinstance(loss, DistributedLoss) else DistributedLoss(loss)

    def __call__(
        self,
        outputs: Any,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return this piece's part of the loss of an optimiser step.

        Args:
            outputs: The model's: a mapping with ``logits``, or a tuple that begins with
                them, shape (N, C) or, for tokens, (N, T, C).
            labels: Class indices, shape (N,) or (N, T).
            num_items_in_batch: Samples of all pieces; None for the mean over this one.
        """
        f = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        is_sample = labels.flatten() != IGNORED
        f = f.reshape(-1, f.shape[-1])[is_sample]  # (n, C)
        y = labels.flatten()[is_sample]  # (n,)
        self.loss.to(f.device)
        processes = self.loss.processes(y)
        if processes.world_size == 1:
            value: Tensor = self.loss(f, y) if len(y) else f.sum()
        else:
            value = self.loss.over_processes(f, y, processes)
        if num_items_in_batch is None:
            return value
        n = processes.sum(value.new_tensor(float(len(y)))) / processes.world_size
        return value * (n / num_items_in_batch)


@renamed_arguments(trained_prior="logit_prior")
def keep_predictions(
    path: PathLike,
    *,
    logit_prior: VectorLike | None = None,
    source_counts: VectorLike | None = None,
    class_names: Sequence[str] = (),
    overwrite: bool = False,
) -> Any:
    """Return a Lightning callback that writes the test logits as :class:`Predictions`.

    ``test_step`` of the module must return a mapping with ``logits`` (N, C) and
    ``labels`` (N,). Of several processes the first writes the samples of all, each
    once and in the data set's order, if Lightning shared them out.

    Args:
        path: File to write after ``trainer.test``.
        logit_prior: The prior that the logits carry, shape (C,): uniform for LADE and
            Balanced Softmax, the training data's for cross-entropy.
        source_counts: Training samples of each class, shape (C,).
        class_names: One name per class.
        overwrite: Whether to replace a file that exists.
    """
    callbacks = _needed("lightning.pytorch.callbacks", "lightning")
    check_destination(Path(path), overwrite)
    kept = _KeptPredictions(
        Path(path), (source_counts, logit_prior, tuple(class_names)), overwrite
    )
    return callbacks.LambdaCallback(
        on_test_epoch_start=kept.begin,
        on_test_batch_end=kept.add,
        on_test_epoch_end=kept.save,
    )


class _KeptPredictions:
    """The test logits of this process, batch by batch."""

    def __init__(self, path: Path, facts: tuple[Any, Any, Any], overwrite: bool):
        self.path, self.facts, self.overwrite = path, facts, overwrite
        self.batches: list[tuple[Tensor, Tensor]] = []

    def begin(self, trainer: Any, module: Any) -> None:
        self.batches = []

    def add(
        self,
        trainer: Any,
        module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if dataloader_idx:
            raise ValueError(
                "`keep_predictions` must have one test loader, but there are several. "
                "Test one after the other, with a callback for each."
            )
        if not isinstance(outputs, Mapping) or not {"logits", "labels"} <= set(outputs):
            raise TypeError(
                "`test_step` must return a mapping with `logits` and `labels` for "
                f"`keep_predictions`, but returned {_described(outputs)}."
            )
        f, y = (outputs[name].detach().cpu() for name in ("logits", "labels"))
        self.batches.append((f, y))

    def save(self, trainer: Any, module: Any) -> None:
        f, y = (torch.cat(part) for part in zip(*self.batches, strict=True))
        self.batches = []
        if trainer.world_size > 1:
            everyone: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(everyone, (f, y))
            f, y = (
                _in_order(part, trainer.test_dataloaders)
                for part in zip(*everyone, strict=True)
            )
        if trainer.is_global_zero:
            n, p, names = self.facts
            found = Predictions(f, y, n, p, names)
            found.save(self.path, overwrite=self.overwrite)


def _in_order(parts: Sequence[Tensor], loader: Any) -> Tensor:
    """Return the rows of all processes in the data set's order, each once.

    PyTorch's sampler gives process r every W-th sample from the r-th on, and begins
    again until all have equally many. Of another sampler the rows are joined.
    """
    sampler = getattr(loader, "sampler", None)
    if type(sampler) is DistributedSampler and not sampler.shuffle:
        return torch.stack(list(parts), dim=1).flatten(0, 1)[: len(loader.dataset)]
    return torch.cat(list(parts))


def _described(outputs: Any) -> str:
    if isinstance(outputs, Mapping):
        return f"one with {', '.join(map(str, outputs)) or 'nothing'}"
    return type(outputs).__name__


def save_mlflow_model(
    run: Run | PathLike, path: PathLike, *, target: Target = SOURCE
) -> None:
    """Write a run as an MLflow model whose parameter is the target prior.

    ``mlflow.pyfunc.load_model(path).predict(images, params={"target_prior": prior})``
    returns probabilities (N, C) for uint8 pixels (N, channels, H, W); shares or counts
    of any sum are taken. ``mlflow models serve`` takes the same over HTTP.

    Args:
        run: A finished run, or its directory.
        path: Folder to write; it must not exist.
        target: Default target prior: a prior, a name (``"uniform"``,
            ``"backward:10"`` …) or a file; by default that of the training data.
    """
    _needed("mlflow.pyfunc", "mlflow")
    pyfunc, models, types = map(
        import_module, ("mlflow.pyfunc", "mlflow.models", "mlflow.types.schema")
    )
    run = as_run(run)
    preparation_of(run)  # refuses a run that reads no images
    facts = run.facts
    pixels = (-1, facts.in_channels, facts.image_size, facts.image_size)
    prior = run.target_prior(target).tolist()
    mix = types.ParamSpec("target_prior", types.DataType.double, prior, shape=(-1,))
    signature = models.ModelSignature(
        inputs=types.Schema([types.TensorSpec(np.dtype(np.uint8), pixels)]),
        outputs=types.Schema(
            [types.TensorSpec(np.dtype(np.float32), (-1, len(prior)))]
        ),
        params=types.ParamSchema([mix]),
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "run"
        copy.mkdir()
        for name in (CONFIG, FACTS, WEIGHTS, ENVIRONMENT):
            shutil.copy(run.directory / name, copy)
        pyfunc.save_model(
            path=str(path),
            loader_module=__name__,
            data_path=str(copy),
            signature=signature,
            pip_requirements=[f"tailshift=={import_module('tailshift').__version__}"],
            metadata={"class_names": list(run.class_names)},
        )


class _MLflowModel:
    """What MLflow calls: pixels and a class distribution in, probabilities out."""

    def __init__(self, run: Run) -> None:
        self.model = ServedModel(run, None).eval()

    @torch.inference_mode()
    def predict(
        self, images: NDArray[np.uint8], params: dict[str, Any] | None = None
    ) -> NDArray[np.float32]:
        counts = np.asarray((params or {})["target_prior"], dtype=np.float64)
        p_t = as_prior(counts / counts.sum(), name="target_prior")
        _, probs = self.model(torch.from_numpy(np.array(images)), p_t.float())
        answers: NDArray[np.float32] = probs.numpy()
        return answers


def _load_pyfunc(path: str) -> _MLflowModel:
    """Return the model in a folder; MLflow calls it by this name."""
    return _MLflowModel(load_run(path))


def _needed(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ModuleNotFoundError(
            f"this needs the package {extra}, which is not installed. Install it with "
            f"`pip install tailshift[{extra}]`."
        ) from None
