"""Watch a policy in the browser: one page, on this machine only, with what `sdpg play` films, live.

The images are those of training's own renderers, so what stands beside the third-person view is what the policy sees,
pixel by pixel, and nothing needs OpenGL, a display or the network. Three parts: `Crane` holds the third-person camera,
`Show` plays the policy in the main thread, `Server` hands its newest image to browsers from threads of its own.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import sys
import threading
import time
import webbrowser
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import mujoco
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sdpg.algos.api import Policy
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.render.views import camera_id
from sdpg.run import checkpoint
from sdpg.run.policy import load_policy
from sdpg.sim.cpu import CpuSim
from sdpg.types import MOCAP
from sdpg.watch import player

HOST = "127.0.0.1"  # nobody else's machine can reach this one; a tunnel can
PORTS = range(8080, 8100)  # tried one after the other
FPS = 30  # at most: smooth enough, and half the work of a film
FINISHED = 8  # episodes whose returns are listed
IDLE = 1.0  # seconds without a browser that asks, after which nothing is computed
PATIENCE = 5.0  # seconds that a browser is kept waiting for a newer image
PAGE = Path(__file__).with_suffix(".html")

_RANGES = {"speed": (0.1, 8.0), "turn": (-math.inf, math.inf), "tilt": (-180.0, 180.0), "zoom": (0.25, 4.0)}


@dataclass(frozen=True)
class Controls:
    """What can be set from the page."""

    paused: bool = False
    speed: float = 1.0  # times real time
    turn: float = 0.0  # degrees about the vertical, from the task's own camera on
    tilt: float = 0.0  # degrees upwards
    zoom: float = 1.0  # 2: at half the distance

    def changed(self, wishes: Mapping[str, Any]) -> Controls:
        """With these fields; ValueError if one is unknown or of the wrong kind. Numbers out of range are clamped."""
        kinds = {item.name: type(item.default) for item in fields(self)}
        made: dict[str, Any] = {}
        for name, value in wishes.items():
            if kinds.get(name) is bool and isinstance(value, bool):
                made[name] = value
            elif kinds.get(name) is float and type(value) in (int, float) and math.isfinite(value):
                low, high = _RANGES[name]
                made[name] = min(max(float(value), low), high)
            else:
                raise ValueError(f"'{name}' can't be set to {value!r}")
        return replace(self, **made)


class Crane:
    """The task's film camera, which can be led around what it looks at and nearer to it.

    The camera rides on a mocap body of a second model of the scene: bodies like that are placed from outside, so that a
    renderer need not know of cameras that move freely.
    """

    NAME = "sdpg-crane"

    def __init__(self, env: BranchedEnv, size: int):
        assert isinstance(env.sim, CpuSim)
        spec = env.task.scene()
        spec.worldbody.add_body(name=self.NAME, mocap=True).add_camera(name=self.NAME)
        self._model = spec.compile()
        self._film = camera_id(self._model, env.task.camera)
        self._model.cam_fovy[camera_id(self._model, self.NAME)] = self._model.cam_fovy[self._film]
        # As if the body were not there: how far one sees depends on how large the scene is.
        self._model.stat.extent, self._model.stat.center[:] = env.sim.model.stat.extent, env.sim.model.stat.center
        self._data, self._env = mujoco.MjData(self._model), env
        self._renderer = make_renderer(self._model, 1, [View(self.NAME, size, size)], 1, params=env.task.params)

    def image(self, qpos: Tensor, controls: Controls) -> Tensor:
        """(3, S, S) uint8 of the state qpos (1, nq)."""
        own = self._copy_if_live()
        for name, values in own.items():
            getattr(self._data if name in MOCAP else self._model, name)[:] = values[0].numpy()
        position, rotation = self._pose(qpos, controls)
        quat = np.empty(4)
        mujoco.mju_mat2Quat(quat, rotation.flatten())
        own["mocap_pos"][0, -1], own["mocap_quat"][0, -1] = torch.from_numpy(position), torch.from_numpy(quat)
        if "cam_fovy" in own:
            own["cam_fovy"][0, -1] = own["cam_fovy"][0, self._film]
        rgb = self._renderer.render(qpos, own)[self.NAME].rgb
        assert rgb is not None
        return rgb[0]

    def _copy_if_live(self) -> dict[str, Tensor]:
        """What the world has of its own; the crane's body and camera, which come last, have what the model has."""
        known = {name: self._env.looks([name])[name] for name in self._renderer.varied}
        shared = {"mocap_pos": self._data.mocap_pos, "mocap_quat": self._data.mocap_quat}
        shared |= {name: getattr(self._model, name) for name in known if name not in shared}
        return {
            name: torch.cat((values, torch.from_numpy(shared[name][values.shape[1] :])[None].to(values)), dim=1)
            for name, values in known.items()
        }

    def _pose(self, qpos: Tensor, controls: Controls) -> tuple[np.ndarray, np.ndarray]:
        """Position (3,) and rotation (3, 3) of the camera: its columns are right, up, back."""
        model, data = self._model, self._data
        data.qpos[:] = qpos[0].cpu().numpy()
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        eye, film = data.cam_xpos[self._film], data.cam_xmat[self._film].reshape(3, 3)
        target, carrier = model.cam_targetbodyid[self._film], model.cam_bodyid[self._film]
        body = target if target >= 0 else carrier  # 0: the world
        aim = data.xpos[body] if body else model.stat.center
        ahead = float(np.dot(eye - aim, film[:, 2]))
        distance = ahead if ahead > 0.0 else model.stat.extent
        pivot = eye - distance * film[:, 2]  # on the line of sight: what is in the middle stays there
        # Never through the zenith, nor below the horizon, where there is nothing but the underside of the floor.
        height = math.degrees(math.asin(np.clip(film[2, 2], -1.0, 1.0)))
        tilt = math.radians(min(max(height + controls.tilt, min(height, 1.0)), max(height, 89.0)) - height)
        turn = math.radians(controls.turn)
        about_z = np.array([[math.cos(turn), -math.sin(turn), 0], [math.sin(turn), math.cos(turn), 0], [0, 0, 1]])
        about_x = np.array([[1, 0, 0], [0, math.cos(tilt), math.sin(tilt)], [0, -math.sin(tilt), math.cos(tilt)]])
        rotation = about_z @ film @ about_x
        return pivot + distance / controls.zoom * rotation[:, 2], rotation


