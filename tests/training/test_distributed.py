"""Several processes train to the same weights as one, whatever the method keeps."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import tailshift as ts
from tailshift.models.backbone import (
    MODELS,
    Backbone,
    MeanOverPositions,
    SplitBackbone,
    TailPart,
)
from tailshift.recipes import recipe_names
from tailshift.training.distributed import (
    build_fabric,
    check_machine,
    num_processes,
    report_lost_processes,
    same_draws,
    synchronise_batch_norm,
)
from tailshift.training.progress import TrainingProgress

TinyConfig = Callable[..., ts.RunConfig]

SCRIPT = Path(__file__).parents[2] / "docs" / "slurm.sh"
COMMON = (
    "model.name=plain_net",
    "train.precision=64-true",
    "train.accelerator=cpu",
    "train.epochs=4",
    "train.batch_size=55",  # 276 images: six steps, the last of a single image
    "train.channels_last=false",
    "eval.batch_size=100",
)
JOBS: dict[str, tuple[str, ...]] = {
    "softmax": ("method.name=softmax",),
    "lade": ("method.name=lade", "method.alpha=0.5", "method.lam=0.1"),
    "lade, self_normalised": ("method.name=lade", "method.mode=self_normalised"),
    "lade, official": ("method.name=lade", "method.mode=official"),
    "lade, smoothed": ("method.name=lade", "train.label_smoothing=label_aware"),
    "causal_norm": ("method.name=causal_norm", "optim.lr=0.01"),
    "oltr": ("method.name=oltr", "method.lr=0.01", "optim.lr=0.01", "train.epochs=2"),
    "bbn": ("method.name=bbn",),
    "sade": ("method.name=sade", "optim.lr=0.01"),
    "averaged lade": ("method.name=lade", "train.ema=0.9"),
    "ncm": ("method.name=ncm", "train.epochs=1"),
    "accumulated softmax": ("method.name=softmax", "train.accumulate=3"),
    "clipped softmax": (
        "method.name=softmax",
        "optim.clip_norm=0.05",
        "train.accumulate=3",
        "train.epochs=2",
    ),
    "accumulated causal_norm": (
        "method.name=causal_norm",
        "optim.lr=0.01",
        "train.accumulate=2",
    ),
    "accumulated bbn": ("method.name=bbn", "train.accumulate=2", "train.epochs=2"),
    "exactly accumulated lade": (
        "method.name=lade",
        "method.alpha=0.5",
        "method.lam=0.1",
        "train.accumulate=3",
        "train.exact_accumulation=true",
    ),
}
JOBS |= {
    f"sharded {name}": (*JOBS[name], "train.shard=true")
    for name in (
        "lade",
        "causal_norm",
        "bbn",
        "exactly accumulated lade",
        "clipped softmax",
    )
}
BY_THREE = (
    "softmax",
    "lade",
    "lade, official",
    "causal_norm",
    "oltr",
    "bbn",
    "sharded lade",
)
INEXACT, LONG, RANDOM = "inexactly accumulated lade", "long", "dropout"
OTHER_JOBS = {
    INEXACT: (*JOBS["lade"], "train.accumulate=3"),
    LONG: ("method.name=softmax", "train.epochs=100000"),
    RANDOM: ("method.name=lade", "model.name=dropout_net", "train.epochs=60"),
}
WITHOUT_PIECES = {
    "accumulated softmax": "softmax",
    "accumulated causal_norm": "causal_norm",
    "exactly accumulated lade": "lade",
}
"""Jobs that must end where another does that reads whole batches."""


class PlainNet(Backbone):
    """Two convolutions and no batch normalisation."""

    feature_dim = 8

    def __init__(self, in_channels: int = 1) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(in_channels, 4, 3, stride=2), nn.Tanh())
        self.tail = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Tanh(), MeanOverPositions())

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.tail(self.trunk(images))
        return features

    def split(self, at: TailPart, num_tails: int = 1) -> SplitBackbone:
        if at == "pooling":
            trunk, pool = nn.Sequential(self.trunk, self.tail[:2]), self.tail[2]
            return SplitBackbone(trunk, (pool,), self.feature_dim)
        tails = self.several(self.tail, num_tails)
        return SplitBackbone(self.trunk, tails, self.feature_dim)


class DropoutNet(PlainNet):
    def __init__(self, in_channels: int = 1) -> None:
        super().__init__(in_channels)
        self.tail = nn.Sequential(self.tail, nn.Dropout(0.5))


def _train(folder: Path, name: str, **settings: Any) -> None:
    config = ts.load_recipe("digits_lt", [*COMMON, *(JOBS | OTHER_JOBS)[name]])
    ts.train(config, output=folder / name, **settings)


def _start(script: list[str], world_size: int) -> list[subprocess.Popen[str]]:
    """Start a command as torchrun would on one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
    }
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size))
    return [
        subprocess.Popen(
            [sys.executable, *script],
            env={**os.environ, **shared, **rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]


def _finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return exit codes, outputs and errors; no process is left running."""
    try:
        texts = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *t) for p, t in zip(processes, texts, strict=True)]


def _stop_after_an_epoch(processes: list[subprocess.Popen[str]], run: Path) -> None:
    """Tell one of two processes to end; both must, with the code of pre-emption."""
    deadline = time.monotonic() + 300
    while not (run / "metrics.jsonl").is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGTERM)
    done = _finish(processes)
    assert [code for code, _, _ in done] == [75, 75], done


def _run(folder: Path, world_size: int, *names: str) -> None:
    """Train in so many processes, one job after the other."""
    folder.mkdir(exist_ok=True)
    done = _finish(_start([__file__, str(folder), *names], world_size))
    assert [code for code, _, _ in done] == [0] * world_size, done


@pytest.fixture
def _plain_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._entries, "plain_net", PlainNet)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of each job's run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS._entries, "plain_net", PlainNet)
        for name in JOBS:
            _train(folder, name)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    _run(folder, 2, *JOBS)
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    _run(folder, 3, *BY_THREE)
    return folder


def _difference(run: Path, expected: Path) -> float:
    """Return the largest one of two runs' weights."""
    weights = load_file(run / "weights.safetensors")
    wanted = load_file(expected / "weights.safetensors")
    assert weights.keys() == wanted.keys()
    return max(float((weights[name] - wanted[name]).abs().max()) for name in wanted)


@pytest.mark.parametrize("name", JOBS)
def test_train__two_processes_come_to_the_weights_of_one(
    two: Path, alone: Path, name: str
) -> None:
    """With unequal and empty shares of the last batch, and rare classes on one."""
    assert _difference(two / name, alone / name) < 1e-8


@pytest.mark.parametrize("name", BY_THREE)
def test_train__three_processes_come_to_the_weights_of_one(
    three: Path, alone: Path, name: str
) -> None:
    assert _difference(three / name, alone / name) < 1e-8


@pytest.mark.parametrize("name", WITHOUT_PIECES)
def test_train__pieces_give_the_gradient_of_the_batch(alone: Path, name: str) -> None:
    assert _difference(alone / name, alone / WITHOUT_PIECES[name]) < 1e-8


@pytest.mark.usefixtures("_plain_net")
def test_train__pieces_without_exactness_are_another_regulariser(
    tmp_path: Path, alone: Path
) -> None:
    _train(tmp_path, INEXACT)
    assert _difference(tmp_path / INEXACT, alone / "lade") > 1e-4


@pytest.mark.usefixtures("_plain_net")
@pytest.mark.parametrize("name", ["lade", "oltr", "bbn"])
def test_train__same_records_as_one_process(two: Path, alone: Path, name: str) -> None:
    """Of metrics and logits: no sample is missing or twice, and all are in order."""
    found, expected = ts.load_run(two / name), ts.load_run(alone / name)
    own = {"plugins"}  # one of them registered the network itself
    assert found.facts.model_dump(exclude=own) == expected.facts.model_dump(exclude=own)
    for record, wanted in zip(found.metrics, expected.metrics, strict=True):
        assert record["loss"] == pytest.approx(wanted["loss"], abs=1e-8)
        assert record["train_accuracy"] == wanted["train_accuracy"]
    for split in ("val", "test"):
        logits, wanted_logits = (run.predictions(split) for run in (found, expected))
        assert torch.equal(logits.labels, wanted_logits.labels)
        torch.testing.assert_close(logits.logits, wanted_logits.logits)


def test_train__a_checkpoint_of_sharded_weights_is_that_of_one_process(
    two: Path, alone: Path
) -> None:
    """With momenta, so that any number of processes may resume from it."""
    name = "sharded lade"
    found, expected = (
        load_file(folder / name / "checkpoint.safetensors") for folder in (two, alone)
    )
    assert found.keys() == expected.keys()
    assert any(key.startswith("optimizer.") for key in found)
    for key in found.keys() - {"random.cpu"}:
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-8)


@pytest.mark.usefixtures("_plain_net")
@pytest.mark.parametrize("name", ["lade", "sharded lade"])
def test_train__resumed_with_another_number_of_processes(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Interrupted after seven steps in one process, ended in two."""
    steps = iter(range(7))

    def interrupt(*args: Any) -> None:
        if next(steps, None) == 6:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingProgress, "step", interrupt)
    _train(tmp_path, name)
    assert not ts.load_run(tmp_path / name).is_finished
    _run(tmp_path, 2, "--resume", name)
    assert ts.load_run(tmp_path / name).is_finished
    assert _difference(tmp_path / name, alone / name) < 1e-8


@pytest.mark.usefixtures("_plain_net")
def test_train__a_stop_of_one_process_stops_all(tmp_path: Path) -> None:
    """All end after the same step, with the run saved and the code of pre-emption."""
    processes = _start([__file__, str(tmp_path), LONG], 2)
    _stop_after_an_epoch(processes, tmp_path / LONG)
    assert ts.load_run(tmp_path / LONG).facts.state == "interrupted"


def test_train__dropout_draws_the_same_in_a_resumed_run(tmp_path: Path) -> None:
    """Stopped at any step by SIGTERM, resumed to the weights of a run that was not."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    _run(whole, 2, RANDOM)
    cut.mkdir()
    processes = _start([__file__, str(cut), RANDOM], 2)
    _stop_after_an_epoch(processes, cut / RANDOM)
    _run(cut, 2, "--resume", RANDOM)
    assert _difference(cut / RANDOM, whole / RANDOM) == 0


@pytest.mark.slow
def test_train__a_folder_that_is_taken_ends_all_processes(alone: Path) -> None:
    done = _finish(_start([__file__, str(alone), "softmax"], 2))
    for code, _, errors in done:
        assert code != 0
        assert "exists. Resume it (--resume)" in errors


def test_train__an_error_on_one_process_is_a_sentence_on_all(tmp_path: Path) -> None:
    """Only the first looks for the data; the other learns that the first has ended."""
    command = ["-m", "tailshift", "train", "places_lt_lade"]
    settings = ["--set", "train.accelerator=cpu", "--set", "model.pretrained=false"]
    root = ["--data-root", str(tmp_path), "--output", str(tmp_path / "run")]
    done = _finish(_start([*command, *settings, *root], 2))
    for code, _, errors in done:
        assert code == 2, errors
        assert "Traceback" not in errors
    assert "Places_LT_train.txt" in done[0][2]
    assert (
        "error: another process of this training has ended or cannot be reached. "
        "Its own output says why.\n"
    ) in done[1][2]


def test_report_lost_processes__leaves_other_errors() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), report_lost_processes():
        raise RuntimeError("out of memory")


def test_train__fabric_starts_the_command_again(tmp_path: Path) -> None:
    """One run directory, one report."""
    command = ["train", "digits_lt", "--output", str(tmp_path / "run")]
    settings = ["train.devices=2", "train.epochs=1", "train.accelerator=cpu"]
    sets = [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "tailshift", *command, *sets],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(tmp_path / "run")) == 1
    assert ts.load_run(tmp_path / "run").is_finished


