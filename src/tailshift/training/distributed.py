"""Distributed training: start processes, share data between them, shard weights."""

import atexit
import gc
import logging
import math
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from tailshift.config import RunConfig, TrainConfig
from tailshift.data import Batches
from tailshift.data.randomness import Stream, hashed_integers
from tailshift.processes import Processes
from tailshift.runs.directory import open_directory

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.device_mesh import DeviceMesh

_PRECISIONS = ("32-true", "64-true", "bf16-mixed")
"""Precisions for sharded weights."""


def build_fabric(config: RunConfig) -> "Fabric":
    """Return the launched Fabric: device, precision and processes.

    Processes started by torchrun or srun join each other. Otherwise the command is
    started again for each of ``train.devices`` beyond the first.
    """
    from lightning_fabric import Fabric  # its import takes seconds

    config = config.in_precision(machine_precision(config.train.accelerator))
    train = config.train
    devices, num_nodes = num_processes(train)
    logging.getLogger("lightning_fabric").setLevel(
        logging.WARNING
    )  # tailshift prints its own messages
    try:
        with warnings.catch_warnings():
            # Training without Slurm is fine where Slurm is installed.
            warnings.filterwarnings("ignore", "The `srun` command is available")
            fabric = Fabric(
                accelerator=train.accelerator,
                devices=devices,
                num_nodes=num_nodes,
                **_strategy(config, devices * num_nodes),
            )
    except RuntimeError:
        if train.accelerator in ("auto", "cpu"):
            raise
        raise ValueError(
            f"`train.accelerator` must be available, but {train.accelerator!r} is not "
            "on this machine. Use 'auto' or 'cpu'."
        ) from None
    check_machine(train, fabric.device.type, devices * num_nodes)
    if train.precision == "64-true":  # else Fabric would round logits to float32
        fabric.strategy.precision.convert_output = _unchanged  # type: ignore[method-assign] # of this instance
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(destroy_process_groups)
    return fabric


def machine_precision(accelerator: str) -> str:
    """Return the precision for ``"auto"``: bf16 if the hardware has it.

    Emulated bf16 is slower than float32. Older PyTorch versions do not report a CPU's
    capabilities.

    Args:
        accelerator: Value of ``train.accelerator``.

    Example:
        >>> machine_precision("mps")
        '32-true'
    """
    if accelerator == "auto":
        is_mps = torch.backends.mps.is_available()
        accelerator = (
            "mps" if is_mps else "cuda" if torch.cuda.is_available() else "cpu"
        )
    if accelerator == "cuda":
        has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(
            including_emulation=False
        )
    elif accelerator == "cpu":
        flags: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        has_bf16 = bool(flags.get("avx512_bf16") or flags.get("amx_bf16"))
    else:
        has_bf16 = False
    return "bf16-mixed" if has_bf16 else "32-true"


def destroy_process_groups() -> None:
    """Destroy PyTorch's process groups and their threads before Python ends.

    A thread of a group that needs Python during its shutdown would abort the process,
    and a finished run would look like a crashed one.
    """
    gc.collect()  # modules in reference cycles hold groups of their own
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.1)  # caches of DTensor keep groups: their threads end their work


