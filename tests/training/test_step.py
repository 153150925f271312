"""Micro-batches, what reading them leaves behind, and the sums of a step."""

import pytest
import torch
from torch import Tensor, nn

from tailshift.processes import Processes
from tailshift.training.step import (
    Mixed,
    StepSums,
    joined,
    micro_batches,
    output_gradients,
    outputs_without_gradient,
)


def _mixed(size: int) -> Mixed:
    labels = torch.arange(size)
    return Mixed(labels[:, None].double(), labels, labels + 100, share=0.7)


def test_micro_batches__one_is_the_batch() -> None:
    mixed = _mixed(3)
    [(piece, weight)] = micro_batches(mixed, 1, Processes())
    assert piece is mixed
    assert weight == 1


@pytest.mark.parametrize(("size", "sizes"), [(7, [3, 2, 2]), (6, [2] * 3), (2, [1, 1])])
def test_micro_batches__take_every_sample_once(size: int, sizes: list[int]) -> None:
    """Fewer pieces than asked for, where samples are fewer."""
    pieces = micro_batches(_mixed(size), 3, Processes())
    assert [len(piece.samples.labels) for piece in pieces] == sizes
    assert [piece.weight for piece in pieces] == [n / size for n in sizes]
    whole = joined([piece.samples for piece in pieces])
    assert sorted(whole.labels.tolist()) == list(range(size))
    assert whole.other_labels is not None
    assert torch.equal(whole.other_labels, whole.labels + 100)
    assert whole.share == 0.7


def test_micro_batches__of_stacked_batches_are_stacked() -> None:
    """Two samplers' batches of four: each piece has a pair of both."""
    pieces = micro_batches(_mixed(8), 2, Processes(), num_parts=2)
    labels = [piece.samples.labels.tolist() for piece in pieces]
    assert labels == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_outputs_without_gradient__leave_the_model_and_the_generator() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5)).double()
    pieces = [piece.samples for piece in micro_batches(_mixed(8), 2, Processes())]
    state = torch.get_rng_state()
    logits = outputs_without_gradient(model, pieces)
    assert torch.equal(torch.get_rng_state(), state)
    assert model[0].num_batches_tracked == 0
    assert not model[0].running_mean.any()
    again = torch.cat([model(piece.images) for piece in pieces])
    assert torch.equal(logits, again)  # with the same units dropped


def test_output_gradients__are_those_of_the_whole() -> None:
    pieces = [piece.samples for piece in micro_batches(_mixed(5), 2, Processes())]
    logits = torch.randn(5, 2).double()

    def loss_of(f: Tensor) -> Tensor:
        return f.logsumexp(0).sum()  # no mean over samples

    loss, gradients = output_gradients(loss_of, logits.clone(), pieces)
    assert [len(gradient) for gradient in gradients] == [3, 2]
    torch.testing.assert_close(loss, loss_of(logits))
    torch.testing.assert_close(torch.cat(gradients), logits.softmax(0))


def test_step_sums__of_stacked_batches_either_label_is_right() -> None:
    """BBN's logits are of two images mixed: by the first one's label alone its accuracy
    falls to nothing as the schedule goes over to the second."""
    logits, loss = torch.eye(3), torch.tensor(0.5)
    labels = torch.tensor([0, 2, 0, 1, 1, 0])  # right: first, second, none
    assert StepSums.of(loss, logits, labels) == StepSums(0.5, 2, 3, 6)
    assert StepSums.of(loss, logits, labels[:3]) == StepSums(0.5, 1, 3, 3)
    nothing = torch.empty(0, dtype=torch.int64)
    assert StepSums.of(loss, torch.empty(0, 3), nothing) == StepSums(0.5, 0, 0, 0)


def test_step_sums__of_two_pieces() -> None:
    """Losses are weighted shares already; a stop in either is one."""
    first = StepSums(0.25, 2, 3, 6, is_stopped=False, is_preemption=False)
    second = StepSums(0.5, 1, 2, 4, is_stopped=True, is_preemption=True)
    assert first + second == StepSums(0.75, 3, 5, 10, True, True)
