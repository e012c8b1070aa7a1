"""Uneven ground for walking robots: one height field, made from a seed, that physics, rewards and observations share.

Patches stand in rows of rising difficulty, the levels, along +x from 0, and in columns, the kinds, along y, centred on
0. Every patch has a flat rim at height 0, so that neighbours join, and a flat platform in its middle to start on.
Between its nodes the ground is what MuJoCo makes of it, flat triangles: each cell is cut from its lowest x and y to its
highest. Heights asked for here are therefore those that feet touch; they are looked up, never remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.errors import SdpgError

Range = tuple[float, float]
"""At the first level, at the last level; linear in between."""

_RIM = 2  # cells around a patch that stay at height 0
_BASE = 1.0  # metres of ground below the lowest point


@dataclass(frozen=True)
class TerrainCfg:
    """Metres, unless it says otherwise. A wall or a riser is a ramp of one cell."""

    seed: int = 0
    levels: int = 10
    kinds: tuple[str, ...] = tuple("slope_up slope_down rough stairs_up stairs_down hurdles stones gap pit".split())
    length: float = 8.0  # of a patch, along x
    width: float = 8.0  # along y
    cell: float = 0.1
    border: float = 5.0  # flat ground around all patches
    platform: float = 2.0  # side of the flat square in the middle of each; 0: none
    slope: Range = (0.0, 0.36)  # rise over run
    rough: Range = (0.02, 0.05)  # heights are between minus and plus this,
    rough_cell: float = 0.2  # drawn this far apart
    riser: Range = (0.05, 0.185)
    tread: float = 0.4
    hurdle: Range = (0.1, 0.5)  # least height,
    hurdle_spread: Range = (0.0, 0.0)  # and what is added to it at most
    hurdle_spacing: Range = (1.8, 2.2)  # from centre to centre: drawn between the two, at every level
    hurdle_thickness: float = 0.1  # of the top
    stone: Range = (1.5, 0.3)  # side of a stone
    stone_gap: Range = (0.2, 0.3)  # between two of them
    gap: Range = (0.2, 0.9)  # width of the moat around the platform
    hole: float = 1.0  # depth of that and of what is between stones
    pit: Range = (0.05, 0.3)  # how deep the platform lies

    def rules(self) -> dict[str, bool]:
        """A sentence -> whether it holds."""
        unknown = [kind for kind in self.kinds if kind not in _KINDS]
        least = self.platform + 2 * (_RIM + 2) * self.cell
        beyond = (self.length - self.platform - self.hurdle_spacing[1]) / 2  # the first hurdle, up to the edge
        if self.platform == 0:
            beyond = self.length - self.hurdle_spacing[1]
        whole = {"length": self.length, "width": self.width, "border": self.border, "tread": self.tread}
        heights = {name: getattr(self, name) for name in "slope rough riser hurdle hurdle_spread pit".split()}
        widths = {name: getattr(self, name) for name in ("stone", "stone_gap", "gap")}
        return {
            f"terrain levels must be at least 1, not {self.levels}": self.levels >= 1,
            f"terrain kinds are of {', '.join(_KINDS)}, not {unknown}": not unknown and len(self.kinds) > 0,
            f"terrain seed must be at least 0, not {self.seed}": self.seed >= 0,
            f"terrain cell must be positive, not {self.cell}": self.cell > 0,
            "terrain kinds gap and pit need a platform": self.platform > 0 or not {"gap", "pit"} & set(self.kinds),
            **{
                f"terrain {name} must be a positive multiple of the cell, {self.cell}, not {value}": self.cell > 0
                and value > 0
                and abs(value / self.cell - round(value / self.cell)) < 1e-6
                for name, value in whole.items()
            },
            f"terrain length and width must be at least {least:g}: platform, rim and something to walk on": min(
                self.length, self.width
            )
            >= least,
            **{f"terrain {name} must not be negative: {value}": min(value) >= 0 for name, value in heights.items()},
            **{
                f"terrain {name} must be at least two cells, {2 * self.cell:g}: {value}": min(value)
                >= 2 * self.cell - 1e-9
                for name, value in widths.items()
            },
            f"terrain hurdle_spacing must be rising and leave room between hurdles: {self.hurdle_spacing}": (
                self.hurdle_thickness + 3 * self.cell <= self.hurdle_spacing[0] <= self.hurdle_spacing[1]
            ),
            "terrain hurdle_spacing must let a hurdle fit between rim and platform, or into the patch if it has none": (
                "hurdles" not in self.kinds or self.hurdle_thickness / 2 + (_RIM + 2) * self.cell <= beyond
            ),
            "terrain hole, platform, rough_cell and hurdle_thickness must not be negative": min(
                self.hole, self.platform, self.rough_cell, self.hurdle_thickness
            )
            >= 0,
        }

    def at(self, values: Range, level: int) -> float:
        """A range's value at a level."""
        share = level / max(self.levels - 1, 1)
        return values[0] + share * (values[1] - values[0])


