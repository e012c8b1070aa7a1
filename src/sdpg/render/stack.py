"""What a policy sees of cameras: the last few frames of each of the N nominal worlds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sdpg.camera import Camera
from sdpg.pipeline import processed
from sdpg.render import sensor as model
from sdpg.render.api import Renderer
from sdpg.rng import RowRng


class FrameStacks:
    """A renderer and its frame stacks, on its device: source -> (N, stack * channels, H, W), the newest frame last.

    Every `look` makes new tensors, so that what was handed out before stays as it was. A camera with a sensor model has
    a state beside its stack: what was drawn for the episode, and images on their way; a look is a control step of it.
    """

    def __init__(self, renderer: Renderer, cameras: Mapping[str, Camera], step_seconds: float = 0.0):
        self.renderer, self.cameras, self.step_seconds = renderer, dict(cameras), step_seconds
        self._frames: dict[str, Tensor] = {}
        self._sensors: dict[str, _Sensor] = {}
        for name, camera in self.cameras.items():
            dtype = torch.float32 if camera.floats else torch.uint8
            shape = (renderer.num, camera.stack * camera.channels, *camera.size)
            self._frames[name] = torch.zeros(shape, dtype=dtype, device=renderer.device)
            if camera.sensor is not None:
                self._sensors[name] = _Sensor(camera, self._frames[name][:, : camera.channels], step_seconds)

    @property
    def random(self) -> bool:
        """Whether looks draw random numbers."""
        return bool(self._sensors)

    def frames(self) -> dict[str, Tensor]:
        return dict(self._frames)

    def look(
        self,
        qpos: Tensor,
        new: Tensor,
        moved: bool = True,
        own: Mapping[str, Tensor] | None = None,
        rng: RowRng | None = None,
    ) -> None:
        """Add a frame of the states qpos (N, nq), with what rows have of their own; rows marked in `new` (N,) get a
        stack full of it. If nothing `moved` since the last look, the stacks of all other rows stay as they are, and
        they draw nothing."""
        images = self.renderer.render(qpos, own)
        for name, camera in self.cameras.items():
            image = images[camera.name]
            frame = image.depth[:, None] if camera.depth and image.depth is not None else image.rgb  # (N, C, H, W)
            assert frame is not None
            if name in self._sensors:
                assert rng is not None, "a sensor model draws"
                frame = self._sensors[name].look(frame, new, moved, rng)
            else:
                frame = processed(frame, camera.pipeline, camera.depth)
            channels = frame.shape[1]
            old = self._frames[name]
            stack = torch.cat((old[:, channels:], frame), dim=1) if moved else old.clone()
            if not new.is_cpu:  # to ask a GPU which rows are new takes longer than to go over all of them
                stack = torch.where(new[:, None, None, None], frame.repeat(1, camera.stack, 1, 1), stack)
            elif new.any():
                stack[new] = frame[new].repeat(1, camera.stack, 1, 1)
            self._frames[name] = stack

    def state_dict(self) -> dict[str, Tensor]:
        """name -> (N, ...)"""
        mine = {f"frames.{name}": values for name, values in self._frames.items()}
        for name, sensor in self._sensors.items():
            mine |= {f"sensors.{name}.{part}": values.clone() for part, values in sensor.state.items()}
        return mine

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        device = self.renderer.device
        self._frames = {name: state[f"frames.{name}"].to(device, copy=True) for name in self._frames}
        for name, sensor in self._sensors.items():
            for part, values in sensor.state.items():
                values.copy_(state[f"sensors.{name}.{part}"])


class _Sensor:
    """The sensor model of one camera, and its state: name -> (N, ...)."""

    def __init__(self, camera: Camera, frame: Tensor, step_seconds: float):
        """`frame` (N, C, H, W): an example of what the pipeline makes."""
        assert camera.sensor is not None
        self.camera, self.sensor, self.step_seconds = camera, camera.sensor, step_seconds
        rows = torch.arange(len(frame), device=frame.device)
        self.state = model.begun(self.sensor, RowRng(0, rows), step_seconds)  # as an example
        self.state["age"] = torch.zeros_like(rows)  # control steps since the episode's first image
        if self.sensor.rate is not None or "lag" in self.state:
            images = 1 + (model.most_late(self.sensor, step_seconds) if "lag" in self.state else 0)
            self.state["on_the_way"] = frame[:, None].repeat(1, images, 1, 1, 1)  # (N, images, C, H, W), newest first

    def look(self, image: Tensor, new: Tensor, moved: bool, rng: RowRng) -> Tensor:
        """What is seen now (N, C, H, W), where the world is as in `image`."""
        state, begins = self.state, new.nonzero()[:, 0]
        if len(begins):
            drawn = model.begun(self.sensor, rng.select(begins), self.step_seconds)
            for name, values in drawn.items():
                state[name][begins] = values
        state["age"] = torch.where(new, 0, state["age"] + moved)
        rows = torch.arange(len(new), device=new.device) if moved else begins
        mine = {name: values[rows] for name, values in state.items() if name in ("shift", "brightness", "colour")}
        image = image.clone()
        image[rows] = model.sensed(image[rows], self.camera, mine, rng.select(rows))
        frame = processed(image, self.camera.pipeline, self.camera.depth)
        return self._arrived(frame, new, moved) if "on_the_way" in state else frame

    def _arrived(self, frame: Tensor, new: Tensor, moved: bool) -> Tensor:
        """The newest image that has reached the policy; in the first step of an episode that is the first one."""
        way, wide = self.state["on_the_way"], (slice(None), None, None, None)
        if moved:
            taken = model.taken(self.state["age"], self.sensor.rate, self.step_seconds)
            newest = torch.where(taken[wide], frame, way[:, 0])
            way = torch.cat((newest[:, None], way[:, :-1]), dim=1)
        way = torch.where(new[:, None, None, None, None], frame[:, None], way)
        self.state["on_the_way"] = way
        if "lag" not in self.state:
            return way[:, 0]
        return way[torch.arange(len(new), device=new.device), self.state["lag"]]
