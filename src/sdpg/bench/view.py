"""The paper's unified view: policy gradients and guided search by how often trajectories are improved, and how often
the policy is cloned, for one batch of rollouts. Drawn from the registry, and from settings of SDPG that have names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdpg.algos.registry import ALGORITHMS
from sdpg.algos.sdpg_cfg import SdpgCfg
from sdpg.errors import SdpgError


@dataclass(frozen=True)
class Setting:
    """Options of SDPG that make it another method."""

    num_auxiliary: int
    algo: Mapping[str, Any] = field(default_factory=dict)
    like: bool = True  # in kind, not in every detail

    def options(self) -> SdpgCfg:
        return SdpgCfg(**self.algo)


SETTINGS = {
    # Equation 5: one perturbation, the std of the noise in the denominator, one return for the whole segment.
    "REINFORCE": Setting(1, {"denominator": "delta", "causal": False}, like=False),
    # Advantages J_t - V(s_t) of n-step returns in place of returns.
    "A2C-like": Setting(1, {"denominator": "delta", "baseline": "value", "eligibility_trace": False}),
    # Several steps of trajectory optimisation, then several of supervised learning (Levine and Koltun, 2013).
    "guided policy search": Setting(63, {"search_steps": 4, "regression_steps": 16}),
}


@dataclass(frozen=True)
class Options:
    """Where algorithms stand between policy gradients and guided search: a figure."""

    figure: Path = Path("docs/unified.png")


def run(options: Options) -> dict[str, Any]:
    found = _seen()
    rows = [
        {"name": name, "how": seen.how, "search_steps": seen.search_steps, "cloning_steps": seen.cloning_steps}
        for name, seen in found.items()
        if seen is not None
    ]
    others = [name for name, seen in found.items() if seen is None]
    _draw(rows, others, options.figure)
    return {"kind": "view", "rows": rows, "others": others, "figure": str(options.figure)}


def _seen() -> dict[str, Any]:
    """Name -> how it looks as guided search, of algorithms that can be loaded, and of settings."""
    found: dict[str, Any] = {}
    for name in ALGORITHMS.targets():
        try:
            found[name] = ALGORITHMS.load(name)().guided_search()
        except SdpgError:  # its extra is not installed
            continue
    return found | {name: setting.options().guided_search() for name, setting in SETTINGS.items()}


def _draw(rows: list[dict[str, Any]], others: list[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
    places: dict[tuple[int, int], dict[str, list[str]]] = {}  # (search, cloning) -> how -> names
    for row in rows:
        place = places.setdefault((row["search_steps"], row["cloning_steps"]), {})
        place.setdefault(row["how"], []).append(row["name"])
    for (search, cloning), found in places.items():
        label = "\n".join(f"{how}:\n    {', '.join(names)}" for how, names in found.items())
        axes.plot(search, cloning, "o", color="C1" if search > 1 or cloning > 1 else "C0")
        axes.annotate(label, (search, cloning), (8, 2), textcoords="offset points", va="bottom", fontsize=8)
    furthest = [max(place[axis] for place in places) for axis in (0, 1)]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(
        xlim=(0.8, 8.0 * furthest[0]), ylim=(0.7, 3.0 * furthest[1]), xlabel="trajectory-search steps per batch",
        ylabel="cloning steps per batch", title="policy gradients (1, 1) to guided policy search",
    )  # fmt: skip
    axes.grid(alpha=0.25)
    if others:
        axes.text(0.98, 0.03, f"no trajectories are searched: {', '.join(others)}", transform=axes.transAxes,
                  ha="right", fontsize=8, color="gray")  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
