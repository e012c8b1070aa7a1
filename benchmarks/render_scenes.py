"""Both renderers on the robots' scenes of the tests, one thread, CPU time: writes render-SCENE.json into
benchmarks/results. `python benchmarks/render_scenes.py [SCENE ...]`; the models are those of MENAGERIE_ROOT, or are
downloaded."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from helpers.robot_scenes import SCENES  # noqa: E402

from sdpg.bench import machine  # noqa: E402
from sdpg.bench.render import Options, measure  # noqa: E402
from sdpg.render.raster import RasterRenderer  # noqa: E402

IMAGES = 16  # of a call


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    options = Options(repeats=8, calls=4, agreement=True)
    for name in names:
        scene = SCENES[name]()
        qpos = scene.states(IMAGES, 0)
        start = time.process_time()
        RasterRenderer(scene.model, IMAGES, scene.views)
        seconds = time.process_time() - start
        result = {
            "command": f"python benchmarks/render_scenes.py {name}",
            "kind": "render",
            "scene": name,
            "images": IMAGES,
            "machine": machine.describe(1),
            "versions": {part: version(part) for part in ("numba", "warp-lang", "mujoco-warp", "fast-simplification")},
            "start_cpu_seconds": seconds,
            "cameras": [measure(scene.model, view, qpos, options, 1) for view in scene.views],
        }
        (HERE / "results" / f"render-{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        for row in result["cameras"]:
            ms = row["ms_per_image"]
            print(name, row["camera"], f"{ms['raster']:.3f} ms, {ms['warp']:.2f} traced", row["agreement"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SCENES))
