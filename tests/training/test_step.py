"""What a step sums up."""

import torch

from tailshift.training.step import StepSums


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
