"""Networks of DreamerV3, made of torchrl's parts, and the losses that tie them together.

torchrl draws from torch's global generator: whoever calls into this module does so under `seeded`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import Tensor, nn

from sdpg.algos.dreamer_cfg import BINS, BLOCKS, IMAGE, KERNEL, LATENTS, STAGES, DreamerCfg
from sdpg.algos.sequence_buffer import Sequences

with warnings.catch_warnings():  # of its own deprecated parts
    warnings.simplefilter("ignore")
    from torchrl.data import Bounded, Composite, Unbounded
    from torchrl.envs.model_based import DreamerEnv
    from torchrl.modules import (
        DreamerV3ImageDecoder,
        DreamerV3ImageEncoder,
        DreamerV3MLP,
        RSSMPosteriorV3,
        RSSMPriorV3,
        RSSMRolloutV3,
        SymExpTwoHot,
        WorldModelWrapper,
    )
    from torchrl.modules.distributions.continuous import IndependentNormal
    from torchrl.objectives import DreamerV3ActorLoss, DreamerV3Loss, DreamerV3ModelLoss, DreamerV3ValueLoss
    from torchrl.objectives.utils import ValueEstimators

UNIMIX = 0.01  # of each categorical's probability, spread evenly
STDS = (0.1, 1.0)  # bounds of the policy's std
PRIOR_LAYERS, POSTERIOR_LAYERS, HEAD_LAYERS, ACTOR_LAYERS, CRITIC_LAYERS = 2, 1, 1, 3, 3


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's global generators begin at `seed`, and are afterwards as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class GaussianActor(nn.Module):
    """Latent state (..., S) and belief (..., H) -> mean in (-1, 1) and std of the action, (..., A) each."""

    def __init__(self, features: int, hidden: int, action_size: int):
        super().__init__()
        self.trunk = DreamerV3MLP(features, None, depth=ACTOR_LAYERS, num_cells=hidden)
        # Nearly the same for all that is seen, at first.
        self.mean, self.std = (DreamerV3MLP(hidden, action_size, depth=0, outscale=0.01) for _ in range(2))

    def forward(self, state: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(belief, state)
        low, high = STDS
        return torch.tanh(self.mean(x)), low + (high - low) * torch.sigmoid(self.std(x) + 2.0)


class DreamerNetworks(nn.Module):
    """The world model (encoder, prior with the recurrent core, posterior, decoder, reward, continuation), actor and
    critic. All of them see the latent state (..., S), one-hot categoricals, and the belief (..., H)."""

    def __init__(self, cfg: DreamerCfg, channels: int, action_size: int):
        super().__init__()
        w, shape = cfg.widths, (channels, IMAGE, IMAGE)
        self.action_size, self.widths = action_size, w
        self.encoder = DreamerV3ImageEncoder(channels, w.depth, STAGES, KERNEL)
        latents = {"hidden_dim": w.hidden, "rnn_hidden_dim": w.belief, "unimix": UNIMIX}
        latents |= {"num_categoricals": LATENTS, "num_classes": w.classes}
        self.prior = RSSMPriorV3(
            action_shape=(action_size,),
            action_dim=action_size,
            recurrent_model="block_gru",
            num_blocks=BLOCKS,
            prior_num_layers=PRIOR_LAYERS,
            **latents,
        )
        self.posterior = RSSMPosteriorV3(
            obs_embed_dim=self.encoder.output_features(shape),
            use_rms_norm=True,
            num_layers=POSTERIOR_LAYERS,
            **latents,
        )
        self.decoder = DreamerV3ImageDecoder(w.features, shape, w.depth, STAGES, KERNEL, BLOCKS)
        self.reward = DreamerV3MLP(w.features, BINS, depth=HEAD_LAYERS, num_cells=w.hidden, outscale=0.0)
        self.continuation = DreamerV3MLP(w.features, 1, depth=HEAD_LAYERS, num_cells=w.hidden)
        self.actor = GaussianActor(w.features, w.hidden, action_size)
        self.critic = DreamerV3MLP(w.features, BINS, depth=CRITIC_LAYERS, num_cells=w.hidden, outscale=0.0)

    def start(self, num: int) -> dict[str, Tensor]:
        """What is remembered where an episode begins."""
        like = next(self.parameters())
        sizes = {"state": self.widths.state, "belief": self.widths.belief, "action": self.action_size}
        return {name: like.new_zeros(num, size) for name, size in sizes.items()}

    def look(self, image: Tensor, carry: dict[str, Tensor], uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Image (N, C, H, W) and what was remembered -> latent state, belief. `uniform` (N, LATENTS) in [0, 1) draws
        the latent state; without it, it is the most probable one."""
        belief = self.prior.rnn(carry["state"], carry["belief"], carry["action"])
        drawn = belief.new_zeros(len(belief), LATENTS) if uniform is None else uniform
        logits, state = self.posterior(belief, self.encoder(image), _uniform=drawn)
        if uniform is None:
            state = F.one_hot(logits.argmax(-1), self.widths.classes).flatten(1).to(belief)
        return state, belief


