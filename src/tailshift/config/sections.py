"""The sections of a configuration, one class per table of settings."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from tailshift.data import SAMPLERS
from tailshift.data.images import Views
from tailshift.methods import SCHEDULES
from tailshift.models import (
    AUTO,
    AdapterName,
    check_model_name,
    suitable_model,
)
from tailshift.models.pretrained import seen_size
from tailshift.models.timm_backbone import PREFIX as TIMM

_MOST = 1e6
"""The largest learning rate or penalty that is accepted."""


def _known(setting: str, find: Callable[[str], object], name: str) -> str:
    """Return a registered name; the message about another one says for what it is."""
    try:
        find(name)
    except ValueError as error:
        raise ValueError(f"`{setting}`: {error}") from None
    return name


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Mark of a setting that says how a run is done, not what comes out of it."""

    is_fixed: bool = False
    """Whether a run is resumed with the value that it was started with."""


class ModelConfig(_Section):
    """The network."""

    name: str
    """A name of `tailshift list models`, ``timm:NAME``, or ``auto``: resnet32 for
    images of up to 64 pixels, otherwise timm's resnet18."""
    pretrained: Literal[True, False, "if_available"] = False
    """Start from timm's published weights; ``"if_available"`` goes without them if
    they cannot be fetched."""
    weights: str = ""
    """Start the backbone from this file (safetensors, or tensors saved by PyTorch), or
    from installed weights (``lite0``); it stands in for ``pretrained``."""
    frozen: bool = False
    """Keep the backbone's weights and train the head alone, on features that are
    computed once: see `tailshift features`."""
    image_size: NonNegativeInt = 0
    """Height and width that the network sees images in; 0 takes theirs, but for a
    frozen backbone at least 128 and at most the network's own."""
    adapter: AdapterName = "none"
    """Train small parts beside the blocks of a vision transformer of timm, and the
    head; everything else keeps its weights. Their size goes by the classes.
    ``"residual"`` is one part behind any frozen backbone, on its features."""
    head: Literal["method", "cosine"] = "method"
    """``"cosine"`` has cosines times 25 in place of a linear head, as LIFT."""

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return _known("model.name", check_model_name, name)

    def for_images(self, image_size: int) -> "ModelConfig":
        """Return this with what it leaves open decided for images of a size."""
        name, seen = self.name, self.image_size
        if name == AUTO:
            name = suitable_model(image_size)
        if self.frozen and not seen and name.startswith(TIMM):
            seen = seen_size(name, image_size)
        return self.model_copy(update={"name": name, "image_size": seen})


class OptimConfig(_Section):
    """The optimiser and its learning rate over time."""

    name: Literal["sgd", "adamw", "lbfgs"] = "sgd"
    """``"lbfgs"`` fits the head of a frozen backbone to all features at once, to
    convergence; a head that it cannot fit, or one behind an adapter, has SGD."""
    lr: float = Field(gt=0, le=_MOST)
    """Highest learning rate."""
    backbone_lr: float | None = Field(default=None, gt=0, le=_MOST)
    """Highest learning rate of the backbone, if it differs from the classifier's."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor of the learning rate from each layer of a timm network to the one below
    it, such as 0.75; the head has the full rate."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    """Nesterov's form of momentum."""
    weight_decay: Literal["auto"] | Annotated[float, Field(ge=0, le=_MOST)] = 5e-4
    """L2 penalty, on every parameter; AdamW spares biases, normalisation and what timm
    names, such as position embeddings. ``"auto"`` is for ``"lbfgs"``, which chooses it
    on training samples that it holds out."""
    clip_norm: PositiveFloat | None = None
    """Largest length of the gradient of all parameters together; a longer one is
    shortened. None leaves it as it is."""
    schedule: str = "constant"
    """How the learning rate goes: see `tailshift.methods.schedules`."""
    warmup_epochs: NonNegativeInt = 0
    """Epochs of linear warm-up before ``multi_step`` or ``cosine``."""
    warmup_start: float = Field(default=1 / 3, ge=0, le=1)
    """Factor of the learning rate that the warm-up would have at epoch 0: 1/3 as in
    the paper's runs and BBN's, 0 as in LDAM's, SADE's and MiSLAS's."""
    milestones: tuple[PositiveInt, ...] = ()
    """Epochs, counted from 1, from which ``multi_step`` multiplies by ``decay``."""
    decay: float = Field(default=0.1, gt=0, le=1)
    """Factor at each milestone."""

    @field_validator("schedule")
    @classmethod
    def _is_known(cls, schedule: str) -> str:
        return _known("optim.schedule", SCHEDULES.get, schedule)

    @model_validator(mode="after")
    def _auto_is_for_lbfgs(self) -> Self:
        if self.weight_decay == "auto" and self.name != "lbfgs":
            raise ValueError(
                "`optim.weight_decay` must be a number unless `optim.name` is 'lbfgs', "
                f"but is 'auto' for {self.name!r}. Set one, such as 5e-4."
            )
        return self

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError(
                "`optim.nesterov` needs `optim.momentum` > 0, but it is 0. "
                "Drop `optim.nesterov`, or set a momentum such as 0.9."
            )
        return self


