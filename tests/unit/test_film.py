"""Films: what is shown, and that the files can be read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from helpers.runs import tiny
from PIL import Image

from sdpg.cli import main
from sdpg.errors import SdpgError
from sdpg.train import train
from sdpg.types import Camera
from sdpg.watch import film, player


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("video") / "run"
    train(tiny("cartpole", "pixels", iterations=1), folder)
    return folder


def test_the_policys_frames_stand_beside_the_view_the_newest_on_top() -> None:
    film = torch.full((3, 90, 90), 7, dtype=torch.uint8)
    stack = torch.tensor([10, 20, 30], dtype=torch.uint8).repeat_interleave(3)[:, None, None].expand(9, 6, 6)
    image = player.beside(film, [stack])
    assert image.shape == (90, 90 + 4 + 30, 3)
    assert (image[:, :90] == 7).all()
    assert image[[5, 45, 85], 110, 0].tolist() == [30, 20, 10]


def test_depth_is_shown_near_bright() -> None:
    depth = torch.stack((torch.full((4, 4), 0.0), torch.full((4, 4), float("inf"))))
    seen = player.colours(depth, Camera("side", depth=True, stack=2))
    image = player.beside(torch.zeros(3, 8, 8, dtype=torch.uint8), [seen])
    assert image[0, -1].tolist() == [0, 0, 0] and image[-1, -1].tolist() == [255, 255, 255]  # newest on top: far


def test_play_writes_a_video_that_can_be_read(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out.mp4"
    assert main(["play", str(run), "--video", str(out), "--episodes", "1", "--size", "96", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    reader = imageio_ffmpeg.read_frames(str(out))
    meta = next(reader)
    assert meta["size"] == (96 + 4 + 32, 96) and meta["fps"] == 50.0
    images = [np.frombuffer(frame, np.uint8) for frame in reader]
    assert len(images) == result["images"] == result["lengths"][0]
    assert not np.array_equal(images[0], images[-1])  # it moves


def test_play_writes_images_of_a_task_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "frames"
    assert main(["play", "hopper", "--policy", "zero", "--frames", str(folder), "--episodes", "1", "--size", "64"]) == 0
    files = sorted(folder.glob("*.png"))
    assert f"{len(files)} images" in capsys.readouterr().out
    assert Image.open(files[0]).size == (64 + 4 + 20, 64)  # 64 + 4 + 21, made even


def test_every_camera_has_its_column(tmp_path: Path) -> None:
    argv = [
        "play",
        "helpers.sources:Senses",
        "--policy",
        "zero",
        "--frames",
        str(tmp_path),
        "--episodes",
        "1",
        "--size",
        "96",
    ]
    assert main(argv) == 0
    width, height = Image.open(tmp_path / "00000.png").size
    # three colour images, two of depth, one of another camera: 32, 48 and 96 high
    assert (width, height) == (96 + (4 + 32 * 40 // 44) + (4 + 48 * 40 // 44) + (4 + 96 * 30 // 24), 96)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["play"], "which run?"),
        (["play", "nowhere"], "no run folder"),
        (["play", "nosuchtask", "--policy", "zero"], "unknown task"),
        (["play", "hopper", "--policy", "zero", "--size", "8"], "size must be"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_a_video_that_cant_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file").write_text("")
    for name, said in (("folder.mp4", "is a folder; give --video a file in it"), ("file/x.mp4", "can't be written")):
        with pytest.raises(SdpgError, match=said):
            film.write_video(tmp_path / name, iter([np.zeros((16, 16, 3), np.uint8)] * 3), 10)


def test_a_gif_shows_the_film_at_fewer_images_a_second(tmp_path: Path) -> None:
    shades = np.linspace(0, 240, 100).astype(np.uint8)  # two seconds that get lighter
    images = [np.full((32, 48, 3), shade, np.uint8) for shade in shades]
    assert film.write_video(tmp_path / "out.gif", iter(images), 50) == 100
    assert list(tmp_path.iterdir()) == [tmp_path / "out.gif"]
    with Image.open(tmp_path / "out.gif") as gif:
        assert gif.format == "GIF" and gif.size == (48, 32) and gif.n_frames == 25  # type: ignore[attr-defined]
        seen = []
        for i in range(25):
            gif.seek(i)
            seen.append(float(np.asarray(gif.convert("L")).mean()))
    assert seen == sorted(seen) and seen[0] < 30 and seen[-1] > 210


def test_a_film_ends_after_so_many_seconds(tmp_path: Path) -> None:
    target = tmp_path / "short.gif"
    argv = ["play", "cartpole", "--policy", "zero", "--seconds", "0.8", "--size", "64", "--video", str(target)]
    assert main(argv) == 0
    with Image.open(target) as gif:
        assert gif.n_frames == 10  # type: ignore[attr-defined]


def test_a_film_that_broke_off_is_an_error_and_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk has it: ffmpeg ends without a word, and what it wrote can't be read."""
    target, images = tmp_path / "out.mp4", [np.zeros((16, 16, 3), np.uint8)] * 3
    assert film.write_video(target, iter(images), 10) == 3
    before = target.read_bytes()

    def breaks_off(path: str, *args: object, **kwargs: object) -> Iterator[None]:
        Path(path).write_bytes(before[: len(before) // 2])
        while True:
            yield

    monkeypatch.setattr(imageio_ffmpeg, "write_frames", breaks_off)
    with pytest.raises(SdpgError, match="can't be written"):
        film.write_video(target, iter(images), 10)
    assert target.read_bytes() == before and list(tmp_path.iterdir()) == [target]


def test_a_mistake_in_what_is_filmed_is_not_called_one_of_the_film(tmp_path: Path) -> None:
    def images() -> Iterator[np.ndarray]:
        yield np.zeros((16, 16, 3), np.uint8)
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        film.write_video(tmp_path / "out.mp4", images(), 10)
    assert not list(tmp_path.iterdir())
