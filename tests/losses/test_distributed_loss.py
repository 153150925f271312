"""DistributedLoss in gloo processes under DDP, against one process with all of it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tailshift.losses import (
    BalancedSoftmaxLoss,
    CrossEntropyLoss,
    DistributedLoss,
    LADELoss,
    Loss,
)
from tailshift.training.distributed import destroy_process_groups

C, D = 6, 4
PRIOR = torch.arange(C, 0, -1, dtype=torch.float64) / (C * (C + 1) / 2)
PARTS = {"equal": (8, 8), "unequal": (11, 3), "an empty one": (5, 0)}
"""Samples of each process."""


def _losses() -> dict[str, Any]:
    def plain(f: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(f, y, label_smoothing=0.1)

    return {
        "lade, paper": LADELoss(PRIOR, alpha=0.7, lam=0.3),
        "lade, official": LADELoss(PRIOR, alpha=0.7, lam=0.3, mode="official"),
        "balanced softmax": BalancedSoftmaxLoss(PRIOR),
        "a function": plain,
    }


def _batch(parts: tuple[int, int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(parts))
    x = torch.randn(sum(parts), D, generator=generator, dtype=torch.float64)
    y = torch.randint(C, (sum(parts),), generator=generator).square() // C
    return 3 * x, y


def _gradient(loss: Loss, x: Tensor, y: Tensor, *, is_parallel: bool) -> Tensor:
    torch.manual_seed(7)
    model: nn.Module = nn.Linear(D, C).double()
    weight = model.weight
    if is_parallel:
        model = DistributedDataParallel(model)
    loss(model(x), y).backward()
    assert isinstance(weight.grad, Tensor)
    return weight.grad


def _work(rank: int, folder: str) -> None:
    """Write the gradient of each loss and batch that DDP leaves on this process."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    found: dict[str, Any] = {}
    for name, parts in PARTS.items():
        x, y = (whole.split(parts)[rank] for whole in _batch(parts))
        for loss_name, loss in _losses().items():
            for most in (None, 11):
                key = f"{name}, {loss_name}, {most}"
                joint = DistributedLoss(loss, max_samples=most)
                found[key] = _gradient(joint, x, y, is_parallel=True)
    x, y = _batch((4, 4))
    loss = DistributedLoss(_losses()["lade, paper"])
    if rank == 0:  # alone, as if it had a batch more: none may wait for the other
        with torch.no_grad():
            found["no gradient"] = loss(x[:, :1] + PRIOR, y)
        found["eval"] = loss.eval()(x[:, :1] + PRIOR, y)
    torch.save(found, Path(folder) / f"{rank}.pt")
    destroy_process_groups()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("distributed_loss")
    workers = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(folder)])
        for rank in range(2)
    ]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("most", [None, 11])
@pytest.mark.parametrize("loss", _losses())
@pytest.mark.parametrize("parts", PARTS)
def test_distributed_loss__gradient_is_that_of_the_whole_batch(
    found: list[dict[str, Tensor]], parts: str, loss: str, most: int | None
) -> None:
    expected = _gradient(
        DistributedLoss(_losses()[loss]), *_batch(PARTS[parts]), is_parallel=False
    )
    for of_rank in found:
        gradient = of_rank[f"{parts}, {loss}, {most}"]
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    assert expected.abs().max() > 1e-3


def test_distributed_loss__without_a_gradient_waits_for_nobody(
    found: list[dict[str, Tensor]],
) -> None:
    x, y = _batch((4, 4))
    expected = _losses()["lade, paper"](x[:, :1] + PRIOR, y)
    for name in ("no gradient", "eval"):
        torch.testing.assert_close(found[0][name], expected)


def test_distributed_loss__of_one_process_is_the_loss() -> None:
    x, y = _batch((4, 4))
    loss = _losses()["lade, paper"]
    joint = DistributedLoss(loss)
    assert joint(x[:, :1] + PRIOR, y) == loss(x[:, :1] + PRIOR, y)
    assert (joint.spans_batch, joint.takes_soft_targets) == (True, True)
    assert torch.equal(
        joint.class_losses(x[:, :1] + PRIOR), loss.class_losses(x[:, :1] + PRIOR)
    )


def test_distributed_loss__refuses_a_sum() -> None:
    with pytest.raises(ValueError, match="reduction") as error:
        DistributedLoss(CrossEntropyLoss(reduction="sum"))
    assert str(error.value) == (
        "`loss` must be a mean over samples to be taken over processes, but its "
        "reduction is 'sum'."
    )


if __name__ == "__main__":
    _work(int(sys.argv[1]), sys.argv[2])
