"""Frame stacks, encoders and the chunked actor step, with a renderer whose images can be told apart by eye."""

from __future__ import annotations

import copy
from dataclasses import replace

import mujoco
import pytest
import torch
from helpers.runs import tiny
from torch import Tensor

from sdpg.algos.api import Context
from sdpg.algos.sdpg import Sdpg, SdpgCfg
from sdpg.build import make_env, views_of
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.nn.encoders import LAYERS, Convolutions, Depth, Pixels, image_cost, use_bfloat16
from sdpg.nn.scaling import _by_operations, scaled
from sdpg.render.api import Image, View
from sdpg.render.choose import make_renderer
from sdpg.render.stack import FrameStacks
from sdpg.rng import RowRng
from sdpg.run.policy import SimplePolicy
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Camera, Ended, Start
from sdpg.watch.browser import Controls, Crane
from sdpg.watch.film import frames


class Counting:
    """The n-th call draws images of the number n, plus 100 times the row."""

    kind, threads, device, varied = "counting", 1, torch.device("cpu"), ()

    def __init__(self, num: int, view: View):
        self.num, self.views, self.calls = num, (view,), 0

    def render(self, qpos: Tensor, own: dict[str, Tensor] | None = None) -> dict:
        self.calls += 1
        shade = self.calls + 100.0 * torch.arange(self.num)
        image = shade[:, None, None, None].expand(-1, 3, self.views[0].height, self.views[0].width)
        return {self.views[0].camera: Image(image.to(torch.uint8), image[:, 0] * 0.1)}


def _eyes(num: int = 2, **camera: object) -> tuple[FrameStacks, Counting]:
    source = Camera("side", width=4, height=3, **camera)  # type: ignore[arg-type]
    renderer = Counting(num, View("side", 4, 3))
    return FrameStacks(renderer, {"pixels": source}), renderer


def test_a_stack_has_the_newest_frame_last_and_is_refilled_at_a_restart() -> None:
    frame_stacks, _ = _eyes()
    qpos, none = torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool)
    frame_stacks.look(qpos, ~none)
    shades = lambda: frame_stacks.frames()["pixels"][:, ::3, 0, 0].tolist()  # noqa: E731 - one number per frame
    assert shades() == [[1, 1, 1], [101, 101, 101]]
    frame_stacks.look(qpos, none)
    assert shades() == [[1, 1, 2], [101, 101, 102]]
    frame_stacks.look(qpos, torch.tensor([False, True]))
    assert shades() == [[1, 2, 3], [103, 103, 103]]


def test_what_was_handed_out_stays_as_it_was() -> None:
    frame_stacks, _ = _eyes()
    frame_stacks.look(torch.zeros(2, 2), torch.ones(2, dtype=torch.bool))
    before = frame_stacks.frames()["pixels"]
    kept = before.clone()
    frame_stacks.look(torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool))
    assert torch.equal(before, kept)


def test_depth_is_kept_in_metres() -> None:
    frame_stacks, _ = _eyes(depth=True, stack=2)
    frame_stacks.look(torch.zeros(2, 2), torch.ones(2, dtype=torch.bool))
    assert frame_stacks.frames()["pixels"].shape == (2, 2, 3, 4)
    assert frame_stacks.frames()["pixels"][1, 0, 0, 0].item() == pytest.approx(10.1)


def _pixel_env(num: int = 3, auxiliary: int = 2) -> tuple[BranchedEnv, Counting]:
    plain = make_env("cartpole", num, auxiliary, threads=1)
    frame_stacks, renderer = _eyes(num)
    return BranchedEnv(plain.task, plain.sim, num, frame_stacks=frame_stacks), renderer


def test_observing_twice_draws_once_and_only_the_nominals() -> None:
    env, renderer = _pixel_env()
    first, again = env.observe(), env.observe()
    assert renderer.calls == 1
    assert first.sources["pixels"].shape == (3, 9, 3, 4) and first.sources["pixels"].dtype == torch.uint8
    assert torch.equal(first.sources["pixels"], again.sources["pixels"])
    env.restart(env.step(torch.zeros(3, 3, 1)))
    env.branch()
    env.observe()
    assert renderer.calls == 2


def test_a_restarted_row_sees_its_new_episode_only() -> None:
    env, _ = _pixel_env()
    env.observe()
    step = env.step(torch.zeros(3, 3, 1))
    ended = torch.zeros(3, 3, dtype=torch.bool)
    ended[1, 0] = True
    env.restart(replace(step, terminated=ended, truncated=torch.zeros_like(ended)))
    shades = env.observe().sources["pixels"][:, ::3, 0, 0].tolist()
    assert shades == [[1, 1, 2], [102, 102, 102], [201, 201, 202]]


