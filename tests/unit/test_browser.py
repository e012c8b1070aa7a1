"""The page that shows a policy: what it answers, to whom, and that a browser can show it."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import subprocess_env, tiny
from helpers.viewer import SIZE, ask, look, look_until
from PIL import Image

from sdpg.build import make_env
from sdpg.cli import main
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.train import train
from sdpg.watch.browser import Controls, Crane, Server, Source, _Handler

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view") / "run"
    train(tiny("cartpole", "pixels", iterations=1), folder)
    return folder


# --- the camera


@pytest.mark.parametrize("task", ["cartpole", "ant"])
def test_the_crane_starts_as_the_film_camera(task: str) -> None:
    env = make_env(task, 1, seed=3, threads=1)
    qpos, camera = env.physics().qpos[:, 0], env.task.camera
    film = make_renderer(env.sim.model, 1, [View(camera, SIZE, SIZE)]).render(qpos)[camera].rgb
    ours = Crane(env, SIZE).image(qpos, Controls())
    assert film is not None and film[0].float().std() > 5
    # A quaternion in between: a pixel on an edge may fall to the other side.
    assert (film[0] != ours).float().mean() < 0.01


def test_the_crane_leads_around_what_it_looks_at() -> None:
    env = make_env("ant", 1, seed=3, threads=1)
    crane, qpos = Crane(env, SIZE), env.physics().qpos[:, 0]
    eye, rotation = crane._pose(qpos, Controls())
    distance = np.linalg.norm(eye - (eye - rotation[:, 2] * np.dot(eye - qpos[0, :3].numpy(), rotation[:, 2])))
    middle = eye - distance * rotation[:, 2]
    for controls, height in [
        (Controls(turn=90.0), eye[2]),
        (Controls(tilt=20.0), None),
        (Controls(zoom=2.0), None),
        (Controls(tilt=180.0), middle[2] + distance * np.sin(np.radians(89.0))),  # no farther than the zenith
        (Controls(tilt=-180.0), middle[2] + distance * np.sin(np.radians(1.0))),  # not below the floor
    ]:
        place, turned = crane._pose(qpos, controls)
        away = distance / controls.zoom
        np.testing.assert_allclose(place - away * turned[:, 2], middle, atol=1e-6)
        np.testing.assert_allclose(turned @ turned.T, np.eye(3), atol=1e-6)
        assert height is None or place[2] == pytest.approx(height, abs=1e-6)
    side, _ = crane._pose(qpos, Controls(turn=90.0))
    np.testing.assert_allclose((side - middle)[:2], [-(eye - middle)[1], (eye - middle)[0]], atol=1e-6)
    images = [crane.image(qpos, replace(Controls(), **wish)) for wish in ({}, {"turn": 90.0}, {"zoom": 2.0})]
    assert not torch.equal(images[0], images[1]) and not torch.equal(images[0], images[2])


def test_controls_clamp_numbers_and_refuse_the_rest() -> None:
    assert Controls().changed({"speed": 1000, "paused": True}) == Controls(paused=True, speed=8.0)
    for wishes in ({"speed": True}, {"speed": "2"}, {"paused": 1}, {"zoom": float("nan")}, {"volume": 1.0}):
        with pytest.raises(ValueError, match="can't be set"):
            Controls().changed(wishes)


# --- the page


def test_a_run_is_shown_beside_what_its_policy_sees(run: Path, present: Callable[[Source], Server]) -> None:
    server = present(Source.find(str(run), None, "last", seed=5))
    assert server.server_address[0] == "127.0.0.1"
    answer, page = ask(server, "GET", "/")
    assert answer.status == 200 and b"http" not in page  # nothing is loaded from elsewhere
    facts = look(server)
    assert (facts["title"], facts["policy"]) == ("the <title>", "iteration 1")
    _, jpeg = ask(server, "GET", "/shot")
    assert Image.open(io.BytesIO(jpeg)).size == (SIZE + 4 + SIZE // 3, SIZE)
    later = look(server, facts["number"])
    assert later["number"] > facts["number"]
    moved = look_until(server, lambda facts: facts["step"] > 3)
    assert set(moved["terms"]) == {"upright", "centre", "calm"} and moved["return"] > 0.0
    assert moved["seconds"] == pytest.approx(0.02 * moved["step"])


def test_pause_step_restart_and_camera(present: Callable[[Source], Server]) -> None:
    server = present(Source.find("cartpole", "zero", "last", seed=5))
    look_until(server, lambda facts: facts["step"] > 0)
    assert ask(server, "POST", "/set", {"paused": True, "speed": 0.5})[0].status == 204
    still = look_until(server, lambda facts: facts["controls"]["paused"])
    assert still["controls"]["speed"] == 0.5
    ask(server, "POST", "/step")
    stepped = look_until(server, lambda facts: facts["number"] > still["number"])
    assert stepped["step"] == still["step"] + 1
    _, before = ask(server, "GET", "/shot")
    ask(server, "POST", "/set", {"turn": 40.0})
    turned = look_until(server, lambda facts: facts["controls"]["turn"] == 40.0)
    assert turned["step"] == stepped["step"] and ask(server, "GET", "/shot")[1] != before
    ask(server, "POST", "/restart")
    again = look_until(server, lambda facts: facts["number"] > turned["number"])
    assert (again["step"], again["return"], again["finished"]) == (0, 0.0, [])
    ask(server, "POST", "/set", {"paused": False, "speed": 8})
    ended = look_until(server, lambda facts: facts["finished"] != [])  # nobody holds the pole
    assert ended["finished"][0]["length"] < 300


def test_nothing_is_computed_while_nobody_looks(present: Callable[[Source], Server]) -> None:
    server = present(Source.find("cartpole", "random", "last", seed=5))
    time.sleep(0.5)
    assert look(server)["step"] == 0
    look_until(server, lambda facts: facts["step"] > 0)


def test_a_run_that_trains_on_is_followed_from_episode_to_episode(
    tmp_path: Path, present: Callable[[Source], Server]
) -> None:
    cfg = tiny("cartpole", iterations=1)
    train(cfg, tmp_path / "run")
    server = present(Source.find(str(tmp_path / "run"), None, "last", seed=5))
    assert look(server)["policy"] == "iteration 1"
    train(replace(cfg, iterations=3), tmp_path / "run", resume=True)
    ask(server, "POST", "/restart")
    look_until(server, lambda facts: facts["policy"] == "iteration 3")
    shutil.rmtree(tmp_path / "run")  # it goes on with what it has
    ask(server, "POST", "/restart")
    look_until(server, lambda facts: facts["step"] > 2)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/", None, {"Host": "evil.example:8080"}, 403),  # a name that was made to point here
        ("POST", "/set", {"paused": True}, {"Origin": "http://evil.example"}, 403),  # a page of another site
        ("GET", "/shot", None, {"Sec-Fetch-Site": "cross-site"}, 403),  # an image in another site's page
        ("GET", "/", None, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, 403),
        ("POST", "/restart", None, {"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        ("POST", "/set", None, {"Content-Length": "9" * 5000}, 413),
        ("POST", "/set", None, {"Transfer-Encoding": "chunked"}, 413),
        ("POST", "/set", {"speed": "fast"}, {}, 400),
        ("POST", "/set", {"speed": 10**400}, {}, 400),
        ("POST", "/set", [1], {}, 400),
        ("POST", "/set", None, {"Content-Length": "2000"}, 413),
        ("GET", "/../config.json", None, {}, 404),
        ("POST", "/shutdown", None, {}, 404),
    ],
)
def test_strangers_and_nonsense_are_refused(
    method: str, path: str, body: Any, headers: dict[str, str], status: int, present: Callable[[Source], Server]
) -> None:
    server = present(Source.find("cartpole", "zero", "last", seed=5))
    answer, text = ask(server, method, path, body, **headers)
    assert answer.status == status and text.count(b"\n") == 1
    assert look(server)["controls"] == look(server)["controls"] | {"paused": False, "speed": 1.0}


def test_a_link_may_be_followed_and_a_silly_number_is_none(present: Callable[[Source], Server]) -> None:
    server = present(Source.find("cartpole", "zero", "last", seed=5))
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert ask(server, "GET", "/", **followed)[0].status == 200
    assert ask(server, "GET", "/shot", **followed)[0].status == 403
    assert ask(server, "GET", "/shot", **{"Sec-Fetch-Site": "same-origin"})[0].status == 200
    assert look(server, "9" * 5000)["title"] == "the <title>"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_connection_that_falls_silent_is_closed(
    present: Callable[[Source], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _Handler.timeout is not None and _Handler.timeout <= 60
    monkeypatch.setattr(_Handler, "timeout", 0.05)
    server = present(Source.find("cartpole", "zero", "last", seed=5))
    for beginning in (b"", b"GET /sho", b"POST /set HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(beginning)
            assert connection.recv(100) == b""


# --- the verb


def test_view_says_where_and_how_to_tunnel(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "--port", "0", "--no-open", "--size", "96", "--seconds", "0.2"]) == 0
    where, tunnel = capsys.readouterr().out.splitlines()
    assert f"{run}, iteration 1: http://localhost:" in where
    port = where.split("localhost:")[1].split("/")[0]
    assert f"ssh -L {port}:localhost:{port} HOST" in tunnel


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["view"], "which run?"),
        (["view", "nowhere"], "no run folder"),
        (["view", "nosuchtask", "--policy", "zero"], "unknown task"),
        (["view", "hopper", "--policy", "zero", "--size", "8"], "size must be"),
        (["view", "hopper", "--policy", "zero", "--port", "99999"], "port must be between 0 and 65535"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_a_port_that_is_taken_is_said_or_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    with Server(None) as first, Server(None) as second:
        assert second.port > first.port >= 8080
        assert main(["view", "cartpole", "--policy", "zero", "--port", str(first.port)]) == 2
        err = capsys.readouterr().err
        assert "in use" in err and "give another --port" in err and err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(run: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "sdpg", "view", str(run), "--port", "0", "--no-open", "--size", "96"]
    with subprocess.Popen(
        argv, env=subprocess_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split("localhost:")[1].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)):  # a browser that stays connected holds nothing up
            process.send_signal(number)
            _, err = process.communicate(timeout=20)
    assert process.returncode == 0 and err == ""


# --- in a browser


class Browser:
    """Chromium without a window, led through its debugging pipe: messages of JSON that end with a zero byte."""

    def __init__(self, profile: Path):
        theirs_in, mine_out = os.pipe()
        mine_in, theirs_out = os.pipe()
        # It reads from the file descriptor 3 and writes to 4.
        shim = "import os, sys; r, w, *a = sys.argv[1:]; os.dup2(int(r), 3); os.dup2(int(w), 4); os.execv(a[0], a)"
        flags = f"--headless=new --no-sandbox --disable-gpu --window-size=700,500 --user-data-dir={profile}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", shim, str(theirs_in), str(theirs_out), str(CHROMIUM), *flags.split()]
            + ["--remote-debugging-pipe"],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.out, self.into = os.fdopen(mine_out, "wb", buffering=0), os.fdopen(mine_in, "rb")
        self.calls, self.session = 0, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": params, **self.session}
        self.out.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self.calls:
            pass  # an event
        assert "result" in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self.into.read(1)) != b"\0":
            assert byte, "chromium has ended"
            message += byte
        return json.loads(message)

    def js(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def js_until(self, expression: str, value: Any) -> None:
        end = time.monotonic() + 30
        while (found := self.js(expression)) != value:
            assert time.monotonic() < end, f"{expression} is {found!r}"
            time.sleep(0.05)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **{"button": "left", "buttons": 1, **more})

    def screenshot(self) -> np.ndarray:
        """(H, W, 3) float32."""
        png = base64.b64decode(self.call("Page.captureScreenshot")["data"])
        return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.float32)

    def close(self) -> None:
        self.out.close()  # it ends, with all its processes
        self.process.wait(20)
        self.into.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_browser_shows_it_and_sets_it(run: Path, tmp_path: Path, present: Callable[[Source], Server]) -> None:
    server = present(Source.find(str(run), None, "last", seed=5))
    browser = Browser(tmp_path / "profile")
    try:
        browser.call("Page.navigate", url=f"http://localhost:{server.port}/")
        browser.js_until("document.getElementById('title').textContent", "the <title>")
        browser.js("document.getElementById('pause').click()")
        browser.js_until("document.getElementById('pause').textContent", "Play")
        browser.js("document.getElementById('restart').click()")
        browser.js_until("document.getElementById('episode').rows[1].cells[1].textContent", "0 / 300")
        browser.js("document.getElementById('step').click()")
        browser.js_until("document.getElementById('terms').rows.length", 3)

        left, top = browser.js("(r => [r.x, r.y])(document.getElementById('image').getBoundingClientRect())")
        browser.mouse("Pressed", left + 50, top + 50, clickCount=1)
        browser.mouse("Moved", left + 30, top + 50)
        browser.mouse("Released", left + 30, top + 50)
        browser.mouse("Wheel", left + 30, top + 50, deltaX=0, deltaY=-100)
        facts = look_until(server, lambda facts: facts["controls"]["zoom"] > 1.0)
        assert facts["controls"]["turn"] == pytest.approx(8.0)

        # What stands on the page is the server's newest image.
        browser.js_until("shown", facts["number"])
        page, image = browser.screenshot(), Image.open(io.BytesIO(ask(server, "GET", "/shot")[1]))
        x, y, (width, height) = round(left), round(top), image.size
        part = page[y : y + height, x : x + width]
        assert part.std() > 10
        assert np.abs(part - np.asarray(image, dtype=np.float32)).mean() < 2.0  # its corners are rounded
    finally:
        browser.close()