class Terrain:
    """The ground of a configuration. Two of the same are equal to the last bit."""

    def __init__(self, cfg: TerrainCfg):
        for sentence, holds in cfg.rules().items():
            if not holds:
                raise SdpgError(sentence)
        self.cfg = cfg
        long, wide, border = (round(size / cfg.cell) for size in (cfg.length, cfg.width, cfg.border))  # cells
        nodes = (len(cfg.kinds) * wide + 2 * border + 1, cfg.levels * long + 2 * border + 1)
        heights = np.zeros(nodes, np.float32)
        for level in range(cfg.levels):
            for column, kind in enumerate(cfg.kinds):
                rng = np.random.default_rng((cfg.seed, level, column))  # the same, however many others there are
                patch = _KINDS[kind](_Patch(cfg, level, long, wide, rng))
                y, x = border + column * wide, border + level * long
                heights[y : y + wide + 1, x : x + long + 1] = patch  # rims overlap: both are 0
        heights.flags.writeable = False
        self.heights = heights  # (nodes along y, nodes along x) metres
        self.low = (-cfg.border, -0.5 * len(cfg.kinds) * cfg.width - cfg.border)  # x, y of the first node
        self.high = (self.low[0] + (nodes[1] - 1) * cfg.cell, self.low[1] + (nodes[0] - 1) * cfg.cell)
        self._on: dict[torch.device, Tensor] = {}  # the same heights on devices that asked

    def add_to(self, spec: mujoco.MjSpec, name: str = "terrain") -> mujoco.MjsGeom:
        """Into the scene, as a geom that belongs to the world: give it friction, a material or colours from there."""
        lowest, highest = float(self.heights.min()), float(self.heights.max())
        (x0, y0), (x1, y1) = self.low, self.high
        rise = max(highest - lowest, 1e-3)  # MuJoCo asks for some, even of a plain
        spec.add_hfield(
            name=name,
            size=[(x1 - x0) / 2, (y1 - y0) / 2, rise, _BASE],
            nrow=self.heights.shape[0],
            ncol=self.heights.shape[1],
            userdata=self.heights.ravel(),
        )
        middle = [(x0 + x1) / 2, (y0 + y1) / 2, lowest]
        return spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_HFIELD, name=name, hfieldname=name, pos=middle)

    def height_at(self, xy: Tensor) -> Tensor:
        """Of the ground: (..., 2) -> (...). Beyond the map it is that of its edge."""
        near, shares, rises = self._triangle(xy)
        return near + shares[0] * rises[0] + shares[1] * rises[1]

    def distance(self, points: Tensor) -> Tensor:
        """To the plane of the triangle below, negative underground: (..., 3) -> (...). A ball of a larger radius
        touches the ground."""
        near, shares, rises = self._triangle(points[..., :2])
        above = points[..., 2] - (near + shares[0] * rises[0] + shares[1] * rises[1])
        slope = (rises[0].square() + rises[1].square()) / self.cfg.cell**2
        return above * (1.0 + slope).rsqrt()

    def _triangle(self, xy: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The one that points (..., 2) are on: the height of its corner at the lowest x and y, how far along its two
        other sides they are, and how much these rise. All (...)."""
        heights = self._heights(xy.device)
        rows, columns = heights.shape
        place = (xy - torch.tensor(self.low, device=xy.device)) / self.cfg.cell  # (..., 2) in cells
        x, y = place[..., 0].clamp(0.0, columns - 1.0), place[..., 1].clamp(0.0, rows - 1.0)
        i, j = x.floor().clamp(max=columns - 2.0), y.floor().clamp(max=rows - 2.0)
        u, v = x - i, y - j
        corner = j.long() * columns + i.long()  # in the flat array
        flat = heights.view(-1)
        near, far = flat[corner], flat[corner + columns + 1]  # the ends of the cut
        # The triangle's third corner is at the side of the larger share: h = near + u (side - near) + v (far - side).
        side = flat[corner + torch.where(u >= v, 1, columns)]
        return near, (torch.maximum(u, v), torch.minimum(u, v)), (side - near, far - side)

    def height_scan(self, xy: Tensor, yaw: Tensor, offsets: Tensor) -> Tensor:
        """Heights of the ground at `offsets` (P, 2), forward and left, of robots at xy (..., 2) that face yaw (...):
        (..., P). What a robot observes is usually its own height less these."""
        cos, sin = yaw.cos()[..., None], yaw.sin()[..., None]
        forward, left = offsets.unbind(-1)  # (P,)
        turned = torch.stack((cos * forward - sin * left, sin * forward + cos * left), dim=-1)  # (..., P, 2)
        return self.height_at(xy[..., None, :] + turned)

    def spawn(self, level: Tensor, kind: Tensor) -> Tensor:
        """The middle of the patches in these levels and columns of kinds: (...), (...) whole -> (..., 3)."""
        cfg = self.cfg
        x = (level + 0.5) * cfg.length
        y = (kind + 0.5 - 0.5 * len(cfg.kinds)) * cfg.width
        xy = torch.stack(torch.broadcast_tensors(x, y), dim=-1).float()
        return torch.cat((xy, self.height_at(xy)[..., None]), dim=-1)

    def left(self, xy: Tensor, margin: float = 0.0) -> Tensor:
        """(..., 2) -> (...) bool: beyond the map, or within `margin` of its edge."""
        low, high = torch.tensor((self.low, self.high), device=xy.device)
        return ((xy < low + margin) | (xy > high - margin)).any(-1)

    def _heights(self, device: torch.device) -> Tensor:
        if device not in self._on:
            self._on[device] = torch.tensor(self.heights, device=device)
        return self._on[device]


@dataclass(frozen=True)
class _Patch:
    """What a kind makes its heights (nodes along y, nodes along x) from."""

    cfg: TerrainCfg
    level: int
    long: int  # cells along x
    wide: int  # along y
    rng: np.random.Generator

    def value(self, values: Range) -> float:
        return self.cfg.at(values, self.level)

    def cells(self, size: float) -> int:
        """As many as fit."""
        return math.floor(size / self.cfg.cell + 1e-6)

    @property
    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """Cells from the lower edges: (nodes along y, 1), (1, nodes along x)."""
        return np.arange(self.wide + 1)[:, None], np.arange(self.long + 1)[None]

    @property
    def inward(self) -> np.ndarray:
        """Cells from the rim inwards, as far as the platform; 0 on the rim."""
        y, x = self.grid
        most = min(self.wide, self.long) // 2 - _RIM - self.half
        from_edge = np.minimum(np.minimum(y, self.wide - y), np.minimum(x, self.long - x))
        return np.clip(from_edge - _RIM, 0, most)

    @property
    def outward(self) -> np.ndarray:
        """Cells from the platform's edge outwards; 0 and less on it."""
        y, x = self.grid
        return np.ceil(np.maximum(abs(y - self.wide / 2), abs(x - self.long / 2))).astype(int) - self.half

    @property
    def solid(self) -> np.ndarray:
        """The rim and the platform, which have no obstacles."""
        y, x = self.grid
        rim = np.minimum(np.minimum(y, self.wide - y), np.minimum(x, self.long - x)) <= _RIM
        return rim | ((self.outward <= 0) & (self.cfg.platform > 0))

    @property
    def half(self) -> int:
        """Cells from the middle to the platform's edge."""
        return math.ceil(self.cfg.platform / self.cfg.cell / 2 - 1e-6)


def _slope(patch: _Patch) -> np.ndarray:
    return patch.value(patch.cfg.slope) * patch.cfg.cell * patch.inward


def _stairs(patch: _Patch) -> np.ndarray:
    tread = round(patch.cfg.tread / patch.cfg.cell)
    return patch.value(patch.cfg.riser) * (patch.inward // tread)


def _rough(patch: _Patch) -> np.ndarray:
    """Drawn on a coarse lattice, bilinear in between."""
    coarse, most = max(1, patch.cells(patch.cfg.rough_cell)), patch.value(patch.cfg.rough)
    drawn = patch.rng.uniform(-most, most, (patch.wide // coarse + 2, patch.long // coarse + 2))
    (j, v), (i, u) = (np.divmod(places, coarse) for places in patch.grid)
    u, v = u / coarse, v / coarse
    lower = (1 - u) * drawn[j, i] + u * drawn[j, i + 1]
    upper = (1 - u) * drawn[j + 1, i] + u * drawn[j + 1, i + 1]
    return np.where(patch.solid, 0.0, (1 - v) * lower + v * upper)


def _hurdles(patch: _Patch) -> np.ndarray:
    """Walls along y. Without a platform, the first is a spacing from the patch's lower edge, each a spacing from the
    last. With one, they begin half a spacing from either side of it. What would touch the rim is left out, not cut."""
    heights = np.zeros((patch.wide + 1, patch.long + 1))
    thick = patch.cells(patch.cfg.hurdle_thickness)
    nearest, farthest = (patch.cells(spacing) for spacing in patch.cfg.hurdle_spacing)
    half = patch.half
    for begin, way in ((patch.long // 2 - half, -1), (-(-patch.long // 2) + half, 1)) if half else ((0, 1),):
        distance = int(patch.rng.integers(nearest, farthest + 1)) // (2 if half else 1)
        while True:
            first = begin + way * distance - thick // 2  # the nodes of its top: first ... first + thick
            if first <= _RIM or first + thick >= patch.long - _RIM:
                break
            height = patch.value(patch.cfg.hurdle) + patch.rng.uniform() * patch.value(patch.cfg.hurdle_spread)
            heights[_RIM + 1 : -_RIM - 1, first : first + thick + 1] = height
            distance += int(patch.rng.integers(nearest, farthest + 1))
    return heights


def _stones(patch: _Patch) -> np.ndarray:
    """Squares in rows and columns, from a place that is drawn, and holes in between."""
    stone, hole = math.ceil(patch.value(patch.cfg.stone) / patch.cfg.cell - 1e-6) + 1, _hole_nodes(patch, "stone_gap")
    between = [
        (places + patch.rng.integers(stone + hole)) % (stone + hole) >= stone  # nodes of a lane between stones
        for places in patch.grid
    ]
    return np.where((between[0] | between[1]) & ~patch.solid, -patch.cfg.hole, 0.0)


def _gap(patch: _Patch) -> np.ndarray:
    moat = (patch.outward > 0) & (patch.outward <= _hole_nodes(patch, "gap"))
    return np.where(moat & ~patch.solid, -patch.cfg.hole, 0.0)


def _hole_nodes(patch: _Patch, name: str) -> int:
    """So many that the two edges of firm ground are not farther apart than the range says."""
    return patch.cells(patch.value(getattr(patch.cfg, name))) - 1


def _pit(patch: _Patch) -> np.ndarray:
    return np.where(patch.outward <= 0, -patch.value(patch.cfg.pit), 0.0)


# Up and down are as seen from the platform, where robots start.
_KINDS: dict[str, Callable[[_Patch], np.ndarray]] = {
    "slope_up": lambda patch: -_slope(patch),
    "slope_down": _slope,
    "rough": _rough,
    "stairs_up": lambda patch: -_stairs(patch),
    "stairs_down": _stairs,
    "hurdles": _hurdles,
    "stones": _stones,
    "gap": _gap,
    "pit": _pit,
}
