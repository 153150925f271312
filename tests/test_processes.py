"""Losses over processes against the loss of the whole batch in one process."""

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tailshift.losses import (
    CrossEntropyLoss,
    LabelAwareSmoothing,
    LADELoss,
    Processes,
    SADELoss,
    centroid_loss,
    loss_over_processes,
    mixup_loss,
)
from tailshift.methods.oltr import OLTRLoss
from tailshift.models import CausalHead, MemoryOutput
from tailshift.training.distributed import destroy_process_groups

C, D = 12, 4
PRIOR = torch.arange(C, 0, -1, dtype=torch.float64) / (C * (C + 1) / 2)

PARTS = {
    "equal": ((0, 1, 2, 0), (3, 0, 1, 5)),
    "one class on one process only": ((0, 0, 0), (7, 8, 9)),
    "unequal": ((0, 1, 2, 0, 4, 4), (3,)),
    "an empty one": ((0, 1, 5), ()),
    "few of many classes": ((0,), (3,)),
    "three": ((0, 1), (2, 2, 2), (0,)),
    "three, two of them empty": ((11,), (), ()),
}
"""Labels of each process."""


def _lade(mode: str, alpha: float = 0.7) -> LADELoss:
    return LADELoss(PRIOR, alpha=alpha, lam=0.3, mode=mode)  # type: ignore[arg-type]


def _on_logits(loss: nn.Module) -> Callable[..., Tensor]:
    return lambda of, x, y: of(loss, x, y)


def _on_mixup(loss: nn.Module) -> Callable[..., Tensor]:
    """The blended images' other labels are any function of the sample."""

    def value(of: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
        return mixup_loss(lambda f, y: of(loss, f, y), x, y, (3 * y + 1) % C, 0.7)

    return value


def _on_memory(of: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Logits, features and centroids are all made of x, or of a constant."""
    centroids = torch.linspace(-1, 1, C * D, dtype=torch.float64).view(C, D)
    return of(OLTRLoss(0.5), MemoryOutput(x, x[:, :D], centroids), y)


def _on_experts(of: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    return of(SADELoss(PRIOR), torch.stack([x, 2 * x, x.square()]), y)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "softmax": _on_logits(CrossEntropyLoss()),
    "lade, paper": _on_logits(_lade("paper")),
    "lade, self_normalised": _on_logits(_lade("self_normalised")),
    "lade, official": _on_logits(_lade("official")),
    "lade, alpha 0": _on_logits(_lade("paper", alpha=0)),
    "lade, smoothed": _on_logits(LabelAwareSmoothing(_lade("paper"), range(1, C + 1))),
    "softmax, smoothed": _on_logits(
        LabelAwareSmoothing(CrossEntropyLoss(), range(1, C + 1))
    ),
    "lade, mixup": _on_mixup(_lade("paper")),
    "oltr": _on_memory,
    "sade": _on_experts,
}


def _features(labels: tuple[int, ...], rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(len(labels), D, generator=generator, dtype=torch.float64)
    return 3 * x


def _weight() -> Tensor:
    generator = torch.Generator().manual_seed(9)
    w = torch.randn(C, D, generator=generator, dtype=torch.float64)
    return w.requires_grad_()


def _results(
    parts: tuple[tuple[int, ...], ...], rank: int, world_size: int
) -> dict[tuple[str, bool], tuple[Tensor, Tensor]]:
    """Return each loss's value and gradient, averaged as data-parallel training does.

    With one process the parts are joined. Each loss is taken twice: where processes
    ask each other for labels, and where all are known.
    """
    if world_size == 1:
        x = torch.cat([_features(part, r) for r, part in enumerate(parts)])
        y = torch.tensor([label for part in parts for label in part])
    else:
        x = _features(parts[rank], rank)
        y = torch.tensor(parts[rank], dtype=torch.int64)
    processes = Processes(world_size, max_samples=max(map(len, parts)))

    def of(loss: Any, output: Any, labels: Tensor) -> Tensor:
        if world_size == 1:
            value: Tensor = loss(output, labels)
            return value
        return loss_over_processes(loss, output, labels, told)

    found = {}
    everyone = torch.tensor([label for part in parts for label in part])
    for name, is_known in itertools.product(LOSSES, (False, True)):
        w, told = _weight(), processes.knowing(y, everyone if is_known else None)
        value = LOSSES[name](of, x @ w.T, y)
        (gradient,) = torch.autograd.grad(value, w)
        found[name, is_known] = tuple(
            processes.sum(t) / world_size for t in (value.detach(), gradient)
        )
    return found


def _work(rank: int, world_size: int, folder: str) -> None:
    """Write what every process found."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-{world_size}",
        rank=rank,
        world_size=world_size,
    )
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        name: _results(parts, rank, world_size)
        for name, parts in PARTS.items()
        if len(parts) == world_size
    }
    found["causal"] = _moved_average(rank, Processes(world_size))
    torch.save(found, Path(folder) / f"{world_size}-{rank}.pt")
    destroy_process_groups()


