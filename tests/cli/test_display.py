"""What a run tells on a terminal, and elsewhere."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from helpers.runs import tiny

from sdpg import cli
from sdpg.cli.display import Display

Capture = pytest.CaptureFixture[str]


class _Terminal:
    """Reports to a display as a run does."""

    def __init__(self, display: Any):
        display("start", {"run": "r", "task": "cartpole", "iteration": 0, "threads": 1, "ranks": 1})
        for i in (1, 2):
            row = {"iteration": i, "seconds": 3600.0 * i, "Train/mean_reward": 1.0, "Train/mean_episode_length": 9.0}
            display("iteration", row | {"Perf/total_fps": 1000.0})
        display("warning", {"message": "careful"})
        display("end", {"reason": "minutes", "iteration": 2, "seconds": 9.0, "run": "r"})


def test_the_live_display(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    with Display(tiny(iterations=100, minutes=130.0), to_stderr=False, quiet=False) as display:
        assert display.live is not None
        _Terminal(display)
    out = capsys.readouterr().out
    assert "2/100" in out
    assert "2:00:00 gone, 10:00 left" in out
    assert "time is up" in out


def test_the_plain_display_is_sparing(capsys: Capture) -> None:
    with Display(tiny(iterations=100), to_stderr=False, quiet=False) as display:
        _Terminal(display)
    out, err = capsys.readouterr()
    assert "iteration 1/100" in out
    assert "iteration 2/100" not in out  # not yet ten seconds later
    assert err == "warning: careful\n"


def test_slow_preparations_are_counted_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for terminal, words in ((False, ""), (True, "\rlevels: 1 of 2\r\033[K")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        cli._tell("levels", 1, 2)
        cli._tell("levels", 2, 2)
        assert capsys.readouterr().err == words