class TrainConfig(_Section):
    """Length, batches and machine."""

    epochs: PositiveInt
    batch_size: PositiveInt
    """Samples per step, over all processes."""
    drop_last: bool = False
    """Drop an epoch's last batch if it is not full."""
    sampler: str = "instance"
    """How often each class is sampled, if the method does not say: see
    `tailshift.data.samplers`."""
    mixup: NonNegativeFloat = 0.0
    """α of mixup, whose share is drawn from Beta(α, α) at each step; 0 blends nothing.
    Like smoothing, it is taken to leave the prior that the logits carry as it is."""
    label_smoothing: Literal["none", "label_aware"] = "none"
    """``"label_aware"`` softens the labels of classes with many images the most."""
    keep: Literal["last", "best"] = "last"
    """Keep the weights of the last epoch, or of the one with the highest class-balanced
    validation accuracy. Of a method's stages the last one is meant."""
    patience: PositiveInt | None = None
    """Stop early after so many epochs in which that accuracy did not rise. Of a
    method's stages the last one is meant."""
    cross_fit: int = Field(default=0, ge=0, le=20)
    """Folds of cross-fitting for a head that is fitted at once (``"lbfgs"``): the head
    trains on the validation images too, and held-out logits come from heads that are
    fitted to the other folds. 0 leaves the validation images out."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Share that an average of the weights keeps of itself at each step, such as 0.995;
    it is what is validated and saved. None for the weights as they are."""
    start_from: Annotated[str, Machine(is_fixed=True)] = ""
    """A finished run, or a file of its weights, that stands for the first stage of a
    method that has several; or, for a method of one, a finished run on features
    (``model.frozen``) whose backbone and head the whole network starts from."""
    num_workers: Annotated[NonNegativeInt | None, Machine()] = None
    """Processes that decode images read from files; by default one for each core."""
    precision: Annotated[
        Literal["auto", "32-true", "64-true", "bf16-mixed", "16-mixed"],
        Machine(is_fixed=True),
    ] = "32-true"
    """Numbers that the network computes with in training. ``"auto"`` is bf16-mixed on
    GPUs and CPUs that have bf16 in hardware, otherwise 32-true; the run records which.
    Mixed precision keeps weights, statistics, losses and saved logits in float32."""
    accumulate: PositiveInt = 1
    """Pieces that each process reads its part of a batch in, to need less memory. The
    gradient is that of the whole batch, but LADE's regulariser and OLTR's centroids
    go by each piece, and batch normalisation sees one at a time."""
    exact_accumulation: bool = False
    """With pieces, take any loss of the whole batch, at the price of a second forward
    pass; for networks that give logits alone."""
    sync_batch_norm: bool = False
    """Normalise by the images of all processes; on GPUs."""
    shard: Annotated[bool, Machine()] = False
    """Let each process hold a share of the weights, gradients and momenta alone (FSDP),
    for networks that do not fit on one GPU. It changes nothing else."""
    channels_last: Annotated[bool, Machine(is_fixed=True)] = True
    """Keep a pixel's channels side by side in memory: convolutions are faster. Sharded
    weights are not."""
    accelerator: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], Machine(is_fixed=True)
    ] = "auto"
    devices: Annotated[PositiveInt, Machine()] = 1
    """Processes on each machine; torchrun and srun say so themselves."""
    num_nodes: Annotated[PositiveInt, Machine()] = 1
    """Machines."""
    timeout_minutes: Annotated[PositiveFloat, Machine()] = 30.0
    """Minutes that a process waits for the others before it gives up."""
    checkpoint_every: Annotated[PositiveInt, Machine()] = 1
    """Epochs between checkpoints."""
    checkpoint_minutes: Annotated[PositiveFloat | None, Machine()] = 15.0
    """Minutes between checkpoints within an epoch; None for no such checkpoints."""
    checkpoint_steps: Annotated[PositiveInt | None, Machine()] = None
    """Steps between checkpoints within an epoch."""
    detect_anomaly: Annotated[bool, Machine()] = False
    """Name the part of the network or the operation that gives the first NaN; slow."""
    tensorboard: Annotated[bool, Machine()] = False
    """Write TensorBoard events beside the metrics file."""
    track: Annotated[
        tuple[Literal["tensorboard", "mlflow", "wandb"], ...], Machine()
    ] = ()
    """Log each epoch's metrics to these too; a list, or names with commas between
    them. Each goes where its own settings say, such as MLFLOW_TRACKING_URI."""

    @field_validator("track", mode="before")
    @classmethod
    def _names(cls, track: Any) -> Any:
        names = track.split(",") if isinstance(track, str) and track else track or ()
        return tuple(names) if isinstance(names, list) else names

    @field_validator("sampler")
    @classmethod
    def _is_known(cls, sampler: str) -> str:
        return _known("train.sampler", SAMPLERS.get, sampler)

    @model_validator(mode="after")
    def _average_is_whole(self) -> Self:
        if self.ema is not None and self.shard:
            raise ValueError(
                "`train.ema` needs whole weights on every process, but `train.shard` "
                "spreads them. Drop one of the two."
            )
        return self


class EvalConfig(_Section):
    """What is kept of the evaluated splits."""

    batch_size: Annotated[PositiveInt, Machine(is_fixed=True)] = 512
    half_logits: Annotated[bool, Machine(is_fixed=True)] = False
    """Keep logits in half precision: half the disk, three decimal digits."""
    views: Views = "one"
    """``"five_crop"`` averages the logits of the middle and the corners of an image
    that is resized to 248/224 of its size, for the saved logits and `predict`."""


SECTIONS: Mapping[str, type[_Section]] = {
    "model": ModelConfig,
    "optim": OptimConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
}
"""The sections whose settings do not depend on a name in them."""


def machine_settings(*, is_fixed: bool | None = None) -> frozenset[str]:
    """Return the settings that are marked as the machine's, by their dotted names.

    Args:
        is_fixed: Only those that may not (True) or may (False) differ when a run is
            resumed; None gives both.

    Example:
        >>> sorted(machine_settings(is_fixed=True))[:2]
        ['eval.batch_size', 'eval.half_logits']
    """
    return frozenset(
        f"{section}.{name}"
        for section, kind in SECTIONS.items()
        for name, field in kind.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Machine) and is_fixed in (None, mark.is_fixed)
    )
