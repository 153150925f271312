"""A small configuration, and a finished run of it that tests share."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tailshift import Run, RunConfig, load_recipe, train

TinyConfig = Callable[..., RunConfig]


def _tiny_config(*overrides: str) -> RunConfig:
    return load_recipe("digits_lt", ["train.epochs=2", *overrides])


@pytest.fixture
def tiny_config() -> TinyConfig:
    """Make the configuration of a run of two epochs, five steps each."""
    return _tiny_config


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a finished run of LADE on the digits; read only."""
    output = tmp_path_factory.mktemp("shared") / "digits"
    return train(_tiny_config("method.name=lade"), output=output)


@pytest.fixture
def run_copy(digits_run: Run, tmp_path: Path) -> Path:
    """Return the directory of a copy of that run, to damage."""
    return Path(shutil.copytree(digits_run.directory, tmp_path / "run"))
