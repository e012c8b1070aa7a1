"""What the runtime makes of a robot's measurements is what training makes of the same world, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.arms import need_scene

from sdpg import presets
from sdpg.algos.api import Context
from sdpg.algos.api import Policy as Network
from sdpg.build import make_env
from sdpg.deploy.export import exported
from sdpg.deploy.graph import frozen
from sdpg.env import BranchedEnv
from sdpg.tasks import go2
from sdpg.tasks.base import make_task
from sdpg.tasks.go2_terrain import Go2TerrainCfg
from sdpg_runtime.contract import Folder, load
from sdpg_runtime.link import Image, RobotState
from sdpg_runtime.observation import Observer
from sdpg_runtime.policy import Policy

STEPS = 25  # more than the history has
SMALL = {"actor_widths": (16,), "critic_widths": (16,), "encoder_features": 16, "precision": "float32"}


def measured(env: BranchedEnv, step: int) -> tuple[RobotState, Image]:
    """What the sensors of the first robot would say, in the robot's own order."""
    x = env.physics()
    qpos, qvel = x.qpos[0, 0], x.qvel[0, 0]
    joints, rates = go2.robot_order(qpos[7:]).numpy(), go2.robot_order(qvel[6:]).numpy()
    state = RobotState(
        0.02 * step, 20 * step, qpos[3:7].numpy(), qvel[3:6].numpy(), np.zeros(3), joints, rates, np.zeros(12)
    )
    assert env.frame_stacks is not None
    depth = env.frame_stacks.renderer.render(x.qpos[:, 0])["depth"].depth
    assert depth is not None
    return state, Image(0.02 * step, step, depth[0][None].numpy().copy())


@pytest.fixture(scope="module")
def env() -> BranchedEnv:
    need_scene("go2_terrain")
    quiet = Go2TerrainCfg(randomised=False, pushes=False)
    return make_env(make_task("go2_terrain", quiet), 2, seed=0, threads=1, obs="depth")


@pytest.fixture(scope="module")
def export(env: BranchedEnv, tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Folder]:
    """A policy before its first iteration, in torch and as the runtime reads it."""
    cfg = presets.resolve("go2_terrain", obs="depth", algorithm="sdpg")
    known = {name: value for name, value in SMALL.items() if hasattr(cfg.algo, name)}
    cfg = replace(cfg, algo=replace(cfg.algo, **known))
    network = frozen(cfg.algo.build(Context(env, env.task.inputs["depth"])).policy())
    files, _ = exported(network, env, cfg, {"run": "test"}, observations=4)
    path = tmp_path_factory.mktemp("export")
    for name, data in files.items():
        (path / name).write_bytes(data)
    return network, load(path)


def test_observations_are_equal_bit_for_bit_and_actions_to_1e_5(
    env: BranchedEnv, export: tuple[Network, Folder]
) -> None:
    network, folder = export
    policy, observer = Policy(folder), Observer(folder.contract)
    world = make_env(env.task, 2, seed=1, threads=1, obs="depth")
    generator = torch.Generator().manual_seed(3)
    action = torch.zeros(2, 1, 12)
    for step in range(STEPS):
        state, image = measured(world, step)
        command = world.memory["command"][0, 0].numpy()
        seen = observer.observe(state, {"depth": image}, command, action[0, 0].numpy())
        wanted = {name: world.observe().sources[name] for name in ("history", "depth")}
        for name, values in wanted.items():
            assert seen[name].dtype == np.float32 and seen[name].shape == tuple(values[:1].shape)
            assert seen[name].tobytes() == values[:1].numpy().tobytes(), (step, name)
        theirs = network(wanted, network.carry(2))[0][0].detach().numpy()
        np.testing.assert_allclose(policy.act(seen), theirs, rtol=0, atol=1e-5)
        action = torch.rand(2, 1, 12, generator=generator) - 0.5
        world.step(action)


def test_targets_are_the_controls_of_training(env: BranchedEnv, export: tuple[Network, Folder]) -> None:
    policy = Policy(export[1])
    action = 0.4 * (torch.rand(2, 1, 12, generator=torch.Generator().manual_seed(0)) - 0.5)
    control = env.task.control(env.physics(), env.memory, action)
    assert policy.targets(action[0, 0].numpy()).tobytes() == control[0, 0].numpy().tobytes()
    joints = policy.contract.joints
    assert (joints.stiffness == go2.KP).all() and (joints.damping == go2.KD).all()
