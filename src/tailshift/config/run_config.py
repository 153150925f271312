"""Run configuration; all validation errors are reported together."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
)
from torch import Tensor

from tailshift.config.compatibility import network_misfits, training_misfits
from tailshift.config.reading import (
    ConfigError,
    read_named_section,
    read_section,
    unknown_setting,
)
from tailshift.config.sections import (
    SECTIONS,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)
from tailshift.data import DATASETS, SAMPLERS, Dataset
from tailshift.methods import METHODS, SCHEDULES, Method, Stage
from tailshift.models import (
    AUTO,
    MODELS,
)
from tailshift.registry import OWN, Origin, Registry


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

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior that the trained logits carry, float64, shape (C,)."""
        last = self.method.stages()[-1]
        return self.method.logit_prior(self.sampled_counts(class_counts, last))

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
        faults.extend(
            unknown_setting(key, known) for key in mapping if key not in known
        )
        sections: dict[str, Any] = {
            "recipe": str(mapping.get("recipe", "unnamed")),
            "data": read_named_section("data", DATASETS, mapping, faults),
            "method": read_named_section("method", METHODS, mapping, faults),
            "seed": mapping.get("seed", 0),
        }
        for name, kind in SECTIONS.items():
            sections[name] = read_section(name, kind, mapping.get(name, {}), faults)
        seed = sections["seed"]
        if type(seed) is not int or not 0 <= seed < 2**32:
            faults.append(f"`seed` must be an integer in 0..2**32-1, but is {seed!r}.")
        if faults:
            raise ConfigError(faults)
        config = cls(**sections)
        if misfits := [*training_misfits(config), *network_misfits(config)]:
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
