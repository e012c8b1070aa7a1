"""What `sdpg export` writes answers as the network does: every task, every kind of observation, every algorithm."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import pytest
import torch
from helpers.arms import need_scene
from torch import Tensor

from sdpg import presets
from sdpg.algos.api import Carry, Context, Policy
from sdpg.algos.registry import ALGORITHMS
from sdpg.build import cameras_of, compile_scene, views_of
from sdpg.config import TrainCfg
from sdpg.deploy import parity
from sdpg.deploy.check import problems
from sdpg.deploy.export import CONTRACT, POLICY, exported
from sdpg.deploy.graph import Inputs, answers, frozen, to_onnx
from sdpg.engines import make_sim
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.nn.modules import Normalizer
from sdpg.render.api import Image, View
from sdpg.render.stack import FrameStacks
from sdpg.tasks import go2, go2_terrain
from sdpg.tasks.base import Task, make_task, task_class
from sdpg.tasks.registry import BUILT_IN

TINY = {
    "actor_widths": (16,),
    "critic_widths": (16,),
    "encoder": "small",
    "encoder_features": 16,
    "precision": "float32",
}
TINY |= {"hidden": 16, "features": 16, "horizon": 2, "buffer": 50, "steps": 2}


CANT = {
    ("drqv2", "state"),
    ("dreamer", "state"),
    ("shac", "pixels"),
    ("sapo", "pixels"),
}  # algorithms that do not learn from these


class Noise:
    """A renderer that needs no time: its images are noise, other ones each time."""

    kind, varied, threads, device = "noise", (), 1, torch.device("cpu")

    def __init__(self, num: int, views: list[View]):
        self.num, self.views = num, tuple(views)
        self.generator = torch.Generator().manual_seed(0)

    def render(self, qpos: Tensor, own: Mapping[str, Tensor] | None = None) -> dict[str, Image]:
        images = {}
        for view in self.views:
            size, g = (view.height, view.width), self.generator
            rgb = torch.randint(0, 256, (self.num, 3, *size), dtype=torch.uint8, generator=g)
            depth = torch.rand(self.num, *size, generator=g) * 6.0
            images[view.camera] = Image(rgb if view.rgb else None, depth if view.depth else None)
        return images


@functools.lru_cache(maxsize=1)
def scene_of(name: str) -> tuple[Task, mujoco.MjModel]:
    need_scene(name)
    task = make_task(name)
    return task, compile_scene(task)


def tiny(task: str, obs: str, algorithm: str = "sdpg", **changes: Any) -> TrainCfg:
    cfg = presets.resolve(task, obs=obs, algorithm=algorithm)
    known = {name: value for name, value in (TINY | changes).items() if hasattr(cfg.algo, name)}
    return replace(cfg, algo=replace(cfg.algo, **known))


def world(cfg: TrainCfg, num: int = 2) -> BranchedEnv:
    task, model = scene_of(cfg.task)
    cameras = cameras_of(task, cfg.obs)
    stacks = FrameStacks(Noise(num, views_of(cameras)), cameras, task.step_seconds) if cameras else None
    return BranchedEnv(task, make_sim(model, num, 1, task.reads, "cpu"), num, 0, frame_stacks=stacks)


def fresh(cfg: TrainCfg, env: BranchedEnv) -> Policy:
    """The policy before its first iteration, whose normalisers have seen something."""
    policy = cfg.algo.build(Context(env, env.task.inputs[cfg.obs])).policy()
    for i, module in enumerate(policy.modules()):
        if isinstance(module, Normalizer):
            size = len(module.mean)
            module.update(torch.randn(9, size, generator=torch.Generator().manual_seed(i)) * 3.0 + 1.0)
    return policy


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(autouse=True)
def _quick_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orthogonal ones take a second for a depth encoder; these are as large."""

    def normal(weight: Tensor, gain: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        return torch.nn.init.normal_(weight, 0.0, gain / weight[0].numel() ** 0.5, generator)

    monkeypatch.setattr(torch.nn.init, "orthogonal_", normal)


def kinds() -> Iterator[tuple[str, str]]:
    for task in BUILT_IN:
        yield from ((task, obs) for obs in task_class(task).inputs)


@pytest.mark.parametrize(("task", "obs"), list(kinds()))
def test_every_task_and_kind_of_observation(task: str, obs: str, tmp_path: Path) -> None:
    cfg = tiny(task, obs)
    env = world(cfg)
    files, facts = exported(fresh(cfg, env), env, cfg, {"run": "a"}, observations=5)
    assert max(facts["largest_difference"].values()) < 1e-5
    assert set(facts["inputs"]) == set(env.task.inputs[obs])
    assert problems(write(tmp_path / "out", files)) == []
    contract = json.loads(files[CONTRACT])
    assert contract["rates"]["control_seconds"] == env.task.step_seconds
    assert all(camera["camera"]["intrinsics"]["fx"] > 0 for camera in contract["sources"] if "camera" in camera)


@pytest.mark.parametrize("algorithm", list(ALGORITHMS.built_in))
@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_every_algorithm(algorithm: str, obs: str) -> None:
    cfg = tiny("cartpole", obs, algorithm, image_motion=True, image_origin="first", vector_widths=(8,))
    env = world(cfg)
    try:
        policy = fresh(cfg, env)
    except SdpgError:
        assert (algorithm, obs) in CANT
        return
    _, facts = exported(policy, env, cfg, {}, observations=4)
    assert max(facts["largest_difference"].values()) < 1e-5


def test_bfloat16_encoders_are_exported_in_float32() -> None:
    cfg = tiny("cartpole", "pixels", precision="bfloat16")
    env = world(cfg)
    policy = fresh(cfg, env)
    seen = {"pixels": env.observe().sources["pixels"]}
    fixed = frozen(policy)
    assert not torch.equal(policy(seen, {})[0], fixed(seen, {})[0])  # the original stays as it was
    _, facts = exported(policy, env, cfg, {}, observations=4)
    assert facts["largest_difference"]["actions"] < 1e-5


class Summing(Policy):
    """Remembers what it saw; begins with something other than 0."""

    def carry(self, num: int) -> Carry:
        return {"sum": torch.full((num, 4), 0.5), "steps": torch.zeros(num, 1, dtype=torch.int64)}

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        total = 0.9 * carry["sum"] + sources["state"]
        return torch.tanh(total[:, :1]), {"sum": total, "steps": carry["steps"] + 1}


def test_a_recurrent_policy_has_its_memory_as_inputs_and_outputs(tmp_path: Path) -> None:
    cfg = tiny("cartpole", "state")
    files, facts = exported(Summing(), world(cfg), cfg, {}, observations=9)
    assert list(facts["inputs"]) == ["state", "carry.sum", "carry.steps"]
    carry = json.loads(files[CONTRACT])["carry"]
    assert [each["output"] for each in carry] == ["next.sum", "next.steps"]
    assert carry[0]["begin"] == [0.5] * 4 and carry[1]["dtype"] == "int64"
    assert problems(write(tmp_path / "out", files)) == []
    inputs = {"state": np.ones((1, 4), np.float32), "carry.sum": np.ones((1, 4), np.float32)}
    out = answers(files[POLICY], inputs | {"carry.steps": np.full((1, 1), 7)})
    assert out["next.steps"].item() == 8 and np.allclose(out["next.sum"], 1.9)


class Drawing(Summing):
    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        action, after = super().forward(sources, carry)
        return action + 0.1 * torch.rand_like(action), after


def test_a_policy_that_cannot_be_told_by_a_graph_is_refused() -> None:
    cfg = tiny("cartpole", "state")
    with pytest.raises(SdpgError, match=r"differ from torch's by up to .* nothing was written"):
        exported(Drawing(), world(cfg), cfg, {}, observations=4)


def test_sums_of_bytes_are_made_in_32_bits() -> None:
    """Few runtimes add 16 bits."""
    cfg = tiny("cartpole", "pixels")
    env = world(cfg)
    data = to_onnx(frozen(fresh(cfg, env)), Inputs({"pixels": env.observe().sources["pixels"]}, {}), {})
    model = onnx.load_model_from_string(data)
    casts = [attribute.i for node in model.graph.node if node.op_type == "Cast" for attribute in node.attribute]
    assert onnx.TensorProto.INT32 in casts and onnx.TensorProto.INT16 not in casts
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 17)]


