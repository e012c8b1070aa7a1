"""Presets of SDPG for the ego-centric suite: robots of MuJoCo Menagerie with cameras. Used by presets/sdpg.py."""

from __future__ import annotations

from sdpg.presets.delta import Delta, Values

_ENTROPY: Values = {"entropy": True, "auto_temperature": True}
_WIDE: Values = {"actor_widths": (512, 256, 128), "critic_widths": (512, 256, 128)}
_WIDEST: Values = {"actor_widths": (1024, 512, 256, 128), "critic_widths": (1024, 512, 256, 128)}
_HAND = Delta(  # from state the paper has no table: as released
    {"iterations": 5_000},
    _WIDEST | {"horizon": 16, "actor_lr": 1e-3, "critic_lr": 5e-4, "target_decay": 0.2, "max_grad_norm": 0.5},
)
_SEEING_HAND = Delta({}, {"actor_widths": (256, 128), "horizon": 32, "actor_lr": 2e-3, "max_grad_norm": 1.0})

PAPER = {
    "walker_hurdle": Delta({"iterations": 5000}, {"actor_widths": (256,), "critic_widths": (128,)}),
    "g1_hurdle": Delta(
        {"iterations": 100_000},
        _ENTROPY
        | {"actor_widths": (256, 128), "critic_widths": (128,)}
        | {"horizon": 16, "critic_lr": 5e-4, "target_decay": 0.2},
    ),
    "go2_terrain": Delta(
        {"iterations": 50_000},
        _WIDE
        | {"horizon": 24, "actor_lr": 5e-4, "critic_lr": 5e-4, "target_decay": 0.0}
        | {"causal": False, "eligibility_trace": False, "reward_scale": 10.0}
        # As released; the paper's tables say cosine, 2, learned and bounded as elsewhere.
        | {"actor_schedule": "constant", "critic_passes": 5, "exploration": "fixed"}
        | {"mean_bound": None, "log_std_bounds": None},
    ),
    "franka_pick": Delta({"iterations": 5000}, _WIDE | {"critic_lr": 5e-4, "target_decay": 0.2}),
    "aloha_insertion": Delta({"iterations": 20_000}, _WIDE | {"critic_lr": 2e-3, "target_decay": 0.2}),
    "allegro_cube": _HAND,
    "shadow_cube": _HAND,
}
PAPER_PIXELS = {
    "walker_hurdle": Delta({"iterations": 10_000}, {"actor_widths": (256, 128), "actor_lr": 1e-3}),
    "g1_hurdle": Delta({}, {"actor_lr": 1e-3}),
    "franka_pick": Delta({"iterations": 10_000}, _WIDEST | {"horizon": 64}),
    "aloha_insertion": Delta({"iterations": 40_000, "num_nominal": 48}, {"horizon": 64}),
    "allegro_cube": _SEEING_HAND,
    "shadow_cube": _SEEING_HAND,
}

# On top of what every robot has there (presets/sdpg.py): networks that two cores can train, and rewards of a size that
# small steps of the critic can follow.
_SMALL: Values = {"actor_widths": (256, 128), "critic_widths": (256, 128)}
# What a gripper does shows late: fingers take ten steps to close, and until then closing costs. Noise in steps of
# targets adds up over a segment: what is learned under too much of it is to hover above the object.
_CPU_ARM: Values = _SMALL | {"branch_steps": None, "initial_std": 0.4, "final_std": 0.1, "reward_scale": 0.05}
_CPU_HAND: Values = (
    _SMALL
    | {"actor_lr": 2e-3, "max_grad_norm": 1.0, "warmup": 10}
    | {"initial_std": 0.3, "final_std": 0.1, "reward_scale": 0.2}
)
CPU = {
    "walker_hurdle": Delta({"iterations": 1000}),
    "g1_hurdle": Delta({"iterations": 1000}),
    "go2_terrain": Delta(
        {"iterations": 1000},
        _SMALL
        | {"actor_lr": 1e-3, "actor_schedule": "cosine", "warmup": 20, "target_decay": 0.2}
        | {"causal": True, "eligibility_trace": True, "mean_bound": 2.0, "log_std_bounds": (-5.0, 2.0)}
        # Slow joints filter noise, and answer to it late; rewards are a tenth of a step's and less.
        | {"branch_steps": None, "initial_std": 0.8, "final_std": 0.4, "reward_scale": 5.0}
        # 900 inputs, most of which hardly change, add up: without this an iteration would move the policy by a KL of
        # 0.2 to 0.7, into a stance that is worse than doing nothing. It does not walk yet (docs/experiments.md).
        | {"kl_target": 0.02, "guide_passes": 1},
    ),
    "franka_pick": Delta({"iterations": 1000}, _CPU_ARM),
    "aloha_insertion": Delta({"iterations": 1000}, _CPU_ARM),
    "allegro_cube": Delta({"iterations": 1000}, _CPU_HAND | {"initial_std": 0.2}),  # light fingers fling the cube away
    "shadow_cube": Delta({"iterations": 1000}, _CPU_HAND),
}
# Their pictures cost more than the others': with fewer of them, rendering is under a fifth of an iteration.
_FEWER_PICTURES = Delta({"num_nominal": 128, "num_auxiliary": 15})
CPU_PIXELS = {
    "go2_terrain": Delta({"num_auxiliary": 5}),
    "franka_pick": _FEWER_PICTURES,
    "allegro_cube": _FEWER_PICTURES,
    "shadow_cube": _FEWER_PICTURES,
    "aloha_insertion": Delta({"num_nominal": 48, "num_auxiliary": 63}),  # three cameras
}
