"""Ground that is made: what is looked up is what MuJoCo collides with, and every level keeps to its limits."""

from __future__ import annotations

import math
from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

from sdpg.errors import SdpgError
from sdpg.tasks.terms import yaw_of
from sdpg.tasks.terrain import Terrain, TerrainCfg

CFG = TerrainCfg(levels=3, length=6.0, width=5.0, border=1.0, seed=3)
TERRAIN = Terrain(CFG)


def _points(count: int, seed: int = 0) -> torch.Tensor:
    low, high = torch.tensor(TERRAIN.low), torch.tensor(TERRAIN.high)
    return low + (high - low) * torch.rand(count, 2, generator=torch.Generator().manual_seed(seed))


def _patch(terrain: Terrain, level: int, column: int) -> np.ndarray:
    cfg = terrain.cfg
    long, wide, border = (round(size / cfg.cell) for size in (cfg.length, cfg.width, cfg.border))
    y, x = border + column * wide, border + level * long
    return terrain.heights[y : y + wide + 1, x : x + long + 1]


def test_it_follows_from_the_seed() -> None:
    assert TERRAIN.heights.dtype == np.float32
    assert np.array_equal(Terrain(CFG).heights, TERRAIN.heights)
    assert not np.array_equal(Terrain(replace(CFG, seed=4)).heights, TERRAIN.heights)
    fewer = Terrain(replace(CFG, kinds=CFG.kinds[:3]))  # a patch does not depend on which others there are
    assert np.array_equal(_patch(fewer, 1, 2), _patch(TERRAIN, 1, 2))


def test_distances_are_along_the_normal() -> None:
    """Of points above a triangle, and of points below it, with the slope of the ground taken by differences."""
    xy, above = _points(400, seed=1), 0.1
    heights, step = TERRAIN.height_at(xy), 1e-3
    slopes = [(TERRAIN.height_at(xy + step * torch.eye(2)[axis]) - heights) / step for axis in (0, 1)]
    inside = torch.stack([TERRAIN.height_at(xy - step * torch.eye(2)[axis]) for axis in (0, 1)])
    smooth = (inside + step * torch.stack(slopes) - heights).abs().amax(0) < 2e-5  # no edge within a step
    expected = above / (1.0 + slopes[0].square() + slopes[1].square()).sqrt()
    assert smooth.float().mean() > 0.8 and (slopes[0][smooth].abs() > 0.1).any()
    for sign in (1.0, -1.0):
        points = torch.cat((xy, (heights + sign * above)[:, None]), dim=-1)
        assert torch.allclose(TERRAIN.distance(points)[smooth], sign * expected[smooth], atol=2e-3)


def test_heights_are_those_of_mujocos_rays() -> None:
    spec = mujoco.MjSpec()
    geom = TERRAIN.add_to(spec)
    geom.friction[0] = 0.7
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert model.geom("terrain").friction[0] == 0.7
    points, hit = _points(400), np.zeros(1, np.int32)
    rays = []
    for x, y in points.double().tolist():
        rays.append(5.0 - mujoco.mj_ray(model, data, [x, y, 5.0], [0, 0, -1.0], None, 1, -1, hit))
    heights = TERRAIN.height_at(points)
    assert heights.dtype == torch.float32 and heights.abs().max() > 0.2
    assert (heights - torch.tensor(rays)).abs().max() < 1e-3  # float32 places on walls that rise ten to one
    # Elsewhere than on the triangles: what plain bilinear interpolation says is told apart.
    u, v = ((points - torch.tensor(TERRAIN.low)) / CFG.cell).frac().unbind(-1)
    i, j = ((points - torch.tensor(TERRAIN.low)) / CFG.cell).long().unbind(-1)
    h = torch.tensor(TERRAIN.heights)
    lower, upper = (1 - u) * h[j, i] + u * h[j, i + 1], (1 - u) * h[j + 1, i] + u * h[j + 1, i + 1]
    assert ((1 - v) * lower + v * upper - torch.tensor(rays)).abs().max() > 0.01


