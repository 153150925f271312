"""The first Ctrl-C is a request, the second an interruption."""

import signal
import threading

import pytest

from tailshift.training.interrupt import exit_on_termination, stop_on_interrupt


@pytest.fixture(autouse=True)
def _usual_handler() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_stop_on_interrupt__first_requests_second_interrupts() -> None:
    with stop_on_interrupt() as stop:
        assert not stop.is_set
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_stop_on_interrupt__puts_the_handler_back() -> None:
    with stop_on_interrupt():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(RuntimeError), stop_on_interrupt():
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_stop_on_interrupt__in_a_thread_changes_nothing() -> None:
    seen = []

    def work() -> None:
        with stop_on_interrupt() as stop:
            seen.append((stop.is_set, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, signal.default_int_handler)]


def test_stop_on_interrupt__termination_is_told_apart() -> None:
    with stop_on_interrupt() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set
        assert stop.is_preemption
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # the second one ends
        signal.raise_signal(signal.SIGINT)
        assert stop.is_preemption
    with stop_on_interrupt() as stop:
        signal.raise_signal(signal.SIGINT)
        assert not stop.is_preemption
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_exit_on_termination__ends_with_75() -> None:
    with exit_on_termination():
        with stop_on_interrupt() as stop:  # has the first say
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_preemption
        with pytest.raises(SystemExit) as end:
            signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 75
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