@pytest.mark.slow
def test_train__under_torchrun(tmp_path: Path) -> None:
    """torchrun's number of processes goes before the configuration's."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = ["-m", "tailshift", "train", "digits_lt", "--output", str(tmp_path / "a")]
    settings = ["--set", "train.epochs=1", "--set", "train.accelerator=cpu"]
    done = subprocess.run(
        [*run, "--nproc-per-node", "2", *command, *settings],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(tmp_path / "a")) == 1
    assert ts.load_run(tmp_path / "a").config.train.devices == 1


@pytest.mark.parametrize(("code", "is_requeued"), [(75, True), (0, False), (2, False)])
def test_slurm_script__requeues_after_a_preemption(
    tmp_path: Path, code: int, is_requeued: bool
) -> None:
    """With stand-ins for Slurm's commands, and SIGTERM to the script on the way."""
    srun = f'echo "$@" > asked\nkill -TERM $PPID\nsleep 0.3\nexit {code}\n'
    for name, script in (("srun", srun), ("scontrol", 'echo "$@" > requeued\n')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"},
        check=False,
    )
    assert done.returncode == code
    assert (tmp_path / "requeued").is_file() == is_requeued
    if is_requeued:
        assert (tmp_path / "requeued").read_text() == "requeue 42\n"
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:3] == ["tailshift", "train", "imagenet_lt_lade_180ep"]
    assert asked[2] in recipe_names()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (3, 2)),
        ({"SLURM_NTASKS": "8"}, (3, 2)),  # a job without srun
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}, (4, 2)),
        (
            {
                "TORCHELASTIC_RUN_ID": "1",
                "LOCAL_WORLD_SIZE": "2",
                "WORLD_SIZE": "6",
                "SLURM_STEP_NUM_TASKS": "3",
                "SLURM_STEP_NUM_NODES": "3",
            },
            (2, 3),
        ),
    ],
)
def test_num_processes__who_started_them_knows(
    monkeypatch: pytest.MonkeyPatch,
    tiny_config: TinyConfig,
    environment: dict[str, str],
    expected: tuple[int, int],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = tiny_config("train.devices=3", "train.num_nodes=2")
    assert num_processes(config.train) == expected


def test_build_fabric__where_slurm_is_installed_and_not_used(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fabric would warn of it on every machine of a cluster that has srun."""
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fabric = build_fabric(tiny_config())
    assert fabric.world_size == 1


def test_check_machine__sync_batch_norm_on_a_cpu(tiny_config: TinyConfig) -> None:
    train = tiny_config("train.sync_batch_norm=true").train
    with pytest.raises(ValueError, match="sync") as error:
        check_machine(train, "cpu", 2)
    assert str(error.value) == (
        "`train.sync_batch_norm` must be false without GPUs, but is true on 'cpu'. "
        "Drop it: each process then normalises by its own images."
    )
    check_machine(train, "cuda", 2)


def test_check_machine__fewer_images_than_processes(tiny_config: TinyConfig) -> None:
    with pytest.raises(ValueError, match="batch_size") as error:
        check_machine(tiny_config("train.batch_size=3").train, "cpu", 4)
    assert str(error.value) == (
        "`train.batch_size` must be at least the number of processes, 4, but is 3: it "
        "is shared among them."
    )


def test_synchronise_batch_norm__where_it_is_asked_for(
    tiny_config: TinyConfig,
) -> None:
    on, off = (
        tiny_config(f"train.sync_batch_norm={is_on}") for is_on in ("true", "false")
    )
    for config, world_size, expected in ((off, 2, 0), (on, 1, 0), (on, 2, 1)):
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        weight = model[1].weight
        synchronise_batch_norm(model, config, 276, world_size)
        assert sum(isinstance(m, nn.SyncBatchNorm) for m in model) == expected
        assert model[1].weight is weight  # what the optimiser has


def test_synchronise_batch_norm__needs_an_image_a_process(
    tiny_config: TinyConfig,
) -> None:
    config = tiny_config("train.sync_batch_norm=true", "train.batch_size=55")
    with pytest.raises(ValueError, match="sync") as error:
        synchronise_batch_norm(nn.Sequential(), config, 276, 2)
    assert str(error.value) == (
        "`train.sync_batch_norm` needs an image for each process in every batch, but "
        "an epoch's last one has 1 for 2 processes. Set train.drop_last=true, or "
        "another batch size."
    )


def test_config__exact_accumulation_with_several_samplers(
    tiny_config: TinyConfig,
) -> None:
    with pytest.raises(ValueError, match="exact") as error:
        tiny_config("method.name=bbn", "train.exact_accumulation=true")
    assert str(error.value) == (
        "`train.exact_accumulation` must be false, since bbn reads the batches of "
        "several samplers at once, but is true. Its loss is a mean: the gradient is "
        "exact without."
    )


def test_train__exact_accumulation_needs_logits(
    tmp_path: Path, tiny_config: TinyConfig
) -> None:
    config = tiny_config(
        "method.name=sade",
        "train.accumulate=2",
        "train.exact_accumulation=true",
        "train.epochs=1",
    )
    with pytest.raises(ValueError, match="exact") as error:
        ts.train(config, output=tmp_path / "run")
    assert str(error.value) == (
        "`train.exact_accumulation` needs a network that returns only logits in "
        "training, but this one returns ExpertOutput. Drop it, or use smaller "
        "batches."
    )


def test_same_draws__leave_the_generator_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with same_draws(5, is_on=True):
        first = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    with same_draws(5, is_on=True):
        assert torch.equal(torch.rand(2), first)
    with same_draws(5, is_on=False):
        assert not torch.equal(torch.rand(2), first)


if __name__ == "__main__":  # a process that the tests start
    MODELS.register("plain_net")(PlainNet)
    MODELS.register("dropout_net")(DropoutNet)
    FOLDER, *NAMES = sys.argv[1:]
    IS_RESUMED = "--resume" in NAMES
    for NAME in NAMES:
        if NAME != "--resume":
            _train(Path(FOLDER), NAME, resume=IS_RESUMED)
