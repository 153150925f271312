"""MLflow and Weights & Biases beside TensorBoard, in their offline modes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailshift as ts
from tailshift import RunConfig
from tailshift.config import ConfigError

pytestmark = [  # of MLflow's database, and of what it asks of SQLAlchemy
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TinyConfig = Callable[..., RunConfig]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a client of MLflow with a store of its own."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("alembic", reason="a store in SQLite needs alembic")
    before = mlflow.get_tracking_uri()
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("digits")
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(before)


def _history(client: Any, run_id: str, name: str) -> dict[int, float]:
    return {m.step: m.value for m in client.get_metric_history(run_id, name)}


def test_mlflow__has_metrics_and_settings_and_continues(
    tmp_path: Path, client: Any, tiny_config: TinyConfig
) -> None:
    output, track = tmp_path / "run", "train.track=mlflow"
    ts.train(tiny_config(track), output=output)
    run_id = json.loads((output / "tracking.json").read_text())["mlflow"]
    found = client.get_run(run_id)
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["train.epochs"] == "2"
    assert found.data.params["method.name"] == "softmax"
    run = ts.load_run(output)
    for name in ("loss", "train_accuracy", "lr", "images_per_second"):
        expected = {record["epoch"]: record[name] for record in run.metrics}
        assert _history(client, run_id, name) == pytest.approx(expected)
    ts.train(tiny_config(track), output=output, resume=True)
    assert len(client.search_runs([found.info.experiment_id])) == 1
    assert client.get_run(run_id).info.status == "FINISHED"


def test_mlflow__logs_into_the_run_that_is_active(
    tmp_path: Path, client: Any, tiny_config: TinyConfig
) -> None:
    import mlflow

    with mlflow.start_run() as mine:
        ts.train(tiny_config("train.track=mlflow"), output=tmp_path / "run")
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert len(_history(client, mine.info.run_id, "loss")) == 2
    assert len(client.search_runs([mine.info.experiment_id])) == 1


def test_wandb__offline_has_metrics_and_settings(
    tmp_path: Path, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    for name, value in {"MODE": "offline", "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    logged: list[tuple[dict[str, float], int]] = []
    start = wandb.init

    def noting(**settings: Any) -> Any:
        run = start(**settings)
        log = run.log
        run.log = lambda values, step: (
            logged.append((values, step)),
            log(values, step),
        )
        return run

    monkeypatch.setattr(wandb, "init", noting)
    run = ts.train(tiny_config("train.track=wandb"), output=tmp_path / "run")
    run_id = json.loads((tmp_path / "run" / "tracking.json").read_text())["wandb"]
    [folder] = (tmp_path / "run" / "wandb").glob(f"offline-run-*-{run_id}")
    [file] = folder.glob(f"run-{run_id}.wandb")
    content = file.read_bytes()
    assert b"train_accuracy" in content
    assert b"method.name" in content
    assert [(values["loss"], epoch) for values, epoch in logged] == [
        (record["loss"], record["epoch"]) for record in run.metrics
    ]


@pytest.mark.parametrize(
    ("name", "title"), [("mlflow", "MLflow"), ("wandb", "Weights & Biases")]
)
def test_track__not_installed(
    name: str,
    title: str,
    tmp_path: Path,
    tiny_config: TinyConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as error:
        ts.train(tiny_config(f"train.track={name}"), output=tmp_path / "run")
    assert str(error.value) == (
        f"`train.track` needs {title}, which is not installed. "
        f"Install tailshift[{name}]."
    )


def test_track__names_with_commas_or_a_list(tiny_config: TinyConfig) -> None:
    assert tiny_config().train.track == ()
    assert tiny_config("train.track=mlflow,wandb").train.track == ("mlflow", "wandb")
    assert tiny_config('train.track=["wandb"]').train.track == ("wandb",)
    with pytest.raises(ConfigError, match="track"):
        tiny_config("train.track=mlfow")