def _strategy(config: RunConfig, world_size: int) -> dict[str, Any]:
    """Return Fabric's strategy and precision."""
    from lightning_fabric.plugins import DoublePrecision
    from lightning_fabric.strategies.ddp import DDPStrategy

    precision = config.train.precision
    timeout = timedelta(minutes=config.train.timeout_minutes)
    if world_size == 1:
        return {"precision": precision}
    if not config.train.shard:
        # Batch statistics are broadcast only when they are needed.
        ddp = DDPStrategy(
            timeout=timeout, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        return {"strategy": ddp, "precision": precision}
    check_sharding(config)
    sharded = _sharding_strategy(world_size, timeout)
    if precision == "64-true":  # Fabric takes it as a plugin only
        return {"strategy": sharded, "plugins": DoublePrecision()}
    return {"strategy": sharded, "precision": precision}


def _unchanged(data: Any) -> Any:
    return data


def num_processes(train: TrainConfig) -> tuple[int, int]:
    """Return the number of processes per machine, and the number of machines.

    torchrun and srun take precedence over the configuration, so a run can be resumed
    with another number of processes.
    """
    environment = os.environ
    if _is_torchrun():
        devices = int(environment["LOCAL_WORLD_SIZE"])
        return devices, int(environment["WORLD_SIZE"]) // devices
    if _is_srun():
        num_nodes = int(environment["SLURM_STEP_NUM_NODES"])
        return int(environment["SLURM_STEP_NUM_TASKS"]) // num_nodes, num_nodes
    return train.devices, train.num_nodes


def is_started_with_others() -> bool:
    """Return whether torchrun or srun has started other processes too."""
    return _is_torchrun() or _is_srun()


def _is_torchrun() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()


def _is_srun() -> bool:
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1  # only srun sets it


def check_machine(train: TrainConfig, device: str, world_size: int) -> None:
    """Reject settings that the machine or the number of processes does not allow."""
    if train.sync_batch_norm and device != "cuda":
        raise ValueError(
            "`train.sync_batch_norm` must be false without GPUs, but is true on "
            f"{device!r}. Drop it: each process then normalises by its own images."
        )
    if train.batch_size < world_size:
        raise ValueError(
            f"`train.batch_size` must be at least the number of processes, "
            f"{world_size}, but is {train.batch_size}: it is shared among them."
        )


def build_processes(config: RunConfig, fabric: "Fabric", num_parts: int) -> Processes:
    """Return the processes that train a stage.

    Args:
        config: Configuration with batch size and accumulation steps.
        fabric: Fabric with the number of processes.
        num_parts: Number of stacked batches per step.
    """
    train, world_size = config.train, fabric.world_size
    of_one = math.ceil(train.batch_size / world_size)
    if not train.exact_accumulation:
        of_one = math.ceil(of_one / train.accumulate)
    return Processes(world_size, max_samples=num_parts * of_one)


@contextmanager
def open_directory_together(
    fabric: "Fabric", directory: Path, config: RunConfig, *, resume: bool, force: bool
) -> Iterator[bool]:
    """Hold a run directory in the first process for all; see `open_directory`.

    If the directory is rejected, all processes end with the same error.

    Args:
        fabric: Fabric with the processes.
        directory: Run directory; created if it is missing.
        config: Configuration of the run.
        resume: Whether to resume an existing run.
        force: Whether to replace an existing run.
    """
    if not fabric.is_global_zero:
        is_resumed: bool | Exception = fabric.broadcast(False)
        if isinstance(is_resumed, Exception):
            raise is_resumed
        yield is_resumed
        return
    is_open = False
    try:
        with open_directory(directory, config, resume=resume, force=force) as resumed:
            is_open = True
            yield fabric.broadcast(resumed)
    except (OSError, ValueError) as error:
        if not is_open:
            fabric.broadcast(error)
        raise


@contextmanager
def report_lost_processes() -> Iterator[None]:
    """Replace the error after another process has ended by one sentence."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo/transport" in str(error)):
            raise
        raise ConnectionError(
            "another process of this training has ended or cannot be reached. Its "
            "own output says why."
        ) from error


def synchronise_batch_norm(
    model: nn.Module, config: RunConfig, num_images: int, world_size: int
) -> None:
    """Use synchronised batch normalisation, if configured.

    Args:
        model: Model to change in place.
        config: Configuration of the run.
        num_images: Number of images per epoch.
        world_size: Number of processes.
    """
    train = config.train
    if not train.sync_batch_norm or world_size == 1:
        return
    rest = num_images % train.batch_size
    if 0 < rest < world_size and not train.drop_last:
        raise ValueError(
            "`train.sync_batch_norm` needs an image for each process in every batch, "
            f"but an epoch's last one has {rest} for {world_size} processes. "
            "Set train.drop_last=true, or another batch size."
        )
    convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
    convert(model)  # in place, unless the model itself is a batch normalisation


def is_first_process() -> bool:
    """Return whether this process writes and prints."""
    is_joined = dist.is_available() and dist.is_initialized()
    return not is_joined or dist.get_rank() == 0


def share_buffers(module: nn.Module, fabric: "Fabric") -> None:
    """Broadcast the first process's buffers, such as batch statistics."""
    if fabric.world_size > 1:
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)


