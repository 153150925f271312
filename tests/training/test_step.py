"""What a step sums up."""

from tailshift.training.step import StepSums


def test_step_sums__of_two_pieces() -> None:
    """Losses are weighted shares already; a stop in either is one."""
    first = StepSums(0.25, 2, 3, 6, is_stopped=False, is_preemption=False)
    second = StepSums(0.5, 1, 2, 4, is_stopped=True, is_preemption=True)
    assert first + second == StepSums(0.75, 3, 5, 10, True, True)
