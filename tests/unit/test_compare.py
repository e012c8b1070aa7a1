"""The curves of several runs: what is averaged, what is drawn, what the page holds."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import make_run

from sdpg.cli import main
from sdpg.errors import SdpgError
from sdpg.report import curves
from sdpg.report.compare import PANELS, Options, compare
from sdpg.report.curves import Line
from sdpg.run.resume import RESUMABLE

Capture = pytest.CaptureFixture[str]
NAN = float("nan")


# --- curves


def test_smoothing_is_the_mean_around_each() -> None:
    values = np.array([NAN, 1.0, 2.0, 6.0, NAN, 4.0])
    np.testing.assert_array_equal(curves.smooth(values, 1), values)
    # window 3: (1+2)/2, (1+2+6)/3, (2+6)/2, 4 alone beside the gap
    np.testing.assert_allclose(curves.smooth(values, 3), [NAN, 1.5, 3.0, 4.0, NAN, 4.0])
    # window 2 looks one ahead
    np.testing.assert_allclose(curves.smooth(values, 2), [NAN, 1.5, 4.0, 6.0, NAN, 4.0])
    np.testing.assert_allclose(curves.smooth(values, 100), [NAN, 3.25, 3.25, 3.25, NAN, 3.25])
    assert len(curves.smooth(np.array([]), 3)) == 0


def test_the_mean_of_runs_goes_as_far_as_all_of_them() -> None:
    short = Line("a", np.array([0.0, 1.0, 2.0, 3.0]), np.array([NAN, 10.0, 20.0, 30.0]))
    long = Line("a", np.array([1.0, 3.0, 5.0]), np.array([0.0, 20.0, 40.0]))
    line, rest = curves.mean([short, long, Line("a", np.array([]), np.array([]))])
    assert line.low is not None and line.high is not None
    np.testing.assert_array_equal(line.x, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(line.y, [5.0, 15.0, 25.0])
    np.testing.assert_allclose(line.low, [0.0, 10.0, 20.0])
    np.testing.assert_allclose(line.high, [10.0, 20.0, 30.0])
    assert rest.low is None
    np.testing.assert_array_equal(rest.y, [NAN, 20.0, 40.0])  # from where the other ends


def test_runs_that_share_nothing_have_no_mean() -> None:
    apart = curves.mean([Line("a", np.array([0.0, 1.0]), np.ones(2)), Line("a", np.array([3.0, 4.0]), np.ones(2))])
    assert [line.low for line in apart] == [None, None]
    assert all(np.isfinite(line.y).all() for line in apart)
    assert curves.mean([Line("a", np.array([NAN]), np.array([1.0]))]) == []


def test_one_run_is_its_own_mean() -> None:
    (line,) = curves.mean([Line("a", np.array([1.0, 2.0, 3.0]), np.array([NAN, 4.0, 5.0]))])
    np.testing.assert_array_equal(line.x, [2.0, 3.0])
    assert line.low is None


def test_images_of_older_runs_come_from_the_configuration(tmp_path: Path) -> None:
    pixels = make_run(tmp_path / "pixels", [1.0, 2.0], obs="pixels")  # N = 4, T = 8, one camera
    assert [row["Train/images"] for row in curves.load(pixels)[1]] == [32, 64]
    state = make_run(tmp_path / "state", [1.0])
    assert [row["Train/images"] for row in curves.load(state)[1]] == [0]
    unknown = make_run(tmp_path / "unknown", [1.0], obs="pixels", task="no_such_module:Task")
    assert [row["Train/images"] for row in curves.load(unknown)[1]] == [None]
    logged = make_run(tmp_path / "logged", [1.0], obs="pixels")
    (logged / "metrics.jsonl").write_text('{"iteration": 1, "seconds": 1.0, "Train/images": 5}\n')
    assert [row["Train/images"] for row in curves.load(logged)[1]] == [5]


# --- the files


class Page(HTMLParser):
    """What a browser would fetch, what scripts would read, and the cells of tables."""

    def __init__(self, text: str):
        super().__init__()
        self.fetched: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.data: dict[str, Any] = {}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        self.inside = "data" if named.get("id") == "data" else tag
        self.fetched += [value for name in ("src", "href") if (value := named.get(name))]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])

    def handle_data(self, data: str) -> None:
        if self.inside == "data":
            self.data = json.loads(data)
        elif self.inside in ("td", "th"):
            self.tables[-1][-1].append(data)
        self.inside = ""


def test_the_figure_and_the_page(tmp_path: Path, three: list[Path]) -> None:
    result = compare(Options(tuple(three), out=str(tmp_path / "out" / "x")))
    assert Path(result["png"]).read_bytes().startswith(b"\x89PNG")
    text = Path(result["html"]).read_text()
    page = Page(text)
    assert page.fetched and all(address.startswith("data:") for address in page.fetched)
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert str(tmp_path) not in text

    assert [series["label"] for series in page.data["series"]] == ["one", "two", "px/three"]
    assert [panel["caption"] for panel in page.data["panels"]] == list(PANELS.values())
    iterations, steps, images, minutes = (panel["lines"] for panel in page.data["panels"])
    assert [line["x"] for line in iterations] == [[2, 3], [1, 2, 3], [1, 2, 3]]
    assert [line["y"] for line in iterations] == [[2, 4], [1, 4, 8], [0, 9, 5]]
    assert [line["x"][-1] for line in steps] == [192, 192, 192]
    assert [(line["series"], line["x"]) for line in images] == [(2, [64, 128, 192])]  # N T = 4 x 16
    assert [line["x"][-1] for line in minutes] == [0.3, 0.15, 0.3]

    found, differing = page.tables
    assert found[0][:2] == ["run", "task"]
    last, highest, at = (found[0].index(name) for name in ("last", "highest", "at iteration"))
    assert [(row[0], row[last], row[highest], row[at]) for row in found[1:]] == [
        ("one", "4", "4", "3"), ("two", "8", "8", "3"), ("px/three", "5", "9", "2"),
    ]  # fmt: skip
    assert differing == [
        ["option", "one", "two", "px/three"],
        ["obs", "state", "state", "pixels"],
        ["seed", "0", "1", "0"],
        ["algo.horizon", "8", "8", "16"],
    ]
    assert result["differences"] == {"obs": ["state", "state", "pixels"], "seed": [0, 1, 0], "algo.horizon": [8, 8, 16]}


def test_seeds_become_a_mean_with_a_band(tmp_path: Path, three: list[Path]) -> None:
    """Options of the session, such as threads, do not part them."""
    other = make_run(tmp_path / "runs" / "four", [3.0, 6.0], seed=2, threads=2, iterations=2)
    result = compare(Options((*three, other), out=str(tmp_path / "x"), group=True), RESUMABLE)
    assert [run["label"] for run in result["runs"]] == [
        "one and 2 more", "one and 2 more", "px/three", "one and 2 more",
    ]  # fmt: skip
    page = Page(Path(result["html"]).read_text())
    mean, one, two, four, alone = page.data["panels"][0]["lines"]
    assert mean == {"series": 0, "x": [2], "y": [4], "low": [2], "high": [6]}  # one begins at 2, four ends there
    assert (one["x"], one["y"]) == ([2, 3], [2, 4])
    assert (two["x"], two["y"]) == ([1, 2, 3], [1, 4, 8])
    assert (four["x"], four["y"]) == ([1, 2], [3, None])
    assert (alone["series"], alone["y"]) == (1, [0, 9, 5])
    assert page.tables[0][0][:2] == ["run", "line"]


def test_without_a_session_threads_do_part_them(tmp_path: Path) -> None:
    pair = [make_run(tmp_path / str(i), [1.0], seed=i, threads=i) for i in (1, 2)]
    assert [run["label"] for run in compare(Options(tuple(pair), str(tmp_path / "x"), group=True))["runs"]] == [
        "1",
        "2",
    ]


def test_smoothing_and_other_metrics(tmp_path: Path, three: list[Path]) -> None:
    result = compare(Options(tuple(three[:2]), str(tmp_path / "x"), metric="Loss/actor", smooth=3))
    page = Page(Path(result["html"]).read_text())
    assert page.data["panels"][0]["lines"][0]["y"] == pytest.approx([0.75, 0.61111, 0.41667])
    assert result["runs"][0]["last"] == pytest.approx(1 / 3, rel=1e-4)  # numbers are as logged
    assert page.data["panels"][2]["lines"] == []
    assert page.data["panels"][2]["nothing"] == "no run renders images"


def test_a_long_curve_is_thinned_on_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "long", [float(i) for i in range(1, 4001)], iterations=4000)
    lines = Page(Path(compare(Options((run,), str(tmp_path / "x")))["html"]).read_text()).data["panels"][0]["lines"]
    assert len(lines[0]["x"]) <= 500 and lines[0]["x"][-1] == lines[0]["y"][-1] == 4000


def test_names_can_not_break_the_page(tmp_path: Path) -> None:
    name = "</script><img src=x>{{png}}"  # as a path, a folder named "<" with one below it
    evil = make_run(tmp_path / name, [1.0], seed=1, task=name)
    other = make_run(tmp_path / "b", [1.0], seed=2)
    page = Page(Path(compare(Options((evil, other), str(tmp_path / "x")))["html"]).read_text())
    assert page.data["series"][0]["label"] == name
    assert len(page.fetched) == 1 and page.tables[0][1][1] == name


def test_runs_without_rows_or_status(tmp_path: Path, three: list[Path]) -> None:
    empty = make_run(tmp_path / "runs" / "empty")
    result = compare(Options((three[1], empty), str(tmp_path / "x")))
    assert [(run["iteration"], run["last"]) for run in result["runs"]] == [(3, 8.0), (None, None)]


def test_bad_input_in_plain_words(tmp_path: Path, three: list[Path]) -> None:
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(SdpgError, match=match):
            compare(Options(**({"runs": tuple(three), "out": str(tmp_path / "never")} | options)))

    refused("which runs", runs=())
    refused("smooth must be at least 1, not 0", smooth=0)
    refused("out must not be empty", out="")
    refused("'deep/' is a folder; .*deep/compare", out="deep/")
    refused("given twice", runs=(three[0], three[0] / ".." / "one"))
    refused("no run folder", runs=(tmp_path / "nowhere",))
    refused("did you mean Train/mean_reward", metric="Train/mean_rewards")
    refused("docs/metrics.md", metric="zzz")
    (three[0] / "metrics.jsonl").unlink()
    refused("has no curve")
    assert not list(tmp_path.glob("never*"))


def test_the_verb(tmp_path: Path, three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *map(str, three), "--smooth", "2", "--group"]) == 0
    out = capsys.readouterr().out
    assert "Train/mean_reward in compare.png and compare.html" in out and "px/three" in out
    assert main(["compare", "--out", "deep/y", "runs/one", "runs/two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["html"] == "deep/y.html"
    assert (tmp_path / "deep" / "y.png").exists()
    assert main(["compare"]) == 2
    assert "which runs?" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["compare", "runs/one", "--out", "file/x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
