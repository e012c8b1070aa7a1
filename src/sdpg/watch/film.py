"""Watch a policy: a third-person view beside what the policy's own cameras see, as a video or as single images.

Drawn by the renderers of training, so it needs no OpenGL and no display; encoded by the ffmpeg that pip installed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sdpg.algos.api import Policy
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.types import Progress
from sdpg.watch.player import Player

MAX_FPS = 50  # of a video; faster control is shown at every second, third ... step
GIF_FPS = 12.5  # at most: a page is to load it quickly, and GIFs know hundredths of a second
GIF_COLOURS = 32


def frames(
    policy: Policy,
    env: BranchedEnv,
    episodes: int,
    size: int,
    summary: dict[str, Any],
    progress: Progress = iter,
    seconds: float | None = None,
) -> Iterator[np.ndarray]:
    """Images (H, W, 3) uint8, every `stride`-th step; returns and lengths of the episodes go to `summary`. No more than
    `seconds` of the scene's time, if given: an episode that was not over then is not among them."""
    player, stride = Player(policy, env, third_person(env, size)), frame_stride(env)
    finished: list[tuple[float, int]] = []
    steps = episodes * env.task.episode_steps
    if seconds is not None:
        steps = min(steps, max(1, round(seconds / env.task.step_seconds)))
    for _ in progress(range(steps)):
        if player.steps % stride == 0:
            yield player.image()
        if (ended := player.step()) is not None:
            finished.append(ended)
            if len(finished) == episodes:
                break
    summary |= {"returns": [total for total, _ in finished], "lengths": [steps for _, steps in finished]}


def third_person(env: BranchedEnv, size: int) -> Callable[[Tensor], Tensor]:
    """What draws a state qpos (1, nq) as the scene's camera for films sees it: (3, size, size) uint8."""
    camera = env.task.camera
    renderer = make_renderer(env.sim.model, 1, [View(camera, size, size)], threads=1, params=env.task.params)

    def draw(qpos: Tensor) -> Tensor:
        rgb = renderer.render(qpos, env.looks(renderer.varied))[camera].rgb
        assert rgb is not None
        return rgb[0]

    return draw


def frame_stride(env: BranchedEnv) -> int:
    """Control steps from one image to the next."""
    return max(1, round(1.0 / env.task.step_seconds / MAX_FPS))


def write_video(path: Path, images: Iterator[np.ndarray], fps: float) -> int:
    """H.264 in an mp4, or a GIF; the number of images. Written aside: an earlier film stays until this one is whole."""
    import imageio_ffmpeg

    if path.is_dir():
        raise SdpgError(
            f"'{path}' is a folder; give --video a file in it, such as {path / 'out.mp4'}, or --frames {path}"
        )
    first = next(images)
    gif = path.suffix.lower() == ".gif"
    aside = path.with_name(f".{path.stem}.mp4" if gif else f".{path.name}")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = imageio_ffmpeg.write_frames(
            str(aside),
            first.shape[1::-1],
            fps=fps,
            macro_block_size=2,
            quality=10 if gif else 7,
            ffmpeg_log_level="quiet",
        )
        with closing(writer):
            writer.send(None)
            for image in chain([first], images):
                writer.send(image)
                count += 1
        if _images_in(aside) != count:  # ffmpeg does not say that a disk was full
            raise OSError("images are missing")
        if gif:
            aside = _as_gif(aside, min(fps, GIF_FPS))
        aside.replace(path)
    except OSError as error:
        raise SdpgError(f"the video '{path}' can't be written; give another --video, or --frames DIR") from error
    finally:
        with suppress(OSError):  # where nothing could be written, there is nothing to remove
            aside.unlink()
    return count


def _as_gif(film: Path, fps: float) -> Path:
    """The same film in few colours, beside it and in place of it."""
    import imageio_ffmpeg

    made = film.with_suffix(".gif")
    colours = f"fps={fps},split[a][b];[a]palettegen=max_colors={GIF_COLOURS}[p];[b][p]paletteuse=dither=none"
    words = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "quiet", "-i", str(film), "-vf", colours, str(made)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL)
    film.unlink()
    if done.returncode:
        made.unlink(missing_ok=True)
        raise OSError("ffmpeg has failed")
    return made


def _images_in(path: Path) -> int:
    """Of a film; none if it can't be read."""
    import imageio_ffmpeg

    try:
        return imageio_ffmpeg.count_frames_and_secs(str(path))[0]
    except (OSError, RuntimeError):
        return 0


def write_frames(folder: Path, images: Iterator[np.ndarray]) -> int:
    """PNG files 00000.png, 00001.png ...; their number."""
    from PIL import Image

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SdpgError(f"'{folder}' is a file; give --frames a folder") from error
    count = 0
    for count, image in enumerate(images, 1):
        Image.fromarray(image).save(folder / f"{count - 1:05}.png")
    return count