def _moved_average(rank: int, processes: Processes) -> Tensor:
    """Of two batches; process r has r images of the first and 2 of the second."""
    head = CausalHead(D, C).double()
    head.gather_batches(processes)
    for batch, size in enumerate((rank, 2)):
        head(_features((0,) * size, 10 * batch + rank))
        head.end_batch()
    return head.mean_feature


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """Return what the processes wrote, by their number."""
    folder = tmp_path_factory.mktemp("processes")
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(world_size), str(folder)]
        )
        for world_size in (2, 3)
        for rank in range(world_size)
    ]
    assert [worker.wait(timeout=300) for worker in workers] == [0] * 5
    return {
        world_size: [
            torch.load(folder / f"{world_size}-{rank}.pt", weights_only=True)
            for rank in range(world_size)
        ]
        for world_size in (2, 3)
    }


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("parts", PARTS)
def test_loss_over_processes__is_that_of_the_whole_batch(
    found: dict[int, list[Any]], parts: str, loss: str, is_known: bool
) -> None:
    value, gradient = _results(PARTS[parts], 0, 1)[loss, False]
    for of_rank in found[len(PARTS[parts])]:
        over_value, over_gradient = of_rank[parts][loss, is_known]
        assert over_value.item() == pytest.approx(value.item(), rel=0, abs=1e-10)
        torch.testing.assert_close(over_gradient, gradient, rtol=0, atol=1e-10)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("world_size", [2, 3])
def test_causal_head__follows_the_mean_over_processes(
    found: dict[int, list[Any]], world_size: int
) -> None:
    expected = torch.zeros(D, dtype=torch.float64)
    for batch, sizes in enumerate((range(world_size), [2] * world_size)):
        features = [_features((0,) * n, 10 * batch + r) for r, n in enumerate(sizes)]
        expected = 0.9 * expected + torch.cat(features).mean(0)
    for of_rank in found[world_size]:
        torch.testing.assert_close(of_rank["causal"], expected, rtol=0, atol=1e-12)


def test_causal_head__one_batch_in_pieces_moves_it_once() -> None:
    x = torch.randn(5, D).double()
    whole, pieces = CausalHead(D, C).double(), CausalHead(D, C).double()
    whole(x)
    pieces.gather_batches(Processes())
    for piece in x.split(2):
        pieces(piece)
    assert pieces.mean_feature.abs().sum() == 0
    pieces.end_batch()
    torch.testing.assert_close(pieces.mean_feature, whole.mean_feature)


@pytest.mark.parametrize("loss", LOSSES)
def test_loss_over_processes__of_one_is_the_loss(loss: str) -> None:
    x, w = _features((0,) * 7, 0), _weight().detach()
    y = torch.tensor([0, 3, 3, 11, 5, 0, 1])
    alone = replace(Processes(), max_samples=9)

    def over(loss: Any, output: Any, labels: Tensor) -> Tensor:
        return loss_over_processes(loss, output, labels, alone)

    def plain(loss: Any, output: Any, labels: Tensor) -> Tensor:
        value: Tensor = loss(output, labels)
        return value

    value = LOSSES[loss](over, x @ w.T, y)
    torch.testing.assert_close(value, LOSSES[loss](plain, x @ w.T, y))


def test_processes__share_of_a_mean() -> None:
    assert Processes().share(torch.zeros(3), torch.zeros(())).item() == 1
    assert Processes().mean(torch.tensor([1.0, 2.0, 6.0])).item() == 3


def test_processes__reduction_by_hand() -> None:
    """As if one process were two: log(e^a + e^b) halves the gradient of equal parts."""

    class Two(Processes):
        def start_gather(self, values: Tensor) -> Callable[[], Tensor]:
            return lambda: torch.stack([values.detach(), values.detach()])

    logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    loss = LADELoss([0.5, 0.5], alpha=1.0, lam=0.0)
    value = loss.over_processes(logits, torch.tensor([0]), Two(2, max_samples=1))
    # CE = log 2; T_0 = log (e^0 + e^0)/2 = 0; the positive mean is 0.
    assert value.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(value, logits)
    # CE: (−1/2, 1/2). LADER: p_s (−1 + 1) for class 0, none for class 1.
    torch.testing.assert_close(gradient, torch.tensor([[-0.5, 0.5]]).double())


def test_processes__more_labels_than_said() -> None:
    with pytest.raises(ValueError, match="max_samples") as error:
        Processes(2, max_samples=1).labels(torch.tensor([0, 1]))
    assert str(error.value) == ("`labels` must be at most `max_samples`, 1, but are 2.")


def test_centroid_loss__empty_only_as_a_part() -> None:
    none, centroids = torch.zeros(0, 2), torch.zeros(3, 2)
    with pytest.raises(ValueError, match="empty"):
        centroid_loss(none, torch.zeros(0, dtype=torch.int64), centroids)


if __name__ == "__main__":  # a process that the tests start
    _work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
