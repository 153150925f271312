"""Weights spread over processes (FSDP): each holds a share, a layer is whole in use."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from tailshift.config import RunConfig

if TYPE_CHECKING:
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.device_mesh import DeviceMesh

PRECISIONS = ("32-true", "64-true", "bf16-mixed")
"""Those that sharded weights can be trained in."""


def check_sharding(config: RunConfig) -> None:
    """Refuse what cannot be trained with sharded weights."""
    train, num_stages = config.train, len(config.method.stages())
    if train.precision not in PRECISIONS:
        raise ValueError(
            f"`train.precision` must be one of {', '.join(PRECISIONS)} with "
            f"train.shard, but is {train.precision!r}. Use 'bf16-mixed'."
        )
    if num_stages > 1 and not train.start_from:
        raise ValueError(
            f"`train.shard` needs a method of one stage, but {config.method_name} has "
            f"{num_stages}. Train softmax with it, then start from that run (--from)."
        )


def sharding_strategy(world_size: int) -> "ModelParallelStrategy":
    """Return how Fabric shards a model over all processes."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    return ModelParallelStrategy(
        _shard, data_parallel_size=world_size, tensor_parallel_size=1
    )


def _shard(model: nn.Module, mesh: "DeviceMesh") -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    of_data = mesh["data_parallel"]
    for block in blocks(model):
        fully_shard(block, mesh=of_data)
    fully_shard(model, mesh=of_data)
    return model


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts that are gathered, used and let go one after the other.

    These are the members of the outermost sequences and lists of modules, such as a
    residual network's stages or a transformer's blocks.

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


def first_decides(decision: bool, device: torch.device) -> bool:
    """Return what the first process has decided, on all of them."""
    flag = torch.tensor([float(decision)], device=device)
    dist.broadcast(flag, src=0)
    return bool(flag.item())