@dataclass(frozen=True)
class Shot:
    """One image and what is to be read beside it."""

    number: int
    jpeg: bytes
    facts: dict[str, Any]


@dataclass
class Source:
    """Where the policy comes from: a run, whose newer checkpoints are taken up, or "random" and "zero" actions."""

    policy: Policy
    env: BranchedEnv
    label: str
    run: Path | None = None
    which: str = "last"
    folder: Path | None = None  # the checkpoint that is playing
    task: str | None = None  # as the user gave it

    @staticmethod
    def find(subject: str, kind: str | None, which: str, seed: int, task: str | None = None) -> Source:
        """Of the run `subject`, whose `task` must be given if it is not registered by name; with the `kind` "random" or
        "zero", of the task `subject`."""
        if kind is not None:
            policy, env = player.simple_policy(kind, subject, seed)
            return Source(policy, env, f"{kind} actions")
        run = Path(subject)
        folder = checkpoint.find(run, which)
        saved = checkpoint.load(folder)
        env = player.world_of(saved, seed, task)
        policy, label = load_policy(saved, env, task), f"iteration {saved.iteration}"
        return Source(policy, env, label, run, which, folder, task)

    def refresh(self) -> None:
        """Take up a newer checkpoint, if there is one. A run that just replaces or loses it is asked again later."""
        if self.run is None:
            return
        with contextlib.suppress(SdpgError):
            newest = checkpoint.find(self.run, self.which)
            if newest != self.folder:
                saved = checkpoint.load(newest)
                self.policy = load_policy(saved, self.env, self.task)
                self.label, self.folder = f"iteration {saved.iteration}", newest


