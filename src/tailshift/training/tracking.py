"""Experiment trackers: TensorBoard, MLflow and Weights & Biases."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from tailshift.config import RunConfig
from tailshift.files import atomic_write
from tailshift.runs.directory import flat_settings
from tailshift.runs.files import TENSORBOARD, TRACKING

Log: TypeAlias = Callable[[Mapping[str, float], int], None]
"""Logs the metrics of an epoch and its number."""

_Tracker: TypeAlias = Callable[[Path, RunConfig, int], AbstractContextManager[Log]]
"""Opens a tracker for a run: directory, configuration, number of finished epochs."""


@contextmanager
def tensorboard(directory: Path, config: RunConfig, done: int) -> Iterator[Log]:
    """Write TensorBoard event files next to the metrics file."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ModuleNotFoundError(
            "`train.tensorboard` needs TensorBoard, which is not installed. "
            "Install tailshift[tensorboard]."
        ) from None

    with SummaryWriter(str(directory / TENSORBOARD), purge_step=done + 1) as board:

        def log(metrics: Mapping[str, float], epoch: int) -> None:
            for name, value in metrics.items():
                board.add_scalar(name, value, epoch)

        yield log


@contextmanager
def mlflow(directory: Path, config: RunConfig, done: int) -> Iterator[Log]:
    """Log to MLflow: to this process's active MLflow run, or to a new one.

    MLflow's own settings choose the store and the experiment
    (``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME``). A resumed run continues its
    MLflow run.
    """
    package = _needed("mlflow", "MLflow")
    client, active = package.MlflowClient(), package.active_run()
    run_id = active.info.run_id if active else _known_ids(directory).get("mlflow")
    is_new = active is not None or run_id is None
    if run_id is None:
        own = package.start_run(run_name=directory.name, log_system_metrics=False)
        run_id = own.info.run_id
    elif active is None:
        own = package.start_run(run_id=run_id, log_system_metrics=False)
    if is_new:
        for key, value in flat_settings(config).items():
            client.log_param(run_id, key, value)
    _keep_id(directory, "mlflow", run_id)

    def log(metrics: Mapping[str, float], epoch: int) -> None:
        for name, value in metrics.items():
            client.log_metric(run_id, name, value, step=epoch)

    if active is not None:
        yield log
        return
    with own:  # marks it as failed if the block raises an error
        yield log


@contextmanager
def wandb(directory: Path, config: RunConfig, done: int) -> Iterator[Log]:
    """Log to Weights & Biases.

    Its own settings choose the project and the mode (``WANDB_PROJECT``,
    ``WANDB_MODE=offline``). A resumed run continues its record.
    """
    package = _needed("wandb", "Weights & Biases")
    run = package.init(
        id=_known_ids(directory).get("wandb"),
        resume="allow",
        reinit="create_new",
        name=directory.name,
        dir=str(directory),
        config=flat_settings(config),
    )
    _keep_id(directory, "wandb", run.id)
    with run:
        yield lambda metrics, epoch: run.log(dict(metrics), step=epoch)


TRACKERS: dict[str, _Tracker] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "wandb": wandb,
}
"""Trackers by their name in ``train.track``."""


def _known_ids(directory: Path) -> dict[str, str]:
    """Return each tracker's id of a resumed run; empty for a new run."""
    path = directory / TRACKING  # a new run starts without it
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _keep_id(directory: Path, name: str, run_id: str) -> None:
    text = json.dumps(_known_ids(directory) | {name: run_id}, indent=2)
    with atomic_write(directory / TRACKING) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _needed(module: str, title: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ModuleNotFoundError(
            f"`train.track` needs {title}, which is not installed. "
            f"Install tailshift[{module}]."
        ) from None
