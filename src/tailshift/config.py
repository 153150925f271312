"""What decides the outcome of a run, checked, with every fault listed at once."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_type_hints

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from torch import Tensor

from tailshift.data import DATASETS, SAMPLERS, Dataset
from tailshift.data.images import Views
from tailshift.losses import as_loss
from tailshift.methods import METHODS, SCHEDULES, Method, Stage
from tailshift.models import (
    AUTO,
    MODELS,
    AdapterName,
    LinearHead,
    check_model_name,
    suitable_model,
)
from tailshift.models.pretrained import seen_size
from tailshift.models.timm_backbone import PREFIX as TIMM
from tailshift.registry import OWN, Origin, Registry, did_you_mean

_Filled = TypeVar("_Filled")

MOST = 1e6
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
    lr: float = Field(gt=0, le=MOST)
    """Highest learning rate."""
    backbone_lr: float | None = Field(default=None, gt=0, le=MOST)
    """Highest learning rate of the backbone, if it differs from the classifier's."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor of the learning rate from each layer of a timm network to the one below
    it, such as 0.75; the head has the full rate."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    """Nesterov's form of momentum."""
    weight_decay: Literal["auto"] | Annotated[float, Field(ge=0, le=MOST)] = 5e-4
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


class RunConfig(BaseModel):
    """All that decides the outcome of a run."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    recipe: str
    """Name of the recipe that this came from."""
    data: Dataset
    model: ModelConfig
    method: Method
    optim: OptimConfig
    train: TrainConfig
    eval: EvalConfig
    seed: int = 0

    @property
    def data_name(self) -> str:
        """The data set's registered name."""
        return DATASETS.name_of(type(self.data))

    @property
    def method_name(self) -> str:
        """The method's registered name."""
        return METHODS.name_of(type(self.method))

    @property
    def plugins(self) -> dict[Origin, list[tuple[str, str]]]:
        """The plugins that this needs, and the kind and name of what each brings."""
        used: list[tuple[Registry[Any], str]] = [
            (DATASETS, self.data_name),
            (METHODS, self.method_name),
            (MODELS, self.model.name),
            (SCHEDULES, self.optim.schedule),
        ]
        for stage in self.method.stages():
            used += [(SAMPLERS, name) for name in self.samplers(stage)]
        plugins: dict[Origin, list[tuple[str, str]]] = {}
        for registry, name in dict.fromkeys(used):
            if name in registry and registry.origin(name) != OWN:
                brought = plugins.setdefault(registry.origin(name), [])
                brought.append((registry.kind, name))
        return plugins

    def samplers(self, stage: Stage) -> tuple[str, ...]:
        """Return the samplers of a stage."""
        return stage.samplers or (self.train.sampler,)

    def stage_epochs(self, stage: Stage) -> int:
        """Return how many epochs a stage trains."""
        return self.train.epochs if stage.epochs is None else stage.epochs

    @property
    def epochs(self) -> int:
        """Epochs of all stages, also of one that another run has trained."""
        return sum(self.stage_epochs(stage) for stage in self.method.stages())

    @property
    def own_epochs(self) -> int:
        """Epochs that this run trains: if it starts from another, the later ones."""
        stages = self.method.stages()[self.given_stages :]
        return sum(self.stage_epochs(stage) for stage in stages)

    @property
    def given_stages(self) -> int:
        """Stages that another run stands for; 0 if one is but started from it."""
        return 1 if self.train.start_from and len(self.method.stages()) > 1 else 0

    @property
    def is_thawed(self) -> bool:
        """Whether the whole network starts from a run on features."""
        return bool(self.train.start_from) and not self.given_stages

    def sampled_counts(self, class_counts: Tensor, stage: Stage) -> Tensor:
        """Return how often an epoch samples each class: what the loss goes by.

        Args:
            class_counts: Training images of each class, shape (C,).
            stage: Stage of the method; the first of its samplers counts.
        """
        first = self.samplers(stage)[0]
        if first == "instance":
            return class_counts
        sampler = SAMPLERS.get(first)
        return sampler.class_distribution(class_counts) * class_counts.sum()

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior that the trained logits carry, float64, shape (C,)."""
        last = self.method.stages()[-1]
        return self.method.trained_prior(self.sampled_counts(class_counts, last))

    def for_images(self, image_size: int) -> "RunConfig":
        """Return this with what ``model`` leaves open decided for images of a size."""
        return self.model_copy(update={"model": self.model.for_images(image_size)})

    def in_precision(self, precision: str) -> "RunConfig":
        """Return this with that precision, if it is ``auto``."""
        if self.train.precision != AUTO:
            return self
        train = self.train.model_copy(update={"precision": precision})
        return self.model_copy(update={"train": train})

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "RunConfig":
        """Check a nested mapping, as a recipe or `to_mapping` gives it.

        Raises:
            ConfigError: With one sentence for each fault.
        """
        faults: list[str] = []
        known = list(cls.model_fields)
        faults.extend(_unknown_key(key, known) for key in mapping if key not in known)
        sections: dict[str, Any] = {
            "recipe": str(mapping.get("recipe", "unnamed")),
            "data": _named_section("data", DATASETS, mapping, faults),
            "method": _named_section("method", METHODS, mapping, faults),
            "seed": mapping.get("seed", 0),
        }
        for name, kind in SECTIONS.items():
            sections[name] = _section(name, kind, mapping.get(name, {}), faults)
        seed = sections["seed"]
        if type(seed) is not int or not 0 <= seed < 2**32:
            faults.append(f"`seed` must be an integer in 0..2**32-1, but is {seed!r}.")
        if faults:
            raise ConfigError(faults)
        config = cls(**sections)
        if misfits := [*_training_misfits(config), *_network_misfits(config)]:
            raise ConfigError(misfits)
        return config

    def to_mapping(self) -> dict[str, Any]:
        """Return the nested mapping that `from_mapping` takes; ready for JSON."""
        return {
            "recipe": self.recipe,
            "seed": self.seed,
            "data": {"name": self.data_name, **dataclasses.asdict(self.data)},
            "model": self.model.model_dump(mode="json"),
            "method": {"name": self.method_name, **dataclasses.asdict(self.method)},
            "optim": self.optim.model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
            "eval": self.eval.model_dump(mode="json"),
        }


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


class ConfigError(ValueError):
    """Every fault of a configuration, a sentence each."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


