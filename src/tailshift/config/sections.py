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
"""Largest accepted learning rate or penalty."""


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
    """Marks settings that do not affect results."""

    is_fixed: bool = False
    """Whether a run is resumed with the value that it was started with."""


class ModelConfig(_Section):
    """The network."""

    name: str
    """Backbone: a name of `tailshift list models`, ``timm:NAME``, or ``auto`` (resnet32
    for images up to 64 pixels, otherwise timm's resnet18)."""
    pretrained: Literal[True, False, "if_available"] = False
    """Start from timm's published weights. ``"if_available"`` trains from scratch if
    they cannot be downloaded."""
    weights: str = ""
    """Start the backbone from this file (safetensors or PyTorch), or from installed
    weights (``lite0``). Replaces ``pretrained``."""
    frozen: bool = False
    """Freeze the backbone and train only the head, on features that are extracted once;
    see `tailshift features`."""
    image_size: NonNegativeInt = 0
    """Input resolution in pixels. 0 keeps the images' size; with a frozen backbone it
    is at least 128 and at most the network's own."""
    adapter: AdapterName = "none"
    """Train small adapters in the blocks of a timm vision transformer, and the head;
    the other weights are frozen. Adapter size depends on the number of classes.
    ``"residual"`` is one adapter behind any frozen backbone, on its features."""
    head: Literal["method", "cosine"] = "method"
    """``"cosine"``: cosine classifier with scale 25, as in LIFT."""

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
    """Optimiser. ``"lbfgs"`` fits the head of a frozen backbone to all features until
    convergence; heads that it cannot fit, and heads behind an adapter, use SGD."""
    lr: float = Field(gt=0, le=_MOST)
    """Maximum learning rate."""
    backbone_lr: float | None = Field(default=None, gt=0, le=_MOST)
    """Maximum learning rate of the backbone, if it differs from that of the
    classifier."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Learning-rate factor from each layer of a timm network to the layer below, such
    as 0.75. The head has the full rate."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: Literal["auto"] | Annotated[float, Field(ge=0, le=_MOST)] = 5e-4
    """L2 penalty on all parameters. AdamW excludes biases, normalisation and what timm
    names, such as position embeddings. ``"auto"`` (``"lbfgs"`` only) chooses it on
    held-out training samples."""
    clip_norm: PositiveFloat | None = None
    """Maximum gradient norm; larger gradients are clipped. None does not clip."""
    schedule: str = "constant"
    """Learning-rate schedule; see `tailshift.methods.schedules`."""
    warmup_epochs: NonNegativeInt = 0
    """Epochs of linear warm-up before ``multi_step`` or ``cosine``."""
    warmup_start: float = Field(default=1 / 3, ge=0, le=1)
    """Learning-rate factor at epoch 0 of the warm-up: 1/3 in the paper's and BBN's
    runs, 0 in those of LDAM, SADE and MiSLAS."""
    milestones: tuple[PositiveInt, ...] = ()
    """Epochs, counted from 1, at which ``multi_step`` multiplies the rate by
    ``decay``."""
    decay: float = Field(default=0.1, gt=0, le=1)
    """Learning-rate factor at each milestone."""

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
    """Number of epochs."""
    batch_size: PositiveInt
    """Samples per step, over all processes."""
    drop_last: bool = False
    """Drop an epoch's last batch if it is not full."""
    sampler: str = "instance"
    """Sampler, if the method does not choose one; see `tailshift.data.samplers`."""
    mixup: NonNegativeFloat = 0.0
    """α of mixup: the mixing share is drawn from Beta(α, α) at each step; 0 disables
    mixup. Mixup is assumed not to change the logit prior."""
    label_smoothing: Literal["none", "label_aware"] = "none"
    """``"label_aware"`` smooths the labels of frequent classes most."""
    keep: Literal["last", "best"] = "last"
    """Keep the weights of the last epoch, or of the epoch with the best class-balanced
    validation accuracy. Applies to the last training stage."""
    patience: PositiveInt | None = None
    """Stop early after this many epochs without a better class-balanced validation
    accuracy. Applies to the last training stage."""
    cross_fit: int = Field(default=0, ge=0, le=20)
    """Number of folds for cross-fitting a head (``"lbfgs"`` only): the head also trains
    on the validation images, and held-out logits come from heads fitted to the other
    folds. 0 keeps validation images out of training."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of the exponential moving average of the weights per step, such as 0.995.
    The average is validated and saved. None uses the weights themselves."""
    start_from: Annotated[str, Machine(is_fixed=True)] = ""
    """Finished run, or a file of its weights, that replaces the first stage of a method
    with several stages. For a one-stage method: a finished run on features
    (``model.frozen``) whose backbone and head the network starts from."""
    num_workers: Annotated[NonNegativeInt | None, Machine()] = None
    """Processes that decode image files; by default one per core."""
    precision: Annotated[
        Literal["auto", "32-true", "64-true", "bf16-mixed", "16-mixed"],
        Machine(is_fixed=True),
    ] = "32-true"
    """Number format of the network in training. ``"auto"`` is bf16-mixed on hardware
    with bf16, otherwise 32-true; the run records the choice. Mixed precision keeps
    weights, statistics, losses and saved logits in float32."""
    accumulate: PositiveInt = 1
    """Gradient accumulation steps per process, to save memory. The gradient is that of
    the whole batch, except for LADE's regulariser, OLTR's centroids and batch
    normalisation, which see one part at a time."""
    exact_accumulation: bool = False
    """With accumulation, compute every loss on the whole batch, at the cost of a second
    forward pass. For networks that return only logits."""
    sync_batch_norm: bool = False
    """Use synchronised batch normalisation (GPU only)."""
    shard: Annotated[bool, Machine()] = False
    """Shard weights, gradients and optimiser state over the processes (FSDP), for
    networks that do not fit on one GPU. Results do not change."""
    channels_last: Annotated[bool, Machine(is_fixed=True)] = True
    """Use the channels-last memory format, which makes convolutions faster. Not used
    with sharded weights."""
    accelerator: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], Machine(is_fixed=True)
    ] = "auto"
    """Hardware to train on; ``"auto"`` uses a GPU if there is one."""
    devices: Annotated[PositiveInt, Machine()] = 1
    """Processes per machine; torchrun and srun set it themselves."""
    num_nodes: Annotated[PositiveInt, Machine()] = 1
    """Number of machines."""
    timeout_minutes: Annotated[PositiveFloat, Machine()] = 30.0
    """Minutes that a process waits for the others before it stops."""
    checkpoint_every: Annotated[PositiveInt, Machine()] = 1
    """Epochs between checkpoints."""
    checkpoint_minutes: Annotated[PositiveFloat | None, Machine()] = 15.0
    """Minutes between checkpoints within an epoch; None disables them."""
    checkpoint_steps: Annotated[PositiveInt | None, Machine()] = None
    """Steps between checkpoints within an epoch."""
    detect_anomaly: Annotated[bool, Machine()] = False
    """Name the module or the operation that produces the first NaN; slow."""
    tensorboard: Annotated[bool, Machine()] = False
    """Write TensorBoard events next to the metrics file."""
    track: Annotated[
        tuple[Literal["tensorboard", "mlflow", "wandb"], ...], Machine()
    ] = ()
    """Also log each epoch's metrics to these trackers: a list, or names separated by
    commas. Each tracker uses its own settings, such as MLFLOW_TRACKING_URI."""

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
    """Evaluation, and what is saved."""

    batch_size: Annotated[PositiveInt, Machine(is_fixed=True)] = 512
    """Samples per step of the evaluation."""
    half_logits: Annotated[bool, Machine(is_fixed=True)] = False
    """Save logits in half precision: half the disk space, three decimal digits."""
    views: Views = "one"
    """``"five_crop"`` averages the logits of five crops (centre and corners) of an
    image that is resized to 248/224 of its size. Used for saved logits and
    `predict`."""


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