def test_a_look_between_step_and_restart_adds_its_frame_once() -> None:
    """After the restart, the stack of the row that began is filled; those of the others stay as they were seen."""
    env, _ = _pixel_env()
    env.observe()
    step = env.step(torch.zeros(3, 3, 1))
    last = env.observe().sources["pixels"]  # of the state before the restart
    kept = last.clone()
    ended = torch.zeros(3, 3, dtype=torch.bool)
    ended[1, 0] = True
    env.restart(replace(step, terminated=ended, truncated=torch.zeros_like(ended)))
    shades = env.observe().sources["pixels"][:, ::3, 0, 0].tolist()
    assert shades == [[1, 1, 2], [103, 103, 103], [201, 201, 202]]
    assert torch.equal(last, kept)
    env.step(torch.zeros(3, 3, 1))
    shades = env.observe().sources["pixels"][:, ::3, 0, 0].tolist()
    assert shades == [[1, 2, 4], [103, 103, 104], [201, 202, 204]]


@pytest.mark.parametrize("looked", [False, True])
def test_frames_are_part_of_the_state(looked: bool) -> None:
    """Also of rows that have not been looked at since they began, be it that one looked before the restart."""
    env, mine = _pixel_env()
    env.observe()
    step = env.step(torch.zeros(3, 3, 1))
    if looked:
        env.observe()
    step.terminated[1, 0] = True
    env.restart(step)
    state = {name: values.clone() for name, values in env.state_dict().items()}  # not looked at yet
    other, renderer = _pixel_env()
    other.load_state_dict(state)
    renderer.calls = mine.calls
    assert torch.equal(env.observe().sources["pixels"], other.observe().sources["pixels"])


def test_images_of_all_segments_are_written_to_the_same_place() -> None:
    env = make_env("cartpole", 3, 2, threads=1, obs="pixels")
    algo = Sdpg(tiny("cartpole", "pixels").algo, Context(env, ("pixels",)))
    first = algo.collect(env).sources["pixels"]
    kept = first.clone()
    second = algo.collect(env).sources["pixels"]
    assert second.data_ptr() == first.data_ptr() and not torch.equal(second, kept)


@pytest.mark.parametrize(("kind", "flat"), [("drqv2", 39200), ("nature", 3136), ("small", 1568)])
def test_the_encoders_of_images(kind: str, flat: int) -> None:
    """84x84: DrQ-v2's four convolutions leave 32 x 35 x 35 = 39200 numbers, Nature's three 64 x 7 x 7 = 3136."""
    generator = torch.Generator().manual_seed(0)
    encoder = Pixels((9, 84, 84), kind, 16, generator)  # type: ignore[arg-type]
    assert encoder.projection.in_features == flat
    features = encoder(torch.randint(0, 256, (2, 9, 84, 84), dtype=torch.uint8))
    assert features.shape == (2, 16) and features.abs().max() <= 1.0
    first = encoder.convolutions[0]
    weight = first.weight.flatten(1)  # orthogonal rows of length sqrt 2
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(len(weight)), atol=1e-4, rtol=0)
    assert len(LAYERS[kind]) == len(encoder.convolutions) // 2


