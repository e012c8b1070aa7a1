"""`sdpg replay DUMP`: the last steps of a world that failed, once more, compared with what was recorded.

Physics runs on the recorded model with the recorded controls, and must come out the same bit for bit. Rewards and
observations are those of the task as it is now: after a mistake in it has been fixed, the replay no longer fails.

A dump may be a stranger's. Its task is imported if it is registered by name, or if the user names it, too. Its model is
used if it is the task's own scene, or if the user says so: engines believe a model, and one that lies crashes them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from sdpg.build import compile_scene, model_bytes, one_world
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.render.own import varied
from sdpg.run.failures import Dump, blame, fingerprint
from sdpg.run.provenance import versions
from sdpg.tasks.base import Task, make_task, named_in_file
from sdpg.watch.player import beside

FPS = 10  # of the film: slow motion, since 50 steps are often a single second
HOLD = 10  # images of the end


@dataclass(frozen=True)
class Replay:
    """What happened; steps count from 1."""

    qpos: Tensor  # (steps, nq) before each step
    own: dict[str, Tensor]  # what the world had of its own that is seen: (1, ...) each
    largest: list[float]  # |number| of qpos and qvel after each step
    reward: list[float]  # after each step; 0 where it failed
    failed: int | None  # the step in which it failed
    what: list[str]  # was wrong then
    departed: int | None  # the first step after which the physics was not as recorded
    model: mujoco.MjModel
    task: Task


@torch.no_grad()
def replay(dump: Dump, task: str | None = None, trust_model: bool = False) -> Replay:
    """`task`: the dump's, which must be given if it is not registered by name. `trust_model`: use the recorded model,
    whatever it is; else it must be the task's scene of today."""
    made = make_task(named_in_file(dump.about["task"], task))
    model = _model(dump, made, trust_model)
    env = _world(dump, made, model)
    qpos, largest, reward, failed, what, departed = [], [], [], None, [], None
    actions, controls = (x[:, None, None].to(env.device) for x in (dump.action, dump.control))  # (B, 1, 1, ...)
    for i, (action, control) in enumerate(zip(actions, controls, strict=True)):
        qpos.append(env.physics().qpos[0, 0].clone())
        step = env.step(action, control)
        x = env.physics()
        largest.append(torch.cat((x.qpos, x.qvel), dim=-1).abs().max().item())
        reward.append(step.reward.item())
        same = _same(fingerprint(env)[0, 0], dump.fingerprint[i])
        after = dump.end if i + 1 == len(dump.action) else dump.states[i + 1] if i + 1 < len(dump.states) else None
        if after is not None:  # between leaving its nominal and the end, a world's states were not recorded
            same = same and _same(env.column(0)["sim.state"][0], after)
        if departed is None and not same:
            departed = i + 1
        if step.failed.item():
            failed, what = i + 1, blame(env, action, step.terms, 0, 0)
            break
    own = env.looks(varied(model, env.task.params))
    return Replay(torch.stack(qpos), own, largest, reward, failed, what, departed, model, made)


def _model(dump: Dump, task: Task, trust: bool) -> mujoco.MjModel:
    """The recorded one, which no engine sees unless it is the task's own or the user trusts it."""
    own = compile_scene(task)
    if model_bytes(own) == dump.model:
        return own
    if not trust:
        raise SdpgError(
            f"the dump's model is not the scene of '{dump.about['task']}' as it is now, and an engine believes what a "
            "model says; if you know where the dump comes from (was the scene changed?), say so: --trust-model"
        )
    try:
        return mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": dump.model})
    except (ValueError, TypeError) as error:
        raise _misfit(dump, error) from error