def _module(module: nn.Module, inputs: list, outputs: list) -> TensorDictModule:
    return TensorDictModule(module, in_keys=inputs, out_keys=outputs)


def _of_next(*names: str) -> list[tuple[str, str]]:
    return [("next", name) for name in names]


def _world_model(nets: DreamerNetworks) -> TensorDictSequential:
    """Sequences: what is seen at a step is torchrl's "next", as the action that led to it is its root's."""
    seen = _of_next("belief", "state")
    prior = _module(nets.prior, ["state", "belief", "action"], _of_next("prior_logits", "state", "belief"))
    posterior = _module(nets.posterior, _of_next("belief", "encoded_latents"), _of_next("posterior_logits", "state"))
    return TensorDictSequential(
        _module(nets.encoder, _of_next("pixels"), _of_next("encoded_latents")),
        RSSMRolloutV3(prior, posterior, reset_key="is_init"),
        _module(nets.decoder, _of_next("state", "belief"), _of_next("reco_pixels")),
        _module(nets.reward, seen, _of_next("reward_logits")),
        _module(SymExpTwoHot(BINS), _of_next("reward_logits"), _of_next("reward")),
        _module(nets.continuation, seen, _of_next("continue_pred")),
    )


def _imagined_world(nets: DreamerNetworks) -> DreamerEnv:
    reward = TensorDictSequential(
        _module(nets.reward, ["belief", "state"], ["reward_logits"]),
        _module(SymExpTwoHot(BINS), ["reward_logits"], ["reward"]),
    )
    model = WorldModelWrapper(_module(nets.prior, ["state", "belief", "action"], ["_", "state", "belief"]), reward)
    w, device = nets.widths, next(nets.parameters()).device
    env = DreamerEnv(model, prior_shape=(w.state,), belief_shape=(w.belief,), device=device)
    env.observation_spec = Composite(state=Unbounded(w.state), belief=Unbounded(w.belief)).to(device)
    env.state_spec = env.observation_spec.clone()
    env.action_spec = Bounded(-1, 1, (nets.action_size,)).to(device)
    env.reward_spec = Unbounded((1,)).to(device)
    return env


def make_loss(nets: DreamerNetworks, cfg: DreamerCfg) -> DreamerV3Loss:
    """torchrl's defaults are those of its earlier versions: what the paper has is said here."""
    actor = ProbabilisticTensorDictSequential(
        _module(nets.actor, ["state", "belief"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            default_interaction_type=InteractionType.RANDOM,
            distribution_class=IndependentNormal,
            return_log_prob=True,
            log_prob_key="action_log_prob",
        ),
    )
    critic = TensorDictSequential(
        _module(nets.critic, ["belief", "state"], ["state_value_logits"]),
        _module(SymExpTwoHot(BINS), ["state_value_logits"], ["state_value"]),
    )
    continuation = TensorDictSequential(
        _module(nets.continuation, ["belief", "state"], ["continue_logits"]),
        _module(nn.Sigmoid(), ["continue_logits"], ["continuation"]),
    )
    model_loss = DreamerV3ModelLoss(
        _world_model(nets),
        kl_mode="separate",
        lambda_dynamic=cfg.dynamics_weight,
        lambda_representation=cfg.representation_weight,
        unimix=UNIMIX,
        free_bits=cfg.free_nats,
        lambda_continue=1.0,
        continue_target_scale=1.0 - 1.0 / cfg.discount_horizon,  # the discount is part of what is predicted
        reco_symlog=False,
        num_reward_bins=BINS,
        detach_output=False,
    )
    actor_loss = DreamerV3ActorLoss(
        actor,
        critic,
        _imagined_world(nets),
        continuation_model=continuation,
        imagination_horizon=cfg.imagination,
        entropy_bonus=cfg.entropy_weight,
        use_reinforce=True,
    )
    actor_loss.make_value_estimator(ValueEstimators.TDLambda, gamma=1.0, lmbda=cfg.lam)
    value_loss = DreamerV3ValueLoss(
        critic, "two_hot", num_value_bins=BINS, actor_loss=actor_loss, slow_critic_regularization=1.0
    )
    return DreamerV3Loss(
        model_loss,
        actor_loss,
        value_loss,
        replay_value_loss_weight=cfg.replay_value_weight,
        continuation_horizon=cfg.discount_horizon,
        lmbda=cfg.lam,
    )


def as_tensordict(batch: Sequences, nets: DreamerNetworks) -> TensorDict:
    """Every sequence begins with an empty memory, wherever in an episode it begins."""
    shape, zero = batch.reward.shape, batch.reward.new_zeros(())
    first = batch.first.clone()
    first[:, 0] = True
    step = {
        "pixels": batch.image,
        "reward": batch.reward[..., None],
        "done": batch.last[..., None],
        "terminated": batch.terminated[..., None],
    }
    return TensorDict(
        {
            "state": zero.expand(*shape, nets.widths.state),
            "belief": zero.expand(*shape, nets.widths.belief),
            "action": batch.action,
            "is_init": first[..., None],
            "next": TensorDict(step, shape),
        },
        shape,
    )