@pytest.mark.parametrize("kind", LAYERS)
def test_the_origin_is_subtracted(kind: Convolutions) -> None:
    """The first image itself is all zeros to the convolutions; grey, without it, an image of 127.5."""
    encoder = Pixels((9, 84, 84), kind, 16, torch.Generator().manual_seed(0))
    seen: list[torch.Tensor] = []
    encoder.convolutions.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    images = torch.randint(0, 256, (2, 9, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    encoder(images)
    encoder.look_from(images[0])
    encoder(images)
    grey, first = seen
    assert not first[0].any() and first[1].any() and grey.abs().max() <= 0.5
    torch.testing.assert_close(first[1], grey[1] - grey[0])


def test_from_the_first_image_new_features_tell_states_apart() -> None:
    """Why it is subtracted: a new network's features spread more over the states that it sees."""
    env = make_env("hopper", 16, seed=0, obs="pixels")
    cfgs = {origin: SdpgCfg(encoder="half", image_origin=origin) for origin in ("grey", "first")}
    actors = {origin: Sdpg(cfg, Context(env, ("pixels",))).actor for origin, cfg in cfgs.items()}
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        env.step(torch.rand(*env.grid, env.task.action_size, generator=generator) * 2 - 1)
    images = env.observe().sources["pixels"]
    spread = {origin: actor.encoders["pixels"](images).std(0).mean().item() for origin, actor in actors.items()}
    assert spread["first"] > 2 * spread["grey"], spread


@pytest.mark.parametrize("frames", [1, 3])
def test_motion_is_shown_as_changes_between_frames(frames: int) -> None:
    """As if the convolutions were given twice the change to the next frame, and the newest frame."""
    shape = (3 * frames, 84, 84)
    moving, still = (Pixels(shape, "half", 16, torch.Generator().manual_seed(0), motion) for motion in (True, False))
    assert moving.state_dict().keys() == still.state_dict().keys()
    seen = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    frame = seen.split(3, dim=1)
    changes = [2 * (frame[i + 1] - frame[i]) for i in range(frames - 1)]
    expected = still.convolutions(torch.cat([*changes, frame[-1]], dim=1))
    torch.testing.assert_close(moving.convolutions(seen), expected, rtol=1e-4, atol=1e-5)
    moving.convolutions(seen).sum().backward()
    assert moving.convolutions[0].weight.grad.any()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("halved", [True, False])
@pytest.mark.parametrize("shape", [(1, 3, 84, 84), (5, 9, 37, 40), (130, 3, 21, 18)])
def test_loops_scale_bytes_as_operations_do(shape: tuple[int, ...], halved: bool, threads: int) -> None:
    image = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, turned = scaled(image, halved), scaled(image.transpose(2, 3), halved)  # which is not contiguous
    finally:
        torch.set_num_threads(before)
    expected = _by_operations(image, halved)
    assert torch.equal(found, expected) and torch.equal(turned, expected.transpose(2, 3))
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("task", ["hopper", "walker"])
def test_a_change_is_smaller_than_a_frame(task: str) -> None:
    """Why motion is shown enlarged: under random actions a change from frame to frame is a quarter to a half of what a
    frame differs from the first one."""
    env = make_env(task, 8, seed=0, obs="pixels")
    first = scaled(env.observe().sources["pixels"][:1], True)[:, -3:]
    frames, changes = [], []
    for action in torch.rand(40, *env.grid, env.task.action_size, generator=torch.Generator().manual_seed(0)) * 2 - 1:
        env.restart(env.step(action))
        older, newest = scaled(env.observe().sources["pixels"], True)[:, 3:].split(3, dim=1)
        frames.append(newest - first)
        changes.append(newest - older)
    ratio = torch.stack(changes).square().mean().sqrt() / torch.stack(frames).square().mean().sqrt()
    assert 0.25 < ratio < 0.5, ratio


def test_the_encoder_of_depth() -> None:
    """58x87, 5x5 convolution, halved, 3x3 convolution: 64 x 25 x 39 = 62400 numbers."""
    encoder = Depth((1, 58, 87), 32, torch.Generator().manual_seed(0), far=5.0)
    assert encoder.head[0].in_features == 62400
    near, far = torch.full((1, 1, 58, 87), 1.0), torch.full((1, 1, 58, 87), float("inf"))
    assert encoder(near).shape == (1, 32)
    assert torch.isfinite(encoder(far)).all() and not torch.equal(encoder(near), encoder(far))


@pytest.mark.parametrize("kind", ["half", "small"])
def test_a_cheaper_encoder_of_depth_looks_at_means_of_four(kind: Convolutions) -> None:
    generator = torch.Generator().manual_seed(0)
    encoder, depth = Depth((1, 58, 87), 32, generator, far=5.0, kind=kind), 4.0 * torch.rand(2, 1, 58, 87)
    swapped = depth[..., :86].unflatten(-1, (43, 2)).flip(-1).flatten(-2)  # neighbours in place of each other
    assert encoder(depth).shape == (2, 32) and torch.isfinite(encoder(depth + float("inf"))).all()
    assert torch.allclose(encoder(depth), encoder(torch.cat((swapped, depth[..., 86:]), dim=-1)), atol=1e-5)
    assert not torch.allclose(encoder(depth), encoder(depth.flip(-1)), atol=1e-3)
    paper, cheap = (image_cost((1, 58, 87), True, each, 32).multiply_adds for each in ("drqv2", kind))
    assert 10 * cheap < paper
    assert Depth((1, 30, 24), 4, generator, far=5.0, kind=kind)(torch.ones(1, 1, 30, 24)).shape == (1, 4)  # as before


def test_precision_is_what_is_asked_for() -> None:
    image, vector = torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1, 3)
    assert use_bfloat16("bfloat16", [image]) and not use_bfloat16("float32", [image])
    assert not use_bfloat16("auto", [vector])


@pytest.mark.parametrize(
    ("task", "obs"),
    [("cartpole", "state"), ("cartpole", "pixels"), ("hopper", "pixels"), ("helpers.sources:Senses", "pixels")],
)
def test_the_gradient_of_chunks_is_the_gradient_of_the_whole(task: str, obs: str) -> None:
    cfg = replace(
        tiny(task, obs).algo, max_grad_norm=1e9, regression_steps=1, regression_fraction=1.0, precision="float32"
    )
    gradients = []
    for chunk in (1000, 5):
        env = make_env(task, 3, 2, threads=1, obs=obs)
        algo = Sdpg(replace(cfg, actor_chunk=chunk), Context(env, env.task.inputs[obs]))
        algo.update(algo.collect(env))
        gradients.append([p.grad.clone() for p in algo.actor.parameters()])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


# --- several senses ---------------------------------------------------------------------------------------------------


def test_several_senses_are_fused() -> None:
    """One camera's colours and depth, another one's depth, a vector: each has an encoder, and each is learned from."""
    cfg = replace(tiny("helpers.sources:Senses", "pixels").algo, encoder_features=8)
    env = make_env("helpers.sources:Senses", 3, 2, threads=1, obs="pixels")
    assert env.frame_stacks is not None and [(v.camera, v.rgb, v.depth) for v in env.frame_stacks.renderer.views] == [
        ("side", True, True),
        ("above", False, True),
    ]
    seen = env.observe().sources
    assert {name: tuple(seen[name].shape) for name in env.task.inputs["pixels"]} == {
        "pixels": (3, 9, 44, 40), "depth": (3, 2, 44, 40), "ranges": (3, 1, 24, 30), "proprio": (3, 1),
    }  # fmt: skip
    algo = Sdpg(cfg, Context(env, env.task.inputs["pixels"]))
    assert list(algo.actor.encoders) == list(env.task.inputs["pixels"])
    assert algo.actor.trunk[0].in_features == 3 * 8 + 1
    algo.update(algo.collect(env))
    for name in ("pixels", "depth", "ranges"):
        assert all((p.grad != 0).any() for p in algo.actor.encoders[name].parameters()), name
    assert (algo.actor.trunk[0].weight.grad[:, -1] != 0).any()  # the vector
    assert algo.normalizers["proprio"].count > 1


def test_depth_beyond_a_sensors_range_is_the_end_of_its_range() -> None:
    encoder = Depth((1, 24, 30), 4, torch.Generator().manual_seed(0), far=2.0)
    there, beyond = torch.full((1, 1, 24, 30), 2.0), torch.full((1, 1, 24, 30), 3.0)
    assert torch.equal(encoder(there), encoder(beyond)) and not torch.equal(encoder(there), encoder(there / 2))


@pytest.mark.parametrize("other", [Camera("side", 40, depth=True), Camera("side", depth=True, groups=(0,))])
def test_sources_of_one_camera_that_differ_are_refused_in_plain_words(other: Camera) -> None:
    with pytest.raises(SdpgError, match="sources of camera 'side' differ in size or geom groups"):
        views_of({"pixels": Camera("side"), "depth": other})


def test_a_camera_sees_its_geom_groups() -> None:
    seen = views_of({"pixels": Camera("side", groups=(0, 3)), "above": Camera("above", 30, 20)})
    assert seen == [View("side", groups=(0, 3)), View("above", 30, 20)]


# --- rows that look different


class Reacher(Cartpole):
    """A ball to be reached, somewhere else in every episode: a mocap body. Beside it a block that is fixed to the
    world, and of another colour in every episode."""

    params: tuple[str, ...] = ("geom_rgba",)

    def scene(self) -> mujoco.MjSpec:
        spec = super().scene()
        sphere, box = mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_BOX
        look = {"contype": 0, "conaffinity": 0, "rgba": [1, 0, 0, 1]}
        spec.worldbody.add_body(name="ball", mocap=True).add_geom(type=sphere, size=[0.1, 0, 0], **look)
        spec.worldbody.add_geom(name="block", type=box, size=[0.1, 0.1, 0.1], pos=[0, 0, 1.2], **look)
        return spec

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        start, model = super().start(rng, n, ended), self.scene().compile()
        place = torch.cat((rng.uniform(-1.0, 1.0, 1), torch.zeros(n, 1), 1.5 * torch.ones(n, 1)), dim=-1)  # (n, 3)
        params = {name: torch.from_numpy(getattr(model, name)).repeat(n, 1, 1) for name in self.params}
        block = model.geom("block").id
        if "geom_rgba" in params:
            params["geom_rgba"][:, block, :3] = rng.uniform(0.1, 1.0, 3)
        if "geom_pos" in params:
            params["geom_pos"][:, block, :1] = rng.uniform(-1.0, 1.0, 1).double()
        return replace(start, params=params, mocap_pos=place[:, None])


class MovesTheBlock(Reacher):
    params = ("geom_rgba", "geom_pos")


def _unlike(images: Tensor) -> bool:
    return len({image.numpy().tobytes() for image in images}) == len(images)


@pytest.mark.parametrize(("task", "sim"), [(MovesTheBlock, "cpu"), (Reacher, "warp")])
def test_every_episode_shows_its_own_goal(task: type[Reacher], sim: str) -> None:
    """From equal states, rows with other goals look different; branches have their nominal's goal; a restart moves the
    goal of its row and no other; a saved environment goes on with the same images."""
    env = make_env(task(), 3, 2, 0, 1, "pixels", sim=sim)
    qpos, fields = torch.zeros(3, 2), env.frame_stacks.renderer.varied
    own = env.looks(fields)
    alone = {
        name: env.frame_stacks.renderer.render(qpos, {name: own[name]})["side"].rgb
        for name in own
        if name != "mocap_quat"
    }
    assert all(_unlike(images) for images in alone.values()) and alone.keys() == {*task.params, "mocap_pos"}
    first = env.observe().sources["pixels"]
    assert _unlike(first)
    for name in fields:
        every = env.sim.params(name).unflatten(0, (3, 3))  # (N, K, ...)
        assert torch.equal(every, every[:, :1].expand_as(every))
    other = make_env(task(), 3, 2, 1, 1, "pixels", sim=sim)
    other.load_state_dict(env.state_dict())
    action = torch.zeros(3, 3, 1)
    for each in (env, other):
        each.step(action)
    assert torch.equal(env.observe().sources["pixels"], other.observe().sources["pixels"])
    step = env.step(action)
    step.terminated[1, 0] = True
    env.restart(step)
    again = env.looks(fields)
    for name in alone:
        assert torch.equal(again[name][[0, 2]], own[name][[0, 2]]) and not torch.equal(again[name][1], own[name][1])


def test_what_start_gives_must_fit() -> None:
    class Wrong(Reacher):
        params = ()

        def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
            return replace(super().start(rng, n, ended), params={"geom_size": torch.zeros(n, 3)})

    class Two(Reacher):
        def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
            return replace(super().start(rng, n, ended), mocap_pos=torch.zeros(n, 2, 3))

    with pytest.raises(SdpgError, match=r"Wrong gave params \['geom_size'\]; name them"):
        make_env(Wrong(), 2)
    with pytest.raises(SdpgError, match=r"'mocap_pos' \(2, 2, 3\); the scene's mocap bodies need \(n, 1, 3\)"):
        make_env(Two(), 2)


def test_what_cannot_be_drawn_per_row_is_refused_when_the_environment_is_built() -> None:
    class Textured(Reacher):
        params = ("mat_texid",)

    with pytest.raises(SdpgError, match="'mat_texid' can't be drawn differently in each row"):
        make_env(Textured(), 2, obs="pixels")
    assert make_env(Textured(), 2).frame_stacks is None  # nobody looks


def test_films_and_the_crane_show_the_rows_goal() -> None:
    env = make_env(MovesTheBlock(), 1, 0, 3, 1, "pixels")
    camera, size, model = env.task.camera, 64, copy.copy(env.sim.model)
    for name, values in env.looks(["geom_rgba", "geom_pos"]).items():
        getattr(model, name)[:] = values[0].numpy()
    mujoco.mj_setConst(model, mujoco.MjData(model))
    qpos, mocap = env.physics().qpos[:, 0], env.looks(["mocap_pos"])
    wanted = make_renderer(model, 1, [View(camera, size, size)]).render(qpos, mocap)[camera].rgb[0]
    film = next(frames(SimplePolicy("zero", 1, RowRng(0, env.rows)), env, 1, size, {}))
    assert torch.equal(torch.from_numpy(film)[:, :size].permute(2, 0, 1), wanted)
    assert (Crane(env, size).image(qpos, Controls()) != wanted).float().mean() < 0.01