def _world(dump: Dump, task: Task, model: mujoco.MjModel) -> BranchedEnv:
    """The world as it was before the first step."""
    try:
        about = dump.about
        env = one_world(task, model, about["seed"], about["row"], about["max_value"], about.get("sim", "cpu"))
        env.load_column(dump.start)
        steps = len(dump.fingerprint)
        if not steps or dump.action.shape != (steps, task.action_size) or dump.control.shape != (steps, env.sim.nu):
            raise ValueError("its actions or controls have another size")
        if not dump.action.is_floating_point() or not dump.control.is_floating_point():
            raise ValueError("its actions or controls are no numbers")
    except (KeyError, IndexError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise _misfit(dump, error) from error
    return env


def _misfit(dump: Dump, error: Exception) -> SdpgError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return SdpgError(
        f"the dump does not fit the task '{dump.about['task']}' of this version ({reason}); use those that it was "
        f"written with: {dump.about.get('versions')}"
    )


def _same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, on whatever devices, NaN being equal to NaN."""
    a, b = a.cpu(), b.cpu()
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def report(path: str, dump: Dump, played: Replay) -> dict[str, Any]:
    """The facts, for people and machines."""
    here, there = versions(), dump.about.get("versions")
    there = there if isinstance(there, dict) else {}
    steps = len(dump.action)
    return {
        "dump": path,
        **{name: dump.about[name] for name in ("task", "iteration", "row", "branch", "apart")},
        "steps": steps,
        "recorded": dump.about["what"],
        "reproduced": played.departed is None and played.failed == steps,
        "departed_at": played.departed,
        "failed_at": played.failed,
        "what": played.what,
        "reward": played.reward,
        "other_versions": {name: [there.get(name), here[name]] for name in here if there.get(name) != here[name]},
    }


def tell(facts: Mapping[str, Any]) -> list[str]:
    """The facts in a few lines."""
    world = f"row {facts['row']}, " + (f"auxiliary {facts['branch']}" if facts["branch"] else "the nominal")
    own = f", the last {facts['apart']} of them apart from its nominal" if facts["branch"] else ""
    lines = [f"{facts['task']}, iteration {facts['iteration']}, {world}: {facts['steps']} steps{own}"]
    lines.append(f"recorded: {'; '.join(map(str, facts['recorded']))}")
    if facts["departed_at"] is None:
        lines.append("physics: as recorded, bit for bit")
    else:
        other = [f"{name} {here}, not {there}" for name, (there, here) in facts["other_versions"].items()]
        why = f" ({', '.join(other)})" if other else ""
        lines.append(f"physics: not as recorded from step {facts['departed_at']} on{why}")
    if facts["failed_at"] is None:
        lines.append(
            f"no step fails: the task of today does not have the fault, its reward is {facts['reward'][-1]:.3g}"
        )
    else:
        lines.append(f"step {facts['failed_at']} fails: {'; '.join(facts['what'])}")
    if "file" in facts:
        lines.append(f"{facts['file']}: {facts['images']} images")
    return lines


def film(dump: Dump, played: Replay, size: int) -> Iterator[np.ndarray]:
    """Images (H, W, 3) uint8 of the states before each step; the last one, framed in red, stays for a while."""
    camera, views = played.task.camera, [View(played.task.camera, size, size)]
    renderer = make_renderer(played.model, 1, views, threads=1, params=played.task.params)
    for i, qpos in enumerate(played.qpos):
        rgb = renderer.render(qpos[None], played.own)[camera].rgb
        assert rgb is not None
        image = beside(rgb[0], [])
        last = i + 1 == played.failed
        line = f"step {i + 1} of {len(dump.action)}   largest |qpos, qvel| after it: {played.largest[i]:.3g}"
        yield from [_labelled(image, [line, *(played.what if last else [])], last)] * (HOLD if last else 1)


def _labelled(pixels: np.ndarray, lines: list[str], red: bool) -> np.ndarray:
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    if red:
        draw.rectangle((0, 0, image.width - 1, image.height - 1), outline=(255, 0, 0), width=6)
    text = "\n".join(part for line in lines for part in textwrap.wrap(line, 60))
    box, size = (12, 12), image.width / 32  # 60 letters fit
    draw.rectangle(draw.multiline_textbbox(box, text, font_size=size), fill=(0, 0, 0))
    draw.multiline_text(box, text, fill=(255, 255, 255), font_size=size)
    return np.asarray(image)