class Show:
    """Plays a policy at the pace and from the side that the page asks for, as long as somebody looks."""

    def __init__(self, source: Source, title: str, size: int):
        self.source, self.title, self.env = source, title, source.env
        crane = Crane(self.env, size)
        self.player = player.Player(source.policy, self.env, lambda qpos: crane.image(qpos, self._drawn))
        self.controls = self._drawn = Controls()  # as wished, and as they are in the newest image
        self._finished: deque[tuple[float, int]] = deque(maxlen=FINISHED)
        self._orders: deque[str] = deque(maxlen=8)  # "restart" or "step", from the page
        self._changed = threading.Condition()  # guards all that follows, the controls and the orders
        self._asked, self._waiting = -math.inf, 0  # when a browser last asked; how many wait for an image
        self._shot = self._draw(0)

    # -- called by the server's threads

    def shot(self, after: int) -> Shot | None:
        """The newest image, once it is another than number `after`; None if there is no such for a while."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._shot.number != after, PATIENCE)
            self._waiting -= 1
            self._asked = time.monotonic()
            return self._shot if self._shot.number != after else None

    def set(self, wishes: Mapping[str, Any]) -> None:
        with self._changed:
            self.controls = self.controls.changed(wishes)
            self._changed.notify_all()

    def order(self, what: str) -> None:
        with self._changed:
            self._orders.append(what)
            self._changed.notify_all()

    # -- the loop, in the main thread

    def run(self, stop: Callable[[], bool], seconds: float | None = None) -> None:
        """Until `stop()`, or for some seconds."""
        torch.set_num_threads(1)  # one world gains nothing from more, and a run may be training beside it
        end = math.inf if seconds is None else time.monotonic() + seconds
        due = time.monotonic()
        while not stop() and time.monotonic() < end:
            with self._changed:
                order, controls = self._orders.popleft() if self._orders else "", self.controls
                playing = not controls.paused and (self._waiting > 0 or time.monotonic() - self._asked < IDLE)
                if not (order or playing or controls != self._drawn):
                    self._changed.wait(0.1)  # short: a signal only sets what stop() tells
                    due = time.monotonic()
                    continue
            period = 0.0
            if order == "restart":
                self.player.restart()
                self._begin()
            elif order == "step":
                self._advance(1)
            elif playing:
                per_step = self.env.task.step_seconds / controls.speed
                steps = max(1, round(1.0 / (per_step * FPS)))
                self._advance(steps)
                period = steps * per_step
            self._drawn = controls
            shot = self._draw(self._shot.number + 1)
            with self._changed:
                self._shot = shot
                self._changed.notify_all()
            # What can't keep pace plays slower; it does not run after the time that it lost.
            due = max(due + period, time.monotonic() - period)
            time.sleep(max(0.0, due - time.monotonic()))

    def _advance(self, steps: int) -> None:
        """So many steps, or to the end of the episode."""
        for _ in range(steps):
            if (ended := self.player.step()) is not None:
                self._finished.appendleft(ended)
                self._begin()
                return

    def _begin(self) -> None:
        """A new episode: only here does the policy change, so that a return belongs to one."""
        self.source.refresh()
        self.player.use(self.source.policy)

    def _draw(self, number: int) -> Shot:
        buffer = io.BytesIO()
        Image.fromarray(self.player.image()).save(buffer, "JPEG", quality=88, subsampling=0)
        task, steps = self.env.task, self.player.steps
        terms = {name: float(term[0, 0]) for name, term in self.player.terms.items()}
        measures = {name: float(values[0]) for name, values in self.env.measures().items()}
        facts = {
            "number": number,
            "title": self.title,
            "policy": self.source.label,
            "step": steps,
            "episode_steps": task.episode_steps,
            "seconds": steps * task.step_seconds,
            "return": self.player.total,
            "terms": _finite(terms),
            "measures": _finite(measures),
            "finished": [{"return": total, "length": length} for total, length in self._finished],
            "controls": asdict(self._drawn),
        }
        return Shot(number, buffer.getvalue(), facts)


def _finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


class Server(ThreadingHTTPServer):
    """On the loopback address, from its making on: a port that is taken is known before anything is compiled."""

    show: Show | None = None

    def __init__(self, port: int | None):
        for tried in PORTS if port is None else [port]:
            try:
                super().__init__((HOST, tried), _Handler)
                break
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                if port is None and getattr(error, "errno", None) == errno.EADDRINUSE:
                    continue
                raise SdpgError(f"port {tried} can't be used: {reason}; give another --port") from error
        else:
            raise SdpgError(f"the ports {PORTS[0]} to {PORTS[-1]} are all taken; give a free one by --port")

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def present(self, show: Show) -> None:
        """Answer browsers, in a thread, until the server is closed."""
        self.show = show
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def server_close(self) -> None:
        if self.show is not None:
            self.shutdown()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is nobody's error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """GET / the page; GET /shot?after=N an image, its facts in a header; POST /set controls; POST /restart, /step."""

    protocol_version = "HTTP/1.1"  # one connection for all images
    disable_nagle_algorithm = True  # else every image waits 40 ms for an acknowledgement
    timeout = 30.0  # seconds that a connection may be silent: each holds a thread
    server: Server

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            return self._answer(400, f"{error}\n".encode())
        if not self._from_here(link=url.path == "/"):
            return
        if url.path == "/":
            self._answer(200, PAGE.read_bytes(), "text/html; charset=utf-8")
        elif url.path == "/shot":
            shot = self._show.shot(_number(parse_qs(url.query).get("after", [""])[0]))
            if shot is None:
                self._answer(204)
            else:
                self._answer(200, shot.jpeg, "image/jpeg", {"Facts": json.dumps(shot.facts)})
        else:
            self._answer(404, b"nothing here; the page is /\n")

    def do_POST(self) -> None:
        length = _number(self.headers.get("Content-Length", "0"))
        if not 0 <= length <= 1000 or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # it stays unread
            return self._answer(413, b"too long\n")
        body = self.rfile.read(length)  # before anything is answered: what is left unread breaks the connection
        if not self._from_here():
            return
        if self.path in ("/restart", "/step"):
            self._show.order(self.path[1:])
            return self._answer(204)
        if self.path != "/set":
            return self._answer(404, b"nothing here\n")
        try:
            wishes = json.loads(body)
            if not isinstance(wishes, dict):
                raise ValueError("give a JSON object")
            self._show.set(wishes)
        except (ValueError, OverflowError, RecursionError) as error:
            return self._answer(400, f"{error}\n".encode())
        self._answer(204)

    @property
    def _show(self) -> Show:
        assert self.server.show is not None
        return self.server.show

    def _from_here(self, link: bool = False) -> bool:
        """Other sites that the user's browser has open can reach this address too: they have no business here. Browsers
        tell where a request comes from, if not by Origin. A `link` may be followed from anywhere, by the user."""
        host = self.headers.get("Host", "")
        same = self.headers.get("Origin", f"http://{host}") == f"http://{host}"
        same &= self.headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none") or (
            link and self.headers.get("Sec-Fetch-Dest") == "document"
        )
        if same and host.partition(":")[0] in ("localhost", HOST):
            return True
        self._answer(403, f"open http://localhost:{self.server.port}/ instead\n".encode())
        return False

    def _answer(
        self,
        code: int,
        body: bytes = b"",
        kind: str = "text/plain; charset=utf-8",
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(code)
        if code != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Only the command line prints."""


def _number(text: str) -> int:
    """A count as it stands in a request; -1 if it is none, or longer than any."""
    return int(text) if text.isdecimal() and len(text) < 16 else -1


def open_page(url: str) -> None:
    """In the desktop's browser; where there is no desktop, a browser for terminals would take this one."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
