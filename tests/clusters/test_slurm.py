"""A real Slurm on this machine: jobs of two tasks, put back, ended early, in arrays.

``make test-slurm`` installs Debian's packages where it may, and runs it. A controller
and a node with their own state, keys and ports are started on the loopback interface,
and ended afterwards. It needs root; elsewhere the tests are skipped.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "docs" / "slurm.sh"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
TWO_TASKS = ("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1")
HERE = ("--gpus-per-node=0", "--time=10", "--open-mode=append")

CONFIGURATION = """
ClusterName=tailshift
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={state}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={state}/controller
SlurmdSpoolDir={state}/node
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
GresTypes=gpu
KillWait=20
SchedulerParameters=sched_interval=5,bf_interval=5
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
UNDER_WAY = {"PENDING", "RUNNING", "SIGNALING", "COMPLETING", "REQUEUED"}


class Slurm:
    """A controller and a node."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(state / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def run(self, *command: str, **environment: str) -> str:
        """Run a command; return what it prints."""
        done = subprocess.run(
            command,
            env={**self.environment, **environment},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def start(self) -> None:
        """Write keys and configuration, and start all three."""
        for name in ("controller", "node"):
            (self.state / name).mkdir()
        key = self.state / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        parts = ("socket=munge.sock", "pid-file=munged.pid", "log-file=munged.log")
        files = [f"--{part.replace('=', f'={self.state}/')}" for part in parts]
        seed = f"--seed-file={self.state}/munged.seed"
        self.run("munged", "--force", f"--key-file={key}", seed, *files)
        host, ports = socket.gethostname().split(".")[0], [_free_port(), _free_port()]
        text = CONFIGURATION.format(host=host, state=self.state, ports=ports)
        (self.state / "slurm.conf").write_text(text)
        self.run("slurmctld")
        self.run("slurmd")

    def stop(self) -> None:
        """End what has been started, the node's jobs first."""
        for name in ("slurmd", "slurmctld", "munged"):
            file = self.state / f"{name}.pid"
            if file.is_file():
                subprocess.run(["kill", file.read_text().strip()], check=False)

    def submit(
        self, script: Path, *arguments: str, options: tuple[str, ...] = (), **named: str
    ) -> str:
        """Submit a script; return the job's number."""
        command = ["sbatch", "--parsable", *HERE, *options, str(script), *arguments]
        return self.run(*command, **named)

    def show(self, job: str) -> dict[str, str]:
        """Return what the controller knows of a job."""
        text = self.run("scontrol", "show", "job", "-o", job)
        return dict(re.findall(r"(\S+?)=(\S+)", text.splitlines()[0]))

    def wait(self, job: str, seconds: float = 400) -> dict[str, str]:
        """Wait for a job's end."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.show(job)
            if found["JobState"] not in UNDER_WAY:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm cannot be had: there is no {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("Slurm's node must be started by root")
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:  # sockets: short names
        found = Slurm(Path(folder))
        try:
            found.start()
            deadline = time.monotonic() + 60
            while "idle" not in found.run("sinfo", "-h", "-o", "%T"):
                assert time.monotonic() < deadline, found.run("sinfo", "-R")
                time.sleep(0.5)
            yield found
        finally:
            found.stop()
            time.sleep(1)


Submit = Callable[..., str]


@pytest.fixture
def submit(slurm: Slurm, training: Any, tmp_path: Path) -> Submit:
    """Return a function that submits ``docs/slurm.sh`` as a job of two tasks."""

    def _submit(name: str, epochs: int, *options: str) -> str:
        run = tmp_path / name
        recipe, *rest = training.arguments(run, epochs)[1:]
        end = rest.index("--output")
        log = f"--output={tmp_path / name}.log"
        named = {"RECIPE": recipe, "OUTPUT": str(run)}
        options = (*TWO_TASKS, log, *options)
        return slurm.submit(SCRIPT, *rest[:end], options=options, **named)

    return _submit


def test_job__two_tasks_train_to_the_weights_of_one(
    slurm: Slurm, submit: Submit, training: Any, tmp_path: Path
) -> None:
    done = slurm.wait(submit("run", training.short))
    log = (tmp_path / "run.log").read_text()
    assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), log
    assert training.difference(tmp_path / "run", training.short) < 1e-8


def test_job__put_back_it_ends_bit_identical(
    slurm: Slurm, submit: Submit, training: Any, tmp_path: Path
) -> None:
    """A signal, a requeue and the warning before the time limit, one after the other.

    The second task of three jobs shares no sum with the first but through gloo, so any
    difference in the order of steps would show in the last bit.
    """
    assert slurm.wait(submit("whole", training.long))["JobState"] == "COMPLETED"
    whole = load_file(tmp_path / "whole" / "weights.safetensors")

    def signal(job: str) -> None:
        slurm.run("scancel", "--signal=TERM", job)

    def requeue(job: str) -> None:
        slurm.run("scontrol", "requeue", job)

    for name, act, options in (
        ("signal", signal, ()),
        ("requeue", requeue, ()),
        ("limit", None, ("--time=2", "--signal=TERM@60")),
    ):
        job = submit(name, training.long, *options)
        run = tmp_path / name
        if act is not None:
            file = run / "checkpoint.safetensors"
            training.wait_for(file.is_file, 300, "the first checkpoint")
            act(job)
        done = slurm.wait(job)
        log = (tmp_path / f"{name}.log").read_text()
        assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), log
        if act is not None:
            assert int(done["Restarts"]) >= 1, log
        weights = load_file(run / "weights.safetensors")
        assert all((weights[key] == whole[key]).all() for key in whole), name


def test_array__of_six_runs_one_fails_and_five_end(
    slurm: Slurm, write_cifar100: Callable[..., Path], tmp_path: Path
) -> None:
    root = write_cifar100(tmp_path / "data")
    listed = slurm.run("tailshift", "reproduce", "table2", "--quick", "--commands")
    commands = [line for line in listed.splitlines() if line.startswith("tailshift")]
    settings = f"--data-root {root} --set train.epochs=1 --set data.imbalance_ratio=4"
    lines = [f"{line} {settings}" for line in commands[:6]]
    lines[3] += " --set optim.lr=-1"
    (tmp_path / "commands").write_text("\n".join(lines) + "\n")
    script = tmp_path / "array.sh"
    script.write_text(
        "#!/bin/bash\n"
        f'cd {tmp_path}\neval "$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" commands)"\n'
    )
    log = f"--output={tmp_path}/%a.log"
    job = slurm.submit(script, options=("--array=1-6", "--ntasks=1", log))
    states = [slurm.wait(f"{job}_{number}")["JobState"] for number in range(1, 7)]
    assert states == [*["COMPLETED"] * 3, "FAILED", *["COMPLETED"] * 2]
    assert "`optim.lr`" in (tmp_path / "4.log").read_text()
    assert len(list(tmp_path.rglob("weights.safetensors"))) == 5