# --- what the contract says of the Go2


def test_the_contract_of_the_go2() -> None:
    cfg = tiny("go2_terrain", "depth")
    dog = world(cfg)
    files, _ = exported(fresh(cfg, dog), dog, cfg, {"run": "walks"}, observations=2)
    contract = json.loads(files[CONTRACT])
    history, depth = contract["sources"]
    assert [history["name"], depth["name"]] == ["history", "depth"]
    assert history["layout"]["history"] * sum(t["size"] for t in history["layout"]["terms"]) == 900
    target = contract["action"]["target"]
    assert target["order"][:3] == ["FR_hip", "FR_thigh", "FR_calf"] and target["scale"] == [0.5] * 12
    assert [servo["kp"] for servo in contract["actuators"]] == [go2.KP] * 12
    assert [servo["kd"] for servo in contract["actuators"]] == [go2.KD] * 12
    assert contract["actuators"][2]["force_range"] == [-go2.TORQUE["calf"], go2.TORQUE["calf"]]
    assert [joint["default"] for joint in contract["joints"]] == list(go2.STANCE)
    assert contract["joints"][0]["name"] == "FR_hip_joint" and contract["joints"][0]["range"] is not None
    camera = depth["camera"]
    assert (
        camera["link"] == "base"
        and camera["position"] == [0.32, 0.0, 0.15]
        and camera["pipeline"]["limit"] == [0.0, 2.0]
    )
    across = 2 * np.degrees(np.arctan(camera["width"] / 2 / camera["intrinsics"]["fx"]))
    assert across == pytest.approx(80.0) and camera["intrinsics"]["cx"] == pytest.approx(53.0)
    assert contract["rates"] == pytest.approx(
        {"control_hz": 50.0, "control_seconds": 0.02, "physics_hz": 200.0, "physics_seconds": 0.005}
    )
    props = {each.key: each.value for each in onnx.load_model_from_string(files[POLICY]).metadata_props}
    assert props["joint_stiffness"] == ",".join(["30.0"] * 12) and props["run_path"] == "walks"
    assert [float(x) for x in props["default_joint_pos"].split(",")] == list(go2.STANCE)
    assert props["command_names"] == "command" and props["observation_names"].endswith("last_action,depth")