def test_balls_come_to_rest_on_it() -> None:
    """On rails, so that they can't roll away. A ball touches a slope beside its middle: where, the heights tell."""
    radius, points = 0.01, _points(50, seed=1)
    grid = torch.linspace(-radius, radius, 61)
    disc = torch.cartesian_prod(grid, grid)
    disc = disc[disc.norm(dim=-1) <= radius]  # (P, 2)
    underside = radius - (radius**2 - disc.square().sum(-1)).clamp(min=0.0).sqrt()  # (P,) above the ball's lowest point
    heights = (TERRAIN.height_scan(points, torch.zeros(50), disc) - underside).amax(-1)  # (50,) of that, at rest
    plain = (heights - TERRAIN.height_at(points)).abs() < 1e-3
    assert 40 < plain.sum() < 50  # not only flat ground
    spec = mujoco.MjSpec()
    spec.option.timestep = 0.001
    geom = TERRAIN.add_to(spec)
    geom.condim, geom.solref = 1, [0.004, 1.0]
    for (x, y), height in zip(points.tolist(), heights.tolist(), strict=True):
        body = spec.worldbody.add_body(pos=[x, y, height + 0.03])
        body.add_joint(type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[0, 0, 1])
        body.add_geom(size=[radius, 0, 0], mass=1.0, condim=1, solref=[0.004, 1.0], contype=0)
    model = spec.compile()
    data = mujoco.MjData(model)
    for _ in range(250):
        mujoco.mj_step(model, data)
    assert np.abs(data.qvel).max() < 0.01
    assert np.abs(data.xpos[1:, 2] - radius - heights.numpy()).max() < 0.01


# kind -> the height that its obstacles may have at a level
LIMITS = {
    "slope_up": lambda c, k: c.at(c.slope, k) * c.cell,
    "slope_down": lambda c, k: c.at(c.slope, k) * c.cell,
    "rough": lambda c, k: 2 * c.at(c.rough, k),
    "stairs_up": lambda c, k: c.at(c.riser, k),
    "stairs_down": lambda c, k: c.at(c.riser, k),
    "hurdles": lambda c, k: c.at(c.hurdle, k) + c.at(c.hurdle_spread, k),
    "stones": lambda c, k: c.hole,
    "gap": lambda c, k: c.hole,
    "pit": lambda c, k: c.at(c.pit, k),
}


@pytest.mark.parametrize("cell", [0.1, 0.05])
def test_no_step_is_higher_and_no_hole_wider_than_its_level_allows(cell: float) -> None:
    cfg = replace(CFG, cell=cell, hurdle_spread=(0.05, 0.2))
    terrain = Terrain(cfg)
    for level in range(cfg.levels):
        for column, kind in enumerate(cfg.kinds):
            heights, limit = _patch(terrain, level, column), LIMITS[kind](cfg, level)
            steps = max(np.abs(np.diff(heights, axis=axis)).max() for axis in (0, 1))
            assert steps <= limit + 1e-5, (kind, level)
            if kind not in ("rough", "hurdles"):  # which draw theirs
                assert steps >= limit - 1e-5, (kind, level)
            assert heights[0].any() == heights[:, 0].any() == False, "patches join at height 0"  # noqa: E712
            if kind in ("stones", "gap"):
                allowed = cfg.at(cfg.gap if kind == "gap" else cfg.stone_gap, level)
                assert _widest(heights < 0) * cell <= allowed + 1e-6, (kind, level)
    hurdles = _patch(terrain, 2, cfg.kinds.index("hurdles"))[round(cfg.width / cell / 2)] > 0
    edges = np.flatnonzero(np.diff(hurdles.astype(int)))
    assert len(edges) >= 2 and set(edges[1::2] - edges[::2]) == {round(cfg.hurdle_thickness / cell) + 1}, "none is cut"


def _widest(hole: np.ndarray) -> int:
    """Cells between firm nodes, the shorter way: across the lane, not along it."""

    def runs(line: np.ndarray) -> np.ndarray:  # of every node, how many holes in a row it belongs to
        out, begin = np.zeros(len(line), int), 0
        for i in range(1, len(line) + 1):
            if i == len(line) or line[i] != line[begin]:
                out[begin:i] = (i - begin) * line[begin]
                begin = i
        return out

    both = np.minimum(np.apply_along_axis(runs, 1, hole), np.apply_along_axis(runs, 0, hole))
    crossing = hole & (both > np.median(both[hole]))  # where lanes cross, both ways are along one
    return int(np.where(crossing, 0, both).max()) + 1