def _training_misfits(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each setting of `train` that the method would ignore."""
    name, train, stages = config.method_name, config.train, config.method.stages()
    if train.sampler != "instance" and all(stage.samplers for stage in stages):
        own = dict.fromkeys(s for stage in stages for s in stage.samplers or ())
        yield (
            f"`train.sampler` must not be set, since {name} has its own "
            f"({', '.join(own)}), but is {train.sampler!r}."
        )
    if train.mixup and all(stage.mixup is not None for stage in stages):
        yield (
            f"`train.mixup` must not be set, since {name} says in which stage images "
            f"are blended, but is {train.mixup:g}. Set `method.mixup` instead."
        )
    if train.exact_accumulation and any(
        len(stage.samplers or ()) > 1 for stage in stages
    ):
        yield (
            f"`train.exact_accumulation` must be false, since {name} reads the batches "
            "of several samplers at once, but is true. Its loss is a mean: the "
            "gradient is exact without."
        )
    for setting, value, default in (
        ("keep", train.keep, "last"),
        ("patience", train.patience, None),
    ):
        if value != default and not config.stage_epochs(stages[-1]):
            yield (
                f"`train.{setting}` must be left out, since the last stage of {name} "
                f"has no epochs to choose from, but is {value!r}."
            )
    two_classes = torch.tensor([2, 1])
    if train.label_smoothing != "none" and not all(
        as_loss(stage.loss(two_classes)).takes_soft_targets for stage in stages
    ):
        yield (
            f"`train.label_smoothing` must be 'none', since the loss of {name} does "
            f"not take soft labels, but is {train.label_smoothing!r}."
        )


def _network_misfits(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each setting that does not fit the network."""
    name, stages = config.method_name, config.method.stages()
    if config.optim.name == "lbfgs" and not config.model.frozen:
        yield (
            "`optim.name` must be 'sgd' or 'adamw' to train a whole network, but is "
            "'lbfgs'. Set model.frozen=true to train its head alone."
        )
    is_branched = type(config.method).branch is not Method.branch
    is_timm = config.model.name.startswith(TIMM) or (
        config.model.name == AUTO and config.is_thawed  # features are of timm's
    )
    if config.optim.layer_decay < 1 and (
        not is_timm or config.model.frozen or is_branched
    ):
        yield (
            "`optim.layer_decay` must be 1, since it is for a network of timm that is "
            f"trained as a whole, but is {config.optim.layer_decay:g}. Name one with "
            "model.name=timm:NAME, and leave model.frozen out."
        )
    if config.model.frozen and is_branched:
        yield (
            f"`model.frozen` must be false, since {name} trains branches of the "
            "network, but is true."
        )
    if config.model.frozen and config.is_thawed:
        yield (
            f"`model.frozen` must be false to start from another run (--from), since "
            f"{name} has one stage, but is true. Leave one of the two out."
        )
    if config.model.frozen and config.model.adapter not in ("none", "residual"):
        yield (
            "`model.adapter` must be 'none' or 'residual' with model.frozen, whose "
            f"features are computed once, but is {config.model.adapter!r}. Leave one "
            "of the two out."
        )
    if config.model.adapter == "residual" and not config.model.frozen:
        yield (
            "`model.adapter` must be 'none', 'adaptformer' or 'lora' unless the "
            "backbone is frozen, but is 'residual'. Set model.frozen=true."
        )
    if config.model.frozen and config.eval.views != "one":
        yield (
            "`eval.views` must be 'one' with model.frozen, whose features are computed "
            f"once, but is {config.eval.views!r}. `tailshift predict --views` has them."
        )
    if config.model.head == "cosine" and not all(map(_is_linear, stages)):
        yield (
            f"`model.head` must be 'method', since {name} has a head of its own, but "
            "is 'cosine'."
        )


def _is_linear(stage: Stage) -> bool:
    with torch.random.fork_rng():  # a head draws its weights
        return type(stage.head(1, 2)) is LinearHead


def _unknown_key(key: str, known: Sequence[str]) -> str:
    section, _, leaf = key.rpartition(".")
    hint = did_you_mean(leaf, list(known)) or ";"
    where = f" of `{section}`" if section else ""
    return f"`{key}` is not a setting{where}{hint} Known: {', '.join(sorted(known))}"


def _named_section(
    section: str, registry: Registry[Any], mapping: Mapping[str, Any], faults: list[str]
) -> Any:
    """Return the registered settings class that ``name`` asks for, filled in."""
    values = mapping.get(section, {})
    if not isinstance(values, Mapping) or "name" not in values:
        faults.append(f"`{section}.name` is missing. Known: {', '.join(registry)}")
        return None
    try:
        kind = registry.get(str(values["name"]))
    except ValueError as error:
        faults.append(f"`{section}.name`: {error}")
        return None
    rest = {key: value for key, value in values.items() if key != "name"}
    return _section(section, kind, rest, faults)


def _section(
    section: str, kind: type[_Filled], values: Any, faults: list[str]
) -> _Filled | None:
    if not isinstance(values, Mapping):
        faults.append(f"`{section}` must be a table of settings, but is {values!r}.")
        return None
    if dataclasses.is_dataclass(kind):
        known = [field.name for field in dataclasses.fields(kind)]
    else:
        known = list(getattr(kind, "model_fields", ()))
    unknown = [key for key in values if key not in known]
    faults.extend(_unknown_key(f"{section}.{key}", known) for key in unknown)
    hints = get_type_hints(kind)
    settings = {  # TOML has no word for None
        key: None if value == "none" and NoneType in get_args(hints[key]) else value
        for key, value in values.items()
        if key in known
    }
    try:
        # Strict as JSON is: "5" and true are no numbers, but a list may be a tuple.
        text = json.dumps(settings, default=str)
        checked: _Filled = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        faults.extend(_sentence(section, fault) for fault in error.errors())
        return None
    return checked


# Making an adapter takes longer than all that it checks.
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _sentence(section: str, fault: Any) -> str:
    path = ".".join([section, *(str(part) for part in fault["loc"])])
    if fault["type"] == "missing":
        return f"`{path}` is missing."
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    rule = fault["msg"].replace("Input should be", "must be", 1)
    return f"`{path}` {rule}, but is {fault['input']!r}."