def test_the_go2s_declared_layouts_are_what_it_computes() -> None:
    """A frame made of the declared terms, from what a robot measures, is the newest of the history."""
    task = go2_terrain.Go2Terrain(go2_terrain.Go2TerrainCfg(randomised=False, pushes=False))
    env = BranchedEnv(task, make_sim(scene_of("go2_terrain")[1], 2, 1, task.reads, "cpu"), 2, 0)
    action = torch.rand(2, 1, 12, generator=torch.Generator().manual_seed(1)) - 0.5
    env.step(action)
    x, memory, q = env.physics(), env.memory, env.physics().qpos[:, 0]
    down = torch.tensor([0.0, 0.0, -1.0])
    gravity = torch.stack([_rotation(quat).T @ down for quat in q[:, 3:7]])
    measured = {
        "base_ang_vel": x.qvel[:, 0, 3:6],
        "projected_gravity": gravity,
        "command": memory["command"][:, 0],
        "joint_pos": go2.robot_order(q[:, 7:]),
        "joint_vel": go2.robot_order(x.qvel[:, 0, 6:]),
        "last_action": action[:, 0],
    }
    layout = task.layouts["history"]
    parts = [torch.tensor(term.scale) * (measured[term.name] - torch.tensor(term.offset)) for term in layout.terms]
    newest = task.observe(x, memory)["history"][:, 0].unflatten(-1, (layout.history, -1))[:, -1]
    assert torch.allclose(torch.cat(parts, -1), newest, atol=1e-6)
    acts = task.action_layout
    assert acts is not None and acts.order == tuple(scene_of("go2_terrain")[1].actuator(i).name for i in range(12))
    assert torch.allclose(
        task.control(x, memory, action),
        torch.tensor(acts.offset) + acts.scale * action,  # type: ignore[operator]
    )


def _rotation(quat: Tensor) -> Tensor:
    out = np.zeros(9)
    mujoco.mju_quat2Mat(out, quat.double().numpy())
    return torch.from_numpy(out.reshape(3, 3)).float()


def test_a_layout_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = tiny("cartpole", "state")
    env = world(cfg)
    layout = go2_terrain.Go2Terrain.layouts["history"]
    monkeypatch.setattr(type(env.task), "layouts", {"state": layout})
    with pytest.raises(SdpgError, match="layout of 'state' has 20 x 45 numbers, and observe\\(\\) gives 4"):
        exported(fresh(cfg, env), env, cfg, {}, observations=2)


def test_the_record_is_of_the_task() -> None:
    """Observations differ, and answers are those of the policy that acted."""
    cfg = tiny("cartpole", "state")
    env = world(cfg)
    policy = frozen(fresh(cfg, env))
    recorded = parity.record(policy, env, ("state",), observations=7)
    assert recorded["in/state"].shape == (7, 4) and len(np.unique(recorded["in/state"], axis=0)) == 7
    again = policy({"state": torch.from_numpy(recorded["in/state"])}, {})[0]
    assert torch.allclose(torch.from_numpy(recorded["out/actions"]), again, atol=1e-6)
