"""From an image to what a policy sees: every stage by hand, torch and numpy alike, and real cameras' faults."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import subprocess_env
from torch import Tensor

from sdpg.algos.api import Context
from sdpg.algos.sdpg import Sdpg
from sdpg.algos.sdpg_cfg import SdpgCfg
from sdpg.build import image_shape, make_env
from sdpg.camera import Camera, Pipeline, Sensor
from sdpg.declarations import check_inputs
from sdpg.errors import SdpgError
from sdpg.nn.encoders import Depth, Pixels
from sdpg.pipeline import processed, resized, taps
from sdpg.render import sensor as effects
from sdpg.render.api import Image, View
from sdpg.render.stack import FrameStacks
from sdpg.rng import RowRng
from sdpg.run.memory import make_plan
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Encoder
from sdpg.watch.player import colours

GO2 = Pipeline(crop=(0, 2, 4, 4), limit=(0.0, 2.0), width=87, height=58, resize="bicubic", depth="centred")
HURDLE = Pipeline(limit=(0.01, 5.0), depth="bytes")
KINDS = ["bicubic", "bilinear", "area"]


def _depth(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    depth = rng.uniform(0.0, 6.0, shape).astype(np.float32)
    depth[rng.uniform(size=shape) < 0.1] = np.inf  # where nothing is hit
    return depth


# --- the stages


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(58, 87), (17, 130), (60, 106), (120, 212), (7, 5)])
def test_torch_and_numpy_give_the_same_bits(kind: Any, size: tuple[int, int]) -> None:
    depth, rgb = _depth(3, 1, 60, 106), np.random.default_rng(1).integers(0, 256, (3, 3, 60, 106), np.uint8)
    for how in ("metres", "centred", "bytes"):
        pipeline = Pipeline((1, 2, 4, 3), (0.3, 3.7), size[1], size[0], kind, how)  # type: ignore[arg-type]
        ours, theirs = processed(torch.from_numpy(depth), pipeline, True).numpy(), processed(depth, pipeline, True)
        assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes(), how
        assert ours.shape == (3, 1, *size) and np.isfinite(ours.astype(np.float32)).all()
    pipeline = Pipeline((1, 2, 4, 3), None, size[1], size[0], kind)
    ours, theirs = processed(torch.from_numpy(rgb), pipeline, False).numpy(), processed(rgb, pipeline, False)
    assert ours.dtype == theirs.dtype == np.uint8 and ours.tobytes() == theirs.tobytes()


def test_the_pipeline_needs_no_torch() -> None:
    script = (
        "import sys, numpy as np; from sdpg.pipeline import processed; from sdpg.camera import Pipeline;"
        "seen = processed(np.ones((1, 8, 8), np.float32), Pipeline(limit=(0.0, 2.0), width=4, depth='centred'), True);"
        "assert seen.shape == (1, 8, 4) and not seen.any() and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], env=subprocess_env(), check=True)


@pytest.mark.parametrize("kind", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(58, 87), (120, 40)])
def test_resizing_is_that_of_torch(kind: Any, size: tuple[int, int]) -> None:
    image = torch.rand(2, 3, 58, 98, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.interpolate(image, size, mode=kind, align_corners=False)
    torch.testing.assert_close(resized(image, *size, kind), expected, rtol=0, atol=1e-5)


def test_an_area_is_the_mean_of_what_it_covers() -> None:
    image = torch.rand(1, 12, 20, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(resized(image, 4, 5, "area"), torch.nn.functional.avg_pool2d(image, (3, 4)))
    # 5 pixels to 2: each covers two and a half.
    line = resized(torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]]), 1, 2, "area")
    torch.testing.assert_close(line, torch.tensor([[(0 + 1 + 0.5 * 2) / 2.5, (0.5 * 2 + 3 + 4) / 2.5]]))
    for new in (1, 7, 12, 31):
        for kind in KINDS:
            weights = [weight for _, weight in taps(12, new, kind)]  # type: ignore[arg-type]
            assert np.allclose(np.sum(weights, axis=0), 1.0) or new == 12, (new, kind)


def test_go2s_depth_by_hand() -> None:
    """Two rows below and four columns on either side are cut off; [0, 2] m; d / 2 - 0.5."""
    depth = _depth(2, 1, 60, 106)
    seen = processed(torch.from_numpy(depth), GO2, True)
    assert seen.shape == (2, 1, 58, 87) and Camera("eye", 106, 60, depth=True, pipeline=GO2).size == (58, 87)
    near = torch.from_numpy(depth)[..., :58, 4:102].clamp(0.0, 2.0)
    wanted = torch.nn.functional.interpolate(near, (58, 87), mode="bicubic").clamp(0.0, 2.0) / 2.0 - 0.5
    torch.testing.assert_close(seen, wanted, rtol=0, atol=1e-5)
    assert seen.min() >= -0.5 and seen.max() <= 0.5


def test_depth_as_bytes_by_hand() -> None:
    depth = torch.tensor([[[0.0, 0.01, 2.505, 5.0, 9.0, torch.inf]]])
    seen = processed(depth, HURDLE, True)
    assert seen.dtype == torch.uint8 and seen.flatten().tolist() == [0, 0, 128, 255, 255, 255]  # 127.5 is rounded up
    many = _depth(1, 40, 40)
    by_hand = np.round(255 * np.clip((many.astype(np.float64) - 0.01) / (5 - 0.01), 0, 1))
    off = np.abs(processed(many, HURDLE, True).astype(int) - by_hand)
    assert off.max() <= 1 and (off > 0).mean() < 0.01  # halves that double precision rounds the other way


def test_without_a_pipeline_nothing_is_touched() -> None:
    image = torch.rand(1, 3, 5, 5)
    assert processed(image, Pipeline(), True) is image and Camera("side").size == (84, 84)


# --- faults of real cameras


def test_shifts_and_colours_by_hand() -> None:
    image = torch.arange(6, dtype=torch.uint8).view(1, 1, 2, 3)
    seen = effects.moved(image.repeat(2, 1, 1, 1), torch.tensor([[0, 1], [-1, 0]]))
    assert seen[0, 0].tolist() == [[0, 0, 1], [3, 3, 4]] and seen[1, 0].tolist() == [[3, 4, 5], [3, 4, 5]]
    bright = torch.tensor([[100, 200]], dtype=torch.uint8).expand(3, 1, 2)[None]  # (1, 3, 1, 2)
    seen = effects.recoloured(bright, torch.tensor([[1.5]]), torch.tensor([[0.0, -10.0, 20.0]]))
    assert seen[0, :, 0].tolist() == [[150, 255], [140, 255], [170, 255]]


def test_edges_are_where_depth_jumps() -> None:
    depth = torch.tensor([[[[1.0, 1.05, 3.0, torch.inf, torch.inf]]]])
    assert effects.edges(depth, 0.1)[0, 0, 0].tolist() == [False, True, True, True, False]


def test_lost_pixels_and_noise() -> None:
    depth = torch.full((4, 1, 40, 40), 2.0)
    depth[..., 20:] = 4.0
    camera = Camera("eye", 40, 40, depth=True, sensor=Sensor(noise=0.05, edge=0.5, holes=0.1))
    rows = RowRng(0, torch.arange(4))
    seen = effects.sensed(depth, camera, {}, rows)
    lost = seen == effects.LOST
    assert 0.05 < lost[..., :18].float().mean() < 0.16  # of patches
    assert 0.4 < lost[..., 19:21].float().mean() < 0.7  # of the edge, and patches
    error = (seen / depth)[~lost] - 1.0
    assert error.std().item() == pytest.approx(0.05, rel=0.1) and abs(error.mean().item()) < 0.005
    alone = effects.sensed(depth[2:3], camera, {}, RowRng(0, torch.tensor([2])))
    assert torch.equal(alone, seen[2:3]), "by the row alone"


@pytest.mark.parametrize(("milliseconds", "steps"), [(0.0, 0), (20.0, 1), (20.5, 2), (40.0, 2), (1.0, 1)])
def test_an_image_that_comes_late_waits_for_a_control_step(milliseconds: float, steps: int) -> None:
    assert effects.steps_late(torch.tensor([milliseconds]), 0.02).tolist() == [steps]


@pytest.mark.parametrize(("rate", "when"), [(50.0, range(10)), (25.0, range(0, 10, 2)), (30.0, [0, 2, 4, 5, 7, 9])])
def test_images_are_taken_at_their_rate(rate: float, when: Any) -> None:
    """30 a second at 50 control steps a second: every 33.3 ms, seen in the first control step at or after."""
    assert effects.taken(torch.arange(10), rate, 0.02).nonzero()[:, 0].tolist() == list(when)


class Numbers:
    """A renderer whose images are their state: the first number of qpos, as metres and as a colour."""

    kind, threads, device, varied = "numbers", 1, torch.device("cpu"), ()

    def __init__(self, num: int):
        self.num, self.views = num, (View("eye", 6, 6, depth=True),)

    def render(self, qpos: Tensor, own: Mapping[str, Tensor] | None = None) -> dict[str, Image]:
        value = qpos[:, 0, None, None].expand(-1, 6, 6).contiguous()
        return {"eye": Image(value[:, None].expand(-1, 3, -1, -1).to(torch.uint8).contiguous(), value)}


def _stacks(num: int, sensor: Sensor, stack: int = 1) -> FrameStacks:
    return FrameStacks(Numbers(num), {"eye": Camera("eye", 6, 6, depth=True, stack=stack, sensor=sensor)}, 0.02)


def _newest(stacks: FrameStacks) -> list[float]:
    return stacks.frames()["eye"][:, -1, 0, 0].tolist()


def test_latency_and_rate_are_counted_from_the_episodes_beginning() -> None:
    """An image every second step, seen one step after it was taken; row 1 begins anew at time 5."""
    stacks, rng = _stacks(2, Sensor(latency=(20.0, 20.0), rate=25.0), stack=2), RowRng(0, torch.arange(2))
    seen = []
    for t in range(9):
        new = torch.tensor([t == 0, t in (0, 5)])
        stacks.look(torch.tensor([[float(t)], [100.0 + t]]), new, moved=t > 0, rng=rng)
        seen.append(_newest(stacks))
    assert [row[0] for row in seen] == [0, 0, 0, 2, 2, 4, 4, 6, 6]
    assert [row[1] for row in seen] == [100, 100, 100, 102, 102, 105, 105, 105, 107]
    assert stacks.frames()["eye"][:, 0, 0, 0].tolist() == [6, 105], "and the one before in the stack"


def test_a_sensors_state_is_saved_and_rows_do_not_matter_to_each_other() -> None:
    sensor = Sensor(latency=(0.0, 60.0), rate=30.0, noise=0.1, holes=0.2, edge=0.5, shift=2)
    first, second, alone = _stacks(3, sensor), _stacks(3, sensor), _stacks(1, sensor)
    rng, other, third = RowRng(7, torch.arange(3), 5), RowRng(7, torch.arange(3), 5), RowRng(7, torch.tensor([1]), 5)
    for t in range(12):
        qpos = torch.tensor([[1.0 + t], [2.0 + t], [3.0 + t]])
        new = torch.tensor([t in (0, 4), t == 0, t in (0, 6)])
        if t == 6:
            second.load_state_dict(first.state_dict())
            other.counter.copy_(rng.counter)
            first.look(
                qpos, torch.tensor([False, False, True]), moved=False, rng=rng
            )  # row 2 alone begins: so it draws
            second.look(qpos, torch.tensor([False, False, True]), moved=False, rng=other)
        first.look(qpos, new, moved=t > 0, rng=rng)
        alone.look(qpos[1:2], new[1:2], moved=t > 0, rng=third)
        assert torch.equal(alone.frames()["eye"], first.frames()["eye"][1:2]), t
        if t >= 6:
            second.look(qpos, new, rng=other)
            assert torch.equal(first.frames()["eye"], second.frames()["eye"]), t
    assert len(set(first.state_dict()["sensors.eye.lag"].tolist())) > 1
    assert torch.equal(rng.counter, other.counter)


# --- from a declaration to a policy


class Sees(Cartpole):
    cameras = {
        "centred": Camera(
            "side", 44, 40, True, 1, pipeline=Pipeline((0, 2, 1, 1), (0.0, 4.0), 30, 28, "bicubic", "centred")
        ),
        "bytes": Camera("side", 44, 40, True, pipeline=Pipeline(limit=(0.01, 5.0), depth="bytes")),
        "colours": Camera(
            "side", 44, 40, pipeline=Pipeline(width=36), sensor=Sensor((0, 50), 60.0, 2, (0.7, 1.3), 0.1)
        ),
    }
    inputs = {"state": ("state",), "pixels": ("centred", "bytes", "colours")}
    encoders = {"bytes": Encoder(features=9)}


def _algo(seed: int = 0) -> tuple[Sdpg, Any]:
    env = make_env(Sees(), 2, 1, seed=seed, obs="pixels", threads=1)
    options = SdpgCfg(encoder="small", encoder_features=8, horizon=5, precision="float32", image_motion=True)
    return Sdpg(options, Context(env, env.task.inputs["pixels"])), env


def test_shapes_and_encoders_are_those_after_the_pipeline() -> None:
    algo, env = _algo()
    seen = env.observe().sources
    for name, camera in Sees.cameras.items():
        shape = image_shape(camera)
        assert seen[name].shape[1:] == (shape.channels, shape.height, shape.width)
        assert seen[name].dtype == (torch.float32 if shape.depth else torch.uint8)
        assert seen[name][0].numel() * seen[name].element_size() == shape.bytes
    assert seen["centred"].abs().max() <= 0.5 and seen["centred"].std() > 0.05
    centred, bytes_ = algo.actor.encoders["centred"], algo.actor.encoders["bytes"]
    assert isinstance(centred, Depth) and centred.far is None and isinstance(bytes_, Pixels)
    changes = bytes_.convolutions[0].changes  # the motion of three frames of one channel each
    assert changes.tolist() == [[-2, 2, 0], [0, -2, 2], [0, 0, 1]]
    shown = [colours(seen[name][0], camera) for name, camera in Sees.cameras.items()]
    assert [image.shape for image in shown] == [(3, 28, 30), (9, 40, 44), (9, 40, 36)]
    torch.testing.assert_close(shown[1][::3].float(), 255.0 - seen["bytes"][0].float())


def test_a_run_with_a_sensor_model_is_resumed_exactly() -> None:
    (algo, env), (twin, other) = _algo(), _algo()
    algo.update(algo.collect(env))
    twin.load_state_dict(copy.deepcopy(algo.state_dict()))  # a file would not share tensors, either
    other.load_state_dict(env.state_dict())
    for i in range(2):
        rollouts = [a.collect(e) for a, e in ((algo, env), (twin, other))]
        for name in Sees.cameras:
            assert torch.equal(rollouts[0].sources[name], rollouts[1].sources[name]), (i, name)
        algo.update(rollouts[0])
        twin.update(rollouts[1])
    assert torch.equal(algo.actor.mean.weight, twin.actor.mean.weight)


def test_images_on_their_way_are_in_the_memory_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from sdpg.presets import resolve

    class Late(Cartpole):
        cameras = {"pixels": replace(Camera("side"), sensor=Sensor(latency=(0.0, 200.0)))}

    plans = []
    for task in (Cartpole, Late):
        monkeypatch.setattr("sdpg.run.memory.make_task", lambda name, cfg, task=task: task())
        plans.append(make_plan(resolve("cartpole", obs="pixels")).per_nominal["frames"])
    images = effects.most_late(Late.cameras["pixels"].sensor, Late().step_seconds)  # type: ignore[arg-type]
    assert plans[1] - plans[0] >= images * 3 * 84 * 84


@pytest.mark.parametrize(
    ("camera", "words"),
    [
        (Camera("side", pipeline=Pipeline(crop=(40, 44, 0, 0))), "leaves nothing of 84 x 84"),
        (Camera("side", pipeline=Pipeline(width=0)), "width and height must be positive"),
        (Camera("side", pipeline=Pipeline(limit=(0.0, 1.0))), "limit is of depth"),
        (Camera("side", depth=True, pipeline=Pipeline(limit=(2.0, 1.0))), "nearer and a farther"),
        (Camera("side", depth=True, pipeline=Pipeline(depth="bytes")), "needs a depth camera and a limit"),
        (Camera("side", pipeline=Pipeline(depth="centred")), "needs a depth camera and a limit"),
        (Camera("side", depth=True, pipeline=Pipeline(width=40)), "resized needs a limit"),
        (Camera("side", sensor=Sensor(latency=(5.0, 1.0))), "latency must be from 0 up"),
        (Camera("side", sensor=Sensor(holes=2.0)), "holes must be from 0 to 1"),
        (Camera("side", sensor=Sensor(rate=0.0)), "rate must be positive"),
        (Camera("side", sensor=Sensor(shift=-1)), "shift must be at least 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(camera: Camera, words: str) -> None:
    class Wrong(Cartpole):
        cameras = {"pixels": camera}

    with pytest.raises(SdpgError, match=r"cameras\['pixels'\]: .*" + words):
        check_inputs(Wrong(), "pixels")
