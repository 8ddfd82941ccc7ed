"""Ctrl-C and SIGTERM: first after the round, then at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from dp_fedmed.federation.stopping import StopRequest, on_ctrl_c


@pytest.fixture
def heard_ctrl_c() -> Iterator[None]:
    """Ctrl-C reaches this process even where the tests are a background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_ctrl_c")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_first_request_waits_for_the_round_only_while_there_are_rounds(
    sent: signal.Signals,
) -> None:
    stop, told = StopRequest(), threading.Event()
    with on_ctrl_c(stop):
        with stop.during_rounds(told.set):
            os.kill(os.getpid(), sent)
            assert told.wait(5)
            assert (stop.after_round, stop.at_once) == (True, False)
            os.kill(os.getpid(), signal.SIGTERM)
            assert not stop.at_once, "timeout sends it to the process and again to its group"
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert stop.at_once
    early = StopRequest()
    with on_ctrl_c(early), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), sent)


@pytest.mark.usefixtures("heard_ctrl_c")
def test_a_run_in_another_thread_is_asked_and_never_cut_off() -> None:
    stop = StopRequest()
    with on_ctrl_c(stop, in_thread=True), stop.during_rounds(lambda: None):
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.after_round, stop.at_once) == (True, False)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.at_once


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with on_ctrl_c(stop):
            os.kill(os.getpid(), signal.SIGINT)
        assert not stop.after_round
    finally:
        signal.signal(signal.SIGINT, before)
