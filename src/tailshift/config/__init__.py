"""Run configuration; all validation errors are reported together."""

from tailshift.config.reading import ConfigError
from tailshift.config.run_config import RunConfig
from tailshift.config.sections import (
    SECTIONS,
    EvalConfig,
    Machine,
    ModelConfig,
    OptimConfig,
    TrainConfig,
    machine_settings,
)

__all__ = [
    "SECTIONS",
    "ConfigError",
    "EvalConfig",
    "Machine",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "TrainConfig",
    "machine_settings",
]
