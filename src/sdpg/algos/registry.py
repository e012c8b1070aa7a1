"""Algorithms by name."""

from __future__ import annotations

from sdpg.algos.api import AlgoCfg
from sdpg.plugins import Plugins

ALGORITHMS = Plugins(
    "algorithm",
    AlgoCfg,
    "sdpg.algorithms",
    {
        "sdpg": "sdpg.algos.sdpg_cfg:SdpgCfg",
        "drqv2": "sdpg.algos.drqv2_cfg:DrqV2Cfg",
        "shac": "sdpg.algos.first_order_cfg:ShacCfg",
        "sapo": "sdpg.algos.first_order_cfg:SapoCfg",
        "dva": "sdpg.algos.first_order_cfg:DvaCfg",
        "ppo": "sdpg.algos.ppo_cfg:PpoCfg",
        "a2c": "sdpg.algos.ppo_cfg:A2cCfg",
        "dagger": "sdpg.algos.dagger_cfg:DaggerCfg",
        "dreamer": "sdpg.algos.dreamer_cfg:DreamerCfg",
    },
)


def algorithm(name: str) -> type[AlgoCfg]:
    """The options of a registered algorithm, or of "my_package.my_module:MyCfg"."""
    return ALGORITHMS.load(name)