def broken_images(loader: Batches) -> int | None:
    """Return the number of images skipped by all processes; None if none can be."""
    if loader.num_broken is None or not dist.is_initialized():
        return loader.num_broken
    loaders = getattr(loader, "loaders", [loader])
    mine = {sample for one in loaders for sample in one.broken}
    everyone: list[set[int]] = [set() for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    return len(set().union(*everyone))


def gather_ids(mine: list[int]) -> list[int]:
    """Gather the ids of all processes, in the order of their ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        return mine
    everyone: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    return [number for numbers in everyone for number in numbers]


def step_key(stream: Stream, *, seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of a step's draws, which is the same in a resumed run.

    Example:
        >>> step_key(Stream.MIX, seed=0, step=1) == step_key(Stream.MIX, seed=1, step=0)
        False
    """
    return int(hashed_integers([rank], seed=seed, epoch=step, stream=stream)[0])


@contextmanager
def same_draws(seed: int, *, is_on: bool) -> Iterator[None]:
    """Seed PyTorch's generator while the block runs, if `is_on`.

    Processes with different generator states then draw the same numbers.
    """
    if not is_on:
        yield
        return
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


@contextmanager
def own_draws(key: int, *, is_on: bool) -> Iterator[None]:
    """Seed all generators with a key while the block runs, if `is_on`.

    A checkpoint has only the first process's generators, so the other processes' draws
    for a step (dropout) must not depend on their own.
    """
    if is_on and torch.cuda.is_available():
        torch.cuda.manual_seed(key)
    with same_draws(key, is_on=is_on):
        yield


def check_sharding(config: RunConfig) -> None:
    """Reject settings that do not work with sharded weights."""
    train, num_stages = config.train, len(config.method.stages())
    if train.precision not in _PRECISIONS:
        raise ValueError(
            f"`train.precision` must be one of {', '.join(_PRECISIONS)} with "
            f"train.shard, but is {train.precision!r}. Use 'bf16-mixed'."
        )
    if num_stages > 1 and not train.start_from:
        raise ValueError(
            "`train.shard` needs a method with one stage, but "
            f"{config.method_name} has {num_stages}. Train softmax with it, then start "
            "from that run (--from)."
        )


def _sharding_strategy(world_size: int, timeout: timedelta) -> "ModelParallelStrategy":
    """Return how Fabric shards a model over all processes."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    return ModelParallelStrategy(
        _shard,
        data_parallel_size=world_size,
        tensor_parallel_size=1,
        timeout=timeout,
    )


def _shard(model: nn.Module, mesh: "DeviceMesh") -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    of_data = mesh["data_parallel"]
    for block in blocks(model):
        fully_shard(block, mesh=of_data)
    fully_shard(model, mesh=of_data)
    return model


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts whose weights are gathered, used and freed one after the other.

    These are the members of the outermost sequences and lists of modules, such as the
    stages of a residual network or the blocks of a transformer.

    Example:
        >>> block = nn.Linear(2, 2)
        >>> list(blocks(nn.ModuleDict({"trunk": nn.Sequential(block, nn.ReLU())})))
        [Linear(in_features=2, out_features=2, bias=True)]
    """
    is_sequence = isinstance(model, nn.Sequential | nn.ModuleList)
    for child in model.children():
        if not is_sequence or isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def broadcast_decision(decision: bool, device: torch.device) -> bool:
    """Return the first process's decision on all processes."""
    flag = torch.tensor([float(decision)], device=device)
    dist.broadcast(flag, src=0)
    return bool(flag.item())
