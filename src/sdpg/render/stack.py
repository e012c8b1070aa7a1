"""What a policy sees of cameras: the last few frames of each of the N nominal worlds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sdpg.render.api import Renderer
from sdpg.types import Camera


class FrameStacks:
    """A renderer and its frame stacks, on its device: source -> (N, stack * channels, H, W), the newest frame last.

    Every `look` makes new tensors, so that what was handed out before stays as it was.
    """

    def __init__(self, renderer: Renderer, cameras: Mapping[str, Camera]):
        self.renderer, self.cameras = renderer, dict(cameras)
        self._frames: dict[str, Tensor] = {}
        for name, camera in self.cameras.items():
            channels, dtype = (1, torch.float32) if camera.depth else (3, torch.uint8)
            shape = (renderer.num, camera.stack * channels, camera.height, camera.width)
            self._frames[name] = torch.zeros(shape, dtype=dtype, device=renderer.device)

    def frames(self) -> dict[str, Tensor]:
        return dict(self._frames)

    def look(self, qpos: Tensor, new: Tensor, moved: bool = True, own: Mapping[str, Tensor] | None = None) -> None:
        """Add a frame of the states qpos (N, nq), with what rows have of their own; rows marked in `new` (N,) get a
        stack full of it. If nothing `moved` since the last look, the stacks of all other rows stay as they are."""
        images = self.renderer.render(qpos, own)
        for name, camera in self.cameras.items():
            image = images[camera.name]
            frame = image.depth[:, None] if camera.depth and image.depth is not None else image.rgb  # (N, C, H, W)
            assert frame is not None
            channels = frame.shape[1]
            old = self._frames[name]
            stack = torch.cat((old[:, channels:], frame), dim=1) if moved else old.clone()
            if not new.is_cpu:  # to ask a GPU which rows are new takes longer than to go over all of them
                stack = torch.where(new[:, None, None, None], frame.repeat(1, camera.stack, 1, 1), stack)
            elif new.any():
                stack[new] = frame[new].repeat(1, camera.stack, 1, 1)
            self._frames[name] = stack

    def load(self, frames: Mapping[str, Tensor]) -> None:
        device = self.renderer.device
        self._frames = {name: values.to(device, copy=True) for name, values in frames.items()}
