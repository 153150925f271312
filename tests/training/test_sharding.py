"""Weights spread over processes: who holds what, and how the whole comes back.

That they train to the same weights as one process is in test_distributed.py.
"""

import os
import socket
from collections.abc import Callable

import pytest
import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

import tailshift as ts
from tailshift.models import Classifier, DigitsNet, LinearHead
from tailshift.processes import is_sharded, load_whole_state, whole, whole_state
from tailshift.training.distributed import (
    blocks,
    broadcast_decision,
    build_fabric,
    check_sharding,
    destroy_process_groups,
    gather_ids,
)

TinyConfig = Callable[..., ts.RunConfig]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return Classifier(DigitsNet(), LinearHead(128, 3))


def _work(rank: int, port: int, settings: list[str]) -> None:
    """Be one of two processes; what fails here fails the test."""
    environment = {
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        _look(rank, settings)
    destroy_process_groups()
    assert not torch.distributed.is_initialized()
    os._exit(0)  # how Python itself shuts down is not what is tested


def _look(rank: int, settings: list[str]) -> None:
    """Look at what one process holds; nothing of it lives on afterwards."""
    fabric = build_fabric(ts.load_recipe("digits_lt", settings))
    model, plain = _model(), _model().state_dict()
    fabric.setup_module(model)
    for weight in model.parameters():
        assert is_sharded(weight)
        most_rows = (len(weight) + 1) // 2
        assert len(weight.to_local()) in (most_rows, len(weight) - most_rows)
    _same(whole_state(model), plain)
    other = {name: value + 1 for name, value in plain.items()}
    load_whole_state(model, other)
    _same(whole_state(model), other)
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_whole_state(model, {**plain, "head.bias": torch.zeros(4)})
    assert broadcast_decision(rank == 0, fabric.device)
    assert not broadcast_decision(rank == 1, fabric.device)
    assert gather_ids([10, 11] if rank == 0 else [12]) == [10, 11, 12]


def _same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value)


def test_shard__each_process_holds_its_share_and_all_can_have_the_whole() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ["train.shard=true", "train.accelerator=cpu"]
    multiprocessing.spawn(_work, (port, settings), nprocs=2)


def test_whole__of_what_is_not_sharded_is_itself() -> None:
    model = _model()
    weight = next(model.parameters())
    assert whole(weight) is weight
    _same(whole_state(model), model.state_dict())


@pytest.mark.parametrize(
    ("name", "expected"), [("resnet32", 17), ("timm:vit_tiny_patch16_224", 12)]
)
def test_blocks__hold_almost_all_weights(
    name: str, expected: int, linear_model: Callable[..., Classifier]
) -> None:
    model = linear_model(name, 10)
    found = [p.numel() for block in blocks(model) for p in block.parameters()]
    assert len(list(blocks(model))) == expected
    assert sum(found) > 0.9 * sum(p.numel() for p in model.parameters())


def test_check_sharding__a_method_of_two_stages(tiny_config: TinyConfig) -> None:
    with pytest.raises(ValueError, match="stage") as error:
        check_sharding(tiny_config("method.name=crt"))
    assert str(error.value) == (
        "`train.shard` needs a method with one stage, but crt has 2. Train softmax "
        "with it, then start from that run (--from)."
    )
    check_sharding(tiny_config("method.name=crt", "train.start_from=run"))


def test_check_sharding__half_precision_with_a_scaler(tiny_config: TinyConfig) -> None:
    with pytest.raises(ValueError, match="precision") as error:
        check_sharding(tiny_config("train.precision=16-mixed"))
    assert str(error.value) == (
        "`train.precision` must be one of 32-true, 64-true, bf16-mixed with "
        "train.shard, but is '16-mixed'. Use 'bf16-mixed'."
    )
