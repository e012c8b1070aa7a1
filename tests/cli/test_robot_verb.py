"""`sdpg robot`: mistakes are one line and exit code 2."""

from __future__ import annotations

import importlib.util

import pytest

from sdpg.cli import main, robots


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "which robot? sdpg robot go2"),
        (["spot"], "there is no spot"),
        (["go2", "--terrain", "moon"], "terrain must be of plain, slope_up"),
        (["go2", "--level", "10"], "level must be from 0 to 9, not 10"),
        (["go2", "--loss", "1.5"], "loss must be between 0 and 1, not 1.5"),
        (["go2", "--latency", "-1"], "latency must be at least 0, not -1.0"),
        (["go2", "--watchdog", "0"], "watchdog must be positive, not 0.0"),
        (["go2", "--domain", "400"], "domain must be from 0 to 230, not 400"),
        (["go2", "--interface", "nowhere0", "--no-camera"], "DDS can't begin on the interface 'nowhere0', domain 1"),
        (["go2", "--report", "/proc/none/report.json"], "give another --report"),
        (["go2", "--sensor.holes", "2"], "holes must be from 0 to 1, not 2.0"),
        (["go2", "--seconds", "0", "--no-camera", "--domain", "230"], "stopped before its first step"),
        (["go2", "--los", "0.1"], "did you mean --loss?"),
    ],
)
def test_mistakes(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cyclonedds", reason="needs cyclonedds: pip install 'sdpg[robot]'")
    assert main(["robot", *argv]) == 2
    line = capsys.readouterr().err
    assert says in line and line.count("\n") == 1


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(robots, "find_spec", lambda name: None if name == "cyclonedds" else real(name))
    assert main(["robot", "go2"]) == 2
    assert "pip install 'sdpg[robot]'" in capsys.readouterr().err
