"""A batch read in pieces, so that it fits into memory: micro-batches."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tailshift.losses import Processes
from tailshift.training.mixing import Mixed


class MicroBatch(NamedTuple):
    """A piece of a batch, and how much its loss counts."""

    samples: Mixed
    weight: float
    """Its samples on all processes, as a share of the batch."""


def micro_batches(
    mixed: Mixed, count: int, processes: Processes, *, num_parts: int = 1
) -> list[MicroBatch]:
    """Return a batch in pieces whose sizes differ by at most one sample a process.

    Every process gets as many pieces as the others; one of its own may be empty.

    Args:
        mixed: This process's part of the batch.
        count: How many pieces, fewer where there are not as many samples.
        processes: Those that train together.
        num_parts: Of a batch stacked from several samplers; pieces are stacked alike.

    Example:
        >>> mixed = Mixed(torch.zeros(5, 1), torch.arange(5))
        >>> pieces = micro_batches(mixed, 2, Processes())
        >>> [piece.samples.labels.tolist() for piece in pieces]
        [[0, 2, 4], [1, 3]]
        >>> [piece.weight for piece in pieces]
        [0.6, 0.4]
    """
    if count == 1:
        return [MicroBatch(mixed, 1.0)]
    rows = torch.arange(len(mixed.labels), device=mixed.labels.device)
    by_part = rows.view(num_parts, -1)
    pieces = [_rows(mixed, by_part[:, m::count].flatten()) for m in range(count)]
    sizes = torch.tensor([len(p.labels) for p in pieces], device=rows.device)
    totals = processes.sum(sizes).tolist()
    return [
        MicroBatch(piece, total / sum(totals))
        for piece, total in zip(pieces, totals, strict=True)
        if total
    ]


def _rows(mixed: Mixed, rows: Tensor) -> Mixed:
    others = mixed.other_labels
    return replace(
        mixed,
        images=mixed.images.index_select(0, rows),
        labels=mixed.labels.index_select(0, rows),
        other_labels=None if others is None else others.index_select(0, rows),
        all_labels=None,
    )


def joined(pieces: Sequence[Mixed]) -> Mixed:
    """Return the labels of all pieces, one after the other, without their images."""
    first = pieces[0]
    others = [p.other_labels for p in pieces if p.other_labels is not None]
    return replace(
        first,
        images=first.images[:0],
        labels=torch.cat([piece.labels for piece in pieces]),
        other_labels=torch.cat(others) if others else None,
    )


def outputs_without_gradient(model: nn.Module, pieces: Sequence[Mixed]) -> Tensor:
    """Return the logits of all pieces, (n, C), and leave the model as it was.

    Buffers, such as batch statistics, are put back, and so are random generators: the
    same pieces, read again, give the same logits.

    Args:
        model: In training mode.
        pieces: Of a batch.
    """
    before = [buffer.clone() for buffer in model.buffers()]
    device = pieces[0].images.device
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        logits = [_logits(model(piece.images)) for piece in pieces]
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.copy_(old)
    return torch.cat(logits)


def output_gradients(
    loss_of: Callable[[Tensor], Tensor], logits: Tensor, pieces: Sequence[Mixed]
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of the whole batch, and its gradient for each piece's logits.

    Args:
        loss_of: From logits (n, C) to a scalar.
        logits: Of all pieces, shape (n, C).
        pieces: How many rows each has.
    """
    logits = logits.requires_grad_()
    loss = loss_of(logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    sizes = [len(piece.labels) for piece in pieces]
    return loss.detach(), list(torch.split(gradient, sizes))


def _logits(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise ValueError(
            "`train.exact_accumulation` needs a network that gives logits alone in "
            f"training, but this one gives {type(output).__name__}. Leave it out, or "
            "take smaller batches."
        )
    return output
