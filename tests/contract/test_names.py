"""Parts of a scene by name: the numbers that MuJoCo has for them, batched, on both engines; and the file's timestep."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from sdpg.build import compile_scene, make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.tasks.base import Task
from sdpg.types import Ended, Memory, Physics, Start, Terms

SCENE = """
<mujoco><option timestep="0.004"/><worldbody><geom name="floor" type="plane" size="5 5 .1"/>
<body name="torso" pos="0 0 .5"><freejoint name="root"/><geom name="trunk" size=".1"/><site name="imu"/>
<body name="thigh" pos=".2 0 0"><joint name="hip" axis="0 1 0" damping="1"/><geom name="upper" size=".05"/>
<body name="shin" pos=".2 0 0"><joint name="knee" axis="0 1 0" damping="1"/><geom name="lower" size=".04"/>
<body name="foot" pos=".1 0 0"><joint name="ankle" type="ball" damping="1"/><geom name="sole" size=".03"/>
<site name="toe"/></body></body></body></body></worldbody>
<actuator><motor name="at_hip" joint="hip"/><motor name="at_knee" joint="knee" gear="2"/></actuator>
<sensor><gyro name="gyro" site="imu"/><jointpos name="angle" joint="knee"/><framepos name="place" objtype="site"
objname="toe"/></sensor></mujoco>
"""
N, K = 3, 2


class Leg(Task):
    action_size, state_size = 2, 2
    substeps = 2
    reads = (
        "xpos",
        "geom_xmat",
        "site_xpos",
        "xaxis",
        "sensordata",
        "qfrc_bias",
        "actuator_force",
        "actuator_velocity",
    )
    params = ("body_mass",)

    def scene(self) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(SCENE)

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        qpos = torch.tensor(compile_scene(self).qpos0, dtype=torch.float32).repeat(n, 1)
        qpos[:, self.names.qpos("hip", "knee")] = rng.uniform(-1.0, 1.0, 2)
        mass = torch.ones(n, 5)
        mass[:, self.names.body("shin")] = rng.uniform(2.0, 3.0)
        return Start(qpos, torch.zeros(n, 11), params={"body_mass": mass})

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return action.clone()

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return {"height": x.body("torso").xpos[..., 2].clone()}

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return torch.zeros(x.qpos.shape[:2], dtype=torch.bool)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        return {"state": x.joint("hip", "knee").qpos}


@pytest.fixture(scope="module", params=["cpu", "warp"])
def env(request: pytest.FixtureRequest) -> BranchedEnv:
    env = make_env(Leg(), N, K - 1, threads=1, sim=request.param)
    for t in range(5):
        env.step(torch.randn(N, K, 2, generator=torch.Generator().manual_seed(t)).clamp(-1.0, 1.0))
    return env


def test_parts_have_the_numbers_that_mujoco_has_for_them(env: BranchedEnv) -> None:
    x, model = env.physics(), compile_scene(env.task)
    asked = {
        "xpos of thigh": (x.body("thigh").xpos, lambda d: d.body("thigh").xpos),
        "xpos of foot, torso": (x.body("foot", "torso").xpos, lambda d: [d.body(n).xpos for n in ("foot", "torso")]),
        "xmat of sole": (x.geom("sole").xmat, lambda d: d.geom("sole").xmat),
        "xpos of toe": (x.site("toe").xpos, lambda d: d.site("toe").xpos),
        "xaxis of knee": (x.joint("knee").xaxis, lambda d: d.joint("knee").xaxis),
        "qpos of root": (x.joint("root").qpos, lambda d: d.joint("root").qpos),
        "qvel of ankle": (x.joint("ankle").qvel, lambda d: d.joint("ankle").qvel),
        "qpos of ankle, hip": (
            x.joint("ankle", "hip").qpos,
            lambda d: np.concatenate([d.joint(n).qpos for n in ("ankle", "hip")]),
        ),
        "bias of knee": (x.joint("knee").qfrc_bias, lambda d: d.joint("knee").qfrc_bias),
        "force at knee": (x.actuator("at_knee").force, lambda d: d.actuator("at_knee").force),
        "speed at both": (x.actuator("at_hip", "at_knee").velocity, lambda d: d.actuator_velocity),
        "gyro": (x.sensor("gyro"), lambda d: d.sensor("gyro").data),
        "place, gyro": (
            x.sensor("place", "gyro"),
            lambda d: np.concatenate([d.sensor(n).data for n in ("place", "gyro")]),
        ),
    }
    rows, masses = env.sim.state_dict()["state"], env.sim.params("body_mass")
    for i in range(N * K):
        model.body_mass[:] = masses[i].numpy()
        data = mujoco.MjData(model)
        mujoco.mj_setState(model, data, rows[i].double().numpy(), int(mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_forward(model, data)
        for name, (values, expected) in asked.items():
            want = torch.tensor(np.asarray(expected(data)), dtype=torch.float32)
            torch.testing.assert_close(values[i // K, i % K], want, rtol=1e-3, atol=1e-3, msg=f"{name}, world {i}")


def test_a_name_is_looked_up_once_and_neighbours_are_views(env: BranchedEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    x = env.physics()
    first = x.joint("ankle", "hip").qpos
    with monkeypatch.context() as without:
        without.setattr(mujoco, "mj_name2id", None)
        assert torch.equal(env.physics().joint("ankle", "hip").qpos, first)
    for view in (x.body("torso").xpos, x.sensor("gyro", "angle"), x.joint("hip", "knee").qvel):
        live = (*x.derived.values(), x.qpos, x.qvel)
        assert view.untyped_storage().data_ptr() in {values.untyped_storage().data_ptr() for values in live}


def test_mistakes_are_told_with_what_is_near(env: BranchedEnv) -> None:
    x = env.physics()
    with pytest.raises(SdpgError, match="the scene has no body 'tors'; did you mean 'torso'"):
        _ = x.body("tors").xpos
    with pytest.raises(SdpgError, match="the scene has no sensor 'lidar'; it has gyro, angle, place"):
        x.sensor("lidar")
    with pytest.raises(SdpgError, match="a joint has no 'angle' that can be read; it has qacc, "):
        _ = x.joint("hip").angle
    with pytest.raises(SdpgError, match=r"x\['xquat'\] is not there: name it in the task's reads, which has act"):
        _ = x.body("torso").xquat
    with pytest.raises(SdpgError, match="no joint 'hipp'; did you mean 'hip'"):
        env.task.names.qpos("hipp")


def test_the_start_is_written_by_name(env: BranchedEnv) -> None:
    masses = env.sim.params("body_mass")  # world, torso, thigh, shin, foot
    assert (masses[:, 3] > 2.0).all() and (masses[:, [0, 1, 2, 4]] == 1.0).all()


def test_a_class_without_a_timestep_keeps_that_of_its_scene() -> None:
    class Faster(Leg):
        timestep = 0.001

    assert compile_scene(Leg()).opt.timestep == 0.004 and Leg().step_seconds == 0.008
    assert compile_scene(Faster()).opt.timestep == 0.001 and Faster().step_seconds == 0.002
