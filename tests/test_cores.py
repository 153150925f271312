"""Cores, threads and memory of a process."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailshift import cores


def _write_groups(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("group", "files", "quota"),
    [
        ("0::/job", {"job/cpu.max": "150000 100000"}, 1.5),
        ("0::/job", {"job/cpu.max": "max 100000"}, math.inf),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2.0),
        ("0::/not-mounted", {"cpu.max": "50000 100000"}, 0.5),
        (
            "4:cpu,cpuacct:/job",
            {
                "cpu/job/cpu.cfs_quota_us": "300000",
                "cpu/job/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        (
            "4:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
            math.inf,
        ),
        ("0::/", {}, math.inf),
    ],
)
def test_cpu_quota__of_both_versions_of_control_groups(
    group: str,
    files: dict[str, str],
    quota: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _write_groups(tmp_path, {**files, "proc": group})
    monkeypatch.setattr(cores, "_PROC_CGROUP", tmp_path / "proc")
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    assert cores.cpu_quota() == quota


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_num_cores__is_the_smaller_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    for quota, expected in ((math.inf, 8), (2.5, 2), (0.5, 1)):
        monkeypatch.setattr(cores, "cpu_quota", lambda quota=quota: quota)
        assert cores.num_cores() == expected


def _run(code: str, **variables: str) -> str:
    own = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=own | variables,
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout.strip()


def test_command_line__lets_threads_wait_passively_before_torch_is_loaded() -> None:
    code = (
        "import sys, os, tailshift.cores as c; real = c.configure_command\n"
        "def first():\n    assert 'torch' not in sys.modules\n    real()\n"
        "c.configure_command = first\n"
        "import tailshift.cli; print(os.environ['OMP_WAIT_POLICY'])"
    )
    assert _run(code) == "PASSIVE"
    assert _run(code, OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"


BUFFERS = """
import resource
from contextlib import nullcontext
import torch
from tailshift.cores import reusing_memory

def num_faults(block):
    with block:
        for _ in range(12):  # malloc's small remainders settle first
            torch.ones(2**24)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(12):
            torch.ones(2**24)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(num_faults(reusing_memory()), num_faults(nullcontext()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_reusing_memory__large_buffers_cause_no_page_faults_while_it_lasts() -> None:
    kept, after = map(int, _run(BUFFERS).split())
    assert kept < 1000
    assert after > 20 * max(kept, 1)  # given back to the system afterwards
