"""The cores, threads and memory that a process uses."""

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROC_CGROUP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
_MAX_FREE = 2**30
"""Bytes of free heap that are kept for the next buffers."""

_is_memory_kept = False


def num_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    The affinity mask of a scheduler and the CPU quota of a container both count.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, cpu_quota())))


def cpu_quota() -> float:
    """Return the cores that the control groups of this process allow; inf for all.

    The lowest quota of the process's group and of the groups above it applies.
    """
    try:
        lines = _PROC_CGROUP.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS
        group = root / name.lstrip("/")
        # Inside a container the group's own path may not be mounted; its root is.
        folders = [group, *group.parents, root]
        quotas += [_quota(f) for f in folders if f.is_relative_to(root)]
    return min(quotas)


def _quota(group: Path) -> float:
    """Return the quota of one control group, of version 2 or 1."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        cores = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # no file, or "max"
        return math.inf
    return cores if cores > 0 else math.inf  # version 1 writes -1 for no quota


def configure_command() -> None:
    """Set up threads and memory of the command line; call it before importing torch.

    OpenMP reads its variables once, when torch loads it. Threads that wait by spinning
    take the cores from the threads they wait for when other processes run too.
    Variables that the user has set are kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if num_cores() < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(num_cores()))
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let malloc keep large buffers that are freed, for the rest of the process."""
    global _is_memory_kept
    _is_memory_kept = _set_malloc({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: _MAX_FREE})


@contextmanager
def reusing_memory() -> Iterator[None]:
    """Let malloc keep large buffers that are freed, while the block runs.

    Use this around many passes through a network. By default glibc returns buffers
    above 32 MiB to the system at once, and the kernel clears the pages of the next
    one: that took half of the CPU time of feature extraction.
    """
    if _is_memory_kept:
        yield
        return
    _set_malloc({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: _MAX_FREE})
    try:
        yield
    finally:
        # What glibc's dynamic thresholds tend to: setting one has turned them off.
        _set_malloc(
            {_M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: 2**25, _M_TRIM_THRESHOLD: 2**26}
        )


def _set_malloc(options: dict[int, int]) -> bool:
    """Set options of glibc's malloc; return False where there is no glibc."""
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):  # musl
        return False
    results = [library.mallopt(key, value) for key, value in options.items()]
    return all(results)