def test_harder_is_harder() -> None:
    for column, kind in enumerate(CFG.kinds):
        if kind not in ("gap", "stones"):
            highest = [np.abs(_patch(TERRAIN, level, column)).max() for level in range(CFG.levels)]
            assert highest[0] < highest[1] < highest[2], kind
        else:
            holes = [(_patch(TERRAIN, level, column) < 0).mean() for level in range(CFG.levels)]
            assert 0 < holes[0] < holes[2], kind


def test_robots_start_on_flat_platforms() -> None:
    level, kind = torch.meshgrid(torch.arange(CFG.levels), torch.arange(len(CFG.kinds)), indexing="ij")
    spawn = TERRAIN.spawn(level, kind)  # (levels, kinds, 3)
    assert spawn.shape == (3, 9, 3) and not TERRAIN.left(spawn[..., :2]).any()
    around = torch.cartesian_prod(torch.linspace(-0.99, 0.99, 12), torch.linspace(-0.99, 0.99, 12))
    heights = TERRAIN.height_scan(spawn[..., :2], torch.zeros(3, 9), around)
    assert (heights - spawn[..., 2:]).abs().max() < 1e-6
    assert torch.equal(spawn[2, 0, :2], torch.tensor([15.0, -20.0]))
    up, down = spawn[2, CFG.kinds.index("stairs_up"), 2], spawn[2, CFG.kinds.index("stairs_down"), 2]
    assert up < -0.1 and down > 0.1  # as seen from the platform


def test_a_scan_turns_with_the_robot() -> None:
    xy = _points(6, seed=2).view(2, 3, 2)
    yaw = torch.linspace(-3.0, 3.0, 6).view(2, 3)
    offsets = torch.tensor([[0.0, 0.0], [0.8, 0.0], [0.0, 0.3]])
    scan = TERRAIN.height_scan(xy, yaw, offsets)
    assert scan.shape == (2, 3, 3) and torch.equal(scan[..., 0], TERRAIN.height_at(xy))
    ahead = xy + 0.8 * torch.stack((yaw.cos(), yaw.sin()), dim=-1)
    left = xy + 0.3 * torch.stack((-yaw.sin(), yaw.cos()), dim=-1)
    assert torch.allclose(scan[..., 1], TERRAIN.height_at(ahead), atol=1e-4)
    assert torch.allclose(scan[..., 2], TERRAIN.height_at(left), atol=1e-4)


def test_yaw_is_about_the_vertical_whatever_the_tilt() -> None:
    for turn in (-2.5, 0.0, 1.0):
        quat, tilted = np.zeros(4), np.zeros(4)
        mujoco.mju_axisAngle2Quat(quat, [0, 0, 1.0], turn)
        mujoco.mju_axisAngle2Quat(tilted, [1.0, 0, 0], 0.4)  # roll
        mujoco.mju_mulQuat(quat, quat.copy(), tilted)
        assert math.isclose(yaw_of(torch.tensor(quat)).item(), turn, abs_tol=1e-6)


def test_who_left_the_map_is_told() -> None:
    (x0, y0), (x1, y1) = TERRAIN.low, TERRAIN.high
    points = torch.tensor([[x0 - 0.1, 0.0], [x0 + 0.1, 0.0], [x1 + 0.1, 0.0], [0.0, y1 + 0.1], [0.0, y0 + 0.1]])
    assert TERRAIN.left(points).tolist() == [True, False, True, True, False]
    assert TERRAIN.left(points, margin=0.5).all()
    assert TERRAIN.height_at(points[:1] - 100.0).item() == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kinds": ("hills",)}, "hills"),
        ({"length": 6.03}, "length must be a positive multiple"),
        ({"width": 2.0}, "width must be at least"),
        ({"gap": (0.1, 0.5)}, "gap must be at least two cells"),
        ({"platform": 0.0}, "gap and pit need a platform"),
    ],
)
def test_what_cannot_be_built_is_refused(change: dict, words: str) -> None:
    with pytest.raises(SdpgError, match=words):
        Terrain(replace(CFG, **change))
