"""The scripts of our pages, on every machine; test_browser.py has a proof in Chromium, where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import Page
from helpers.viewer import ask, look_until

from sdpg.report import compare
from sdpg.watch import browser
from sdpg.watch.browser import Server, Source

AT = "document.getElementById('{}')"


@pytest.fixture
def page(present: Callable[[Source], Server]) -> Page:
    """The viewer's, in front of a real one."""
    server = present(Source.find("cartpole", "zero", "last", seed=5))

    def carry(method: str, path: str, body: str | None) -> tuple[int, Mapping[str, str], bytes]:
        answer, content = ask(server, method, path, None if body is None else json.loads(body))
        return answer.status, dict(answer.getheaders()), content

    answer, html = ask(server, "GET", "/")
    assert answer.status == 200
    made = Page(html.decode(), carry)
    made.server = server  # type: ignore[attr-defined]
    return made


def server_of(page: Page) -> Server:
    return page.server  # type: ignore[attr-defined, no-any-return]


def text(page: Page, name: str) -> Any:
    return page.js(f"{AT.format(name)}.textContent")


def table(page: Page, name: str) -> list[list[str]]:
    return page.js(f"{AT.format(name)}.rows.map(row => row.cells.map(cell => cell.textContent))")


def test_the_viewer_shows_image_after_image_and_its_facts(page: Page) -> None:
    page.settle("document.title", "the <title> - sdpg view")
    assert text(page, "title") == "the <title>" and text(page, "policy") == "zero actions"
    page.settle(f"{AT.format('terms')}.rows.length", 3)
    assert [name for name, _ in table(page, "terms")] == ["upright", "centre", "calm"]
    (_, total), (_, step), (_, time) = table(page, "episode")
    assert float(total) > 0.0 and step.endswith(" / 300") and time.endswith(" s")
    page.settle(f"{AT.format('finished')}.rows[0].cells[0].textContent.startsWith('return ')", True)
    # Each asks for one that is newer than the last, shows it, and lets the one before go.
    asked = [path.removeprefix("/shot?after=") for method, path, _ in page.requests if path.startswith("/shot")]
    assert asked[0] == "" and [int(n) for n in asked[1:]] == sorted(int(n) for n in asked[1:])
    assert page.js(f"{AT.format('image')}.src").startswith("blob:")
    assert page.js("[URL.made - URL.revoked <= 1, URL.made > 3]") == [True, True]


def test_the_buttons_and_keys_of_the_viewer(page: Page) -> None:
    page.settle("document.title", "the <title> - sdpg view")
    assert page.js(f"{AT.format('step')}.disabled") is True
    page.do(f"{AT.format('pause')}.click()")
    page.settle(f"{AT.format('pause')}.textContent", "Play")
    assert ("POST", "/set", '{"paused":true}') in page.requests
    still = look_until(server_of(page), lambda facts: facts["controls"]["paused"])
    page.do(f"{AT.format('step')}.click()")
    look_until(server_of(page), lambda facts: facts["step"] == still["step"] + 1)
    page.do("document.onkeydown({ key: 'r', target: document.body, preventDefault() {} })")
    look_until(server_of(page), lambda facts: facts["step"] == 0)
    page.settle(f"{AT.format('episode')}.rows[1].cells[1].textContent", "0 / 300")
    page.do(f"Object.assign({AT.format('speed')}, {{ value: '0.5' }}).happen('change')")
    page.settle("controls.speed", 0.5)
    look_until(server_of(page), lambda facts: facts["controls"]["speed"] == 0.5)
    page.do("document.onkeydown({ key: ' ', target: document.body, preventDefault() {} })")
    page.settle(f"{AT.format('pause')}.textContent", "Pause")
    page.do("document.onkeydown({ key: 'r', ctrlKey: true, target: document.body })")  # the browser's own
    assert [path for _, path, _ in page.requests].count("/restart") == 1


