"""The names of tasks, and what a glance at their source tells: nothing here waits for torch or MuJoCo."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sdpg.plugins import targets

GROUP = "sdpg.tasks"  # the entry-point group of third parties
BUILT_IN = {
    "cartpole": "sdpg.tasks.cartpole:Cartpole",
    "hopper": "sdpg.tasks.hopper:Hopper",
    "walker": "sdpg.tasks.walker:Walker",
    "ant": "sdpg.tasks.ant:Ant",
    "humanoid": "sdpg.tasks.humanoid:Humanoid",
    "walker_hurdle": "sdpg.tasks.walker_hurdle:WalkerHurdle",
    "g1_hurdle": "sdpg.tasks.g1_hurdle:G1Hurdle",
    "go2_terrain": "sdpg.tasks.go2_terrain:Go2Terrain",
    "franka_pick": "sdpg.tasks.franka_pick:FrankaPick",
    "aloha_insertion": "sdpg.tasks.aloha_insertion:AlohaInsertion",
    "allegro_cube": "sdpg.tasks.allegro_cube:AllegroCube",
    "shadow_cube": "sdpg.tasks.shadow_cube:ShadowCube",
}

ALIASES = {  # the paper's names, as it spells them
    "WalkerHurtle": "walker_hurdle",
    "G1Hurtle": "g1_hurdle",
    "Go2Terrain": "go2_terrain",
    "FrankaPickCube": "franka_pick",
    "AlohaInsertion": "aloha_insertion",
    "AllegroHand": "allegro_cube",
    "ShadowHand": "shadow_cube",
}


def canonical(name: str) -> str:
    """The name that runs, presets and files know a task by."""
    return ALIASES.get(name, name)


def registry() -> dict[str, str]:
    """Task name -> "module:attribute"; third parties' too."""
    return targets(GROUP, BUILT_IN)


def about(module_doc: str | None, class_doc: str | None = None) -> str:
    """One line on a task."""
    return (module_doc or class_doc or "").strip().split("\n")[0]


def glance(name: str) -> dict[str, Any]:
    """Sizes and a line on a task of ours, as its source has them."""
    module, _, attribute = BUILT_IN[name].partition(":")
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    kind = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == attribute)
    sizes = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in kind.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("action_size", "state_size")
    }
    return {"target": BUILT_IN[name], "about": about(ast.get_docstring(tree)), **sizes}