def test_the_pointer_leads_the_camera(page: Page) -> None:
    page.settle("document.title", "the <title> - sdpg view")
    image = AT.format("image")
    page.do(f"{image}.happen('pointermove', {{ movementX: 9, movementY: 9 }})")  # no button is down
    page.do(f"{image}.happen('pointerdown', {{ pointerId: 1 }})")
    page.do(f"{image}.happen('pointermove', {{ movementX: -20, movementY: 1000 }})")
    page.do(f"{image}.happen('pointerup')")
    page.do(f"{image}.happen('wheel', {{ deltaY: -100 }})")
    page.settle("wishes.zoom === undefined && !sending", True)
    facts = look_until(server_of(page), lambda facts: facts["controls"]["zoom"] > 1.0)
    assert facts["controls"]["turn"] == pytest.approx(8.0) and facts["controls"]["tilt"] == 90.0
    page.do(f"{AT.format('home')}.click()")
    page.settle("!sending", True)
    look_until(server_of(page), lambda facts: (facts["controls"]["turn"], facts["controls"]["zoom"]) == (0.0, 1.0))


def test_a_viewer_that_ends_is_said_and_looked_for_again(page: Page) -> None:
    page.settle("document.title", "the <title> - sdpg view")

    def gone(*request: Any) -> Any:
        raise ConnectionRefusedError

    carry, page.carry = page.carry, gone
    page.settle("document.body.classList.contains('ended')", True)
    page.carry = carry
    page.settle("document.body.classList.contains('ended')", False)
    assert ("GET", "/shot?after=", None) in page.requests[-3:]  # whatever is new there


def test_an_id_that_the_page_has_not_is_noticed() -> None:
    with pytest.raises(Exception, match="null"):
        Page(browser.PAGE.read_text().replace('id="restart"', 'id="restarted"'), lambda *_: (204, {}, b""))


# --- compare


@pytest.fixture
def curves(three: list[Path], tmp_path: Path) -> Page:
    made = compare.compare(compare.Options(tuple(three), out=str(tmp_path / "out")))
    return Page(Path(made["html"]).read_text())


def drawn(page: Page) -> list[int]:
    """Lines of every panel."""
    return page.js(f"{AT.format('panels')}.all('figure').map(figure => figure.all('path').length)")


def test_the_comparison_draws_every_curve(curves: Page) -> None:
    assert drawn(curves) == [3, 3, 1, 3]
    colors = curves.js("data.series.map(series => series.color)")
    assert curves.js(f"{AT.format('panels')}.all('figure')[0].all('path').map(p => p.attributes.stroke)") == colors
    captions = curves.js(f"{AT.format('panels')}.all('figure').map(figure => figure.all('text')[0].textContent)")
    assert captions == list(compare.PANELS.values())
    # Of [0, 9, 5] over iterations 1 to 3: from corner to top to between, within the frame.
    path = curves.js(f"{AT.format('panels')}.all('figure')[0].all('path')[2].attributes.d")
    assert path == "M62.0,278.0L304.0,10.0L546.0,129.1"
    assert curves.requests == []


def test_runs_can_be_clicked_away(curves: Page) -> None:
    buttons = f"{AT.format('legend')}.children"
    assert curves.js(f"{buttons}.map(button => button.textContent)") == ["one", "two", "px/three"]
    curves.do(f"{buttons}[1].click()")
    assert drawn(curves) == [2, 2, 1, 2]
    assert curves.js(f"{buttons}.map(button => button.attributes['aria-pressed'])") == ["true", "false", "true"]
    curves.do(f"{buttons}[1].click()")
    assert drawn(curves) == [3, 3, 1, 3]
    curves.do(f"{buttons}[2].happen('dblclick')")
    assert drawn(curves) == [1, 1, 1, 1]


def test_values_stand_under_the_pointer(curves: Page) -> None:
    figure = f"{AT.format('panels')}.all('figure')[0]"
    curves.do(f"{figure}.all('svg')[0].happen('pointermove', {{ clientX: 304, clientY: 100 }})")
    tip = f"{figure}.all('div')[0]"
    assert curves.js(f"{tip}.style.display") == "block"
    assert curves.js(f"{tip}.children.map(line => line.textContent)") == [
        "iterations: 2", "one: 2", "two: 4", "px/three: 9",
    ]  # fmt: skip
    curves.do(f"{figure}.all('svg')[0].happen('pointerleave')")
    assert curves.js(f"{tip}.style.display") == "none"
