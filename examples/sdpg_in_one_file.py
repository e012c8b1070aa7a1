"""Stochastic Decoupled Policy Gradient (SDPG) in one file: a cart learns to balance its pole, in a minute, on one core.

N nominal worlds follow the policy. When a segment begins, each is branched into M exact copies, which then receive the
nominal's actions plus noise. A branch that returns more than its nominal had good noise, so the mean of difference of
returns x noise says where the actions should have gone, and the policy is regressed onto actions + that direction.
Nothing is differentiated but the networks, and the policy looks at nominals only: of pixels, N images would be drawn,
not N (M + 1). Numbers in brackets are equations of "Efficient On-policy Visual-RL via Stochastic Decoupled Policy
Gradient" (You, Liu et al., 2026), lines of its Algorithm 1; left out are entropy, (18) to (21), and action bounds.

    pip install "mujoco>=4" torch && python sdpg_in_one_file.py seed=1 iterations=100
"""

import copy
import sys
from dataclasses import dataclass

import mujoco
import torch
from mujoco.batch import Batch
from torch import Tensor, nn
from torch.nn.functional import mse_loss


@dataclass(frozen=True)
class Cfg:
    seed: int = 0
    iterations: int = 100
    n: int = 32  # N nominal worlds
    m: int = 15  # M branches of each: physics, and nothing else. K = M + 1 worlds in a row, of which world 0 is nominal
    horizon: int = 16  # T steps of a segment [H]
    gamma: float = 0.99  # discount
    lam: float = 0.95  # lambda of the returns
    std: float = 0.25  # exploration at the start [delta]
    lr: float = 2e-3  # of the critic; the actor's falls from here to 0
    critic_passes: int = 2  # [K_c]
    critic_batch: int = 1024  # [B]
    rho: float = 0.2  # share of the old target critic that is kept


def lambda_returns(reward: Tensor, next_value: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """(9), (22): J_t = r_t + gamma (v_{t+1} if its episode ends at t, else (1 - lambda) v_{t+1} + lambda J_{t+1})."""
    returns, following = torch.empty_like(reward), next_value[-1]  # (T, N, K), (N, K)
    for t in reversed(range(len(reward))):
        following = reward[t] + gamma * torch.where(done[t], next_value[t], next_value[t].lerp(following, lam))
        returns[t] = following
    return returns


def ascent_direction(returns: Tensor, noise: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Where mean actions (1) and log-std (10) should go: (T, N, K), (T, N, K, A), std (A,) -> (T, N, A) each."""
    difference = returns - returns[:, :, :1]  # J(A + delta E^j) - J(A), 0 for the nominal itself
    sigma = difference.std(2, keepdim=True) + 1e-6  # (T, N, 1): steps are as large whatever the rewards' scale
    weight, noise = (difference / sigma)[:, :, 1:, None], noise[:, :, 1:]  # (T, N, M, 1), (T, N, M, A)
    return (weight * noise).mean(2), (weight * (noise.square() - 1.0)).mean(2) * std


SECONDS, RAIL, TILT = 5.0, 1.2, 1.0  # of an episode, 20 ms a step; metres, radians to either side until it is over
SCENE = """<mujoco> <option timestep=".02" integrator="implicitfast"/> <worldbody> <body>
  <joint name="slide" type="slide" axis="1 0 0" damping="10"/> <geom size=".1" mass="1" contype="0"/>
  <body> <joint axis="0 1 0"/> <geom type="capsule" fromto="0 0 0 0 0 .8" size=".04" mass=".1" contype="0"/> </body>
  </body> </worldbody>
  <actuator> <motor joint="slide" gear="20" ctrlrange="-1 1"/> </actuator> </mujoco>"""


class Worlds:
    """N x K carts. A world is a row of the engine's integration state: to branch it is to copy that row."""

    def __init__(self, n: int, k: int):
        self.batch = batch = Batch(mujoco.MjModel.from_xml_string(SCENE), nsim=n * k, nthread=1)
        arrays = (batch.state, *map(batch.bind, ("time", "qpos", "qvel", "ctrl")))  # the engine's own memory
        self.rows, self.time, self.qpos, self.qvel, self.ctrl = (torch.from_numpy(x).view(n, k, -1) for x in arrays)
        self.fresh = self.rows[0, 0].clone()
        self.restart(torch.ones(n, k, dtype=torch.bool))

    def state(self) -> Tensor:
        return torch.cat((self.qpos, self.qvel), dim=-1).float()  # (N, K, 4)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (N, K, A) -> states (N, K, 4), rewards of at most 1 (N, K), which of them terminated (N, K)."""
        self.ctrl[:] = action
        self.batch.step()
        state = self.state()
        x, tilt = state[..., 0] / RAIL, state[..., 1] / TILT
        return state, 1.0 - 0.7 * tilt.square() - 0.3 * x.square(), (tilt.abs() > 1.0) | (x.abs() > 1.0)

    def restart(self, terminated: Tensor) -> Tensor:
        """Line 13: a nominal that is over starts anew, its row with it; a branch becomes its nominal. Which did."""
        over = terminated[:, 0] | (self.time[:, 0, 0] > SECONDS - 0.01)  # (N,)
        self.rows[over, 0] = self.fresh
        self.qpos[over, 0] = 0.7 * torch.rand_like(self.qpos[over, 0]) - 0.35  # the pole begins to fall at once
        done = terminated | over[:, None]  # (N, K)
        self.rows[:] = torch.where(done[..., None], self.rows[:, :1], self.rows)
        return done


def network() -> nn.Sequential:
    hidden = (layer for inputs in (4, 64) for layer in (nn.Linear(inputs, 64), nn.ELU(), nn.LayerNorm(64)))
    return nn.Sequential(*hidden, nn.Linear(64, 1))


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()


def train(cfg: Cfg) -> float:
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    worlds, actor, critic = Worlds(cfg.n, cfg.m + 1), network(), network()
    target_critic, log_std = copy.deepcopy(critic), torch.tensor([cfg.std]).log().requires_grad_()
    actor_adam = torch.optim.Adam([*actor.parameters(), log_std], cfg.lr)
    critic_adam = torch.optim.Adam(critic.parameters(), cfg.lr)
    total, finished = torch.zeros(cfg.n), [0.0]  # returns of the nominals' episodes
    for iteration in range(1, cfg.iterations + 1):
        with torch.no_grad():
            worlds.rows[:, 1:] = worlds.rows[:, :1]  # branch
            noise, std, steps = torch.randn(cfg.horizon, cfg.n, cfg.m + 1, 1), log_std.exp(), []  # A = 1
            noise[:, :, 0] = 0.0  # nominals follow the mean: their returns are those of the policy itself
            for t in range(cfg.horizon):  # lines 6 to 14
                state = worlds.state()
                mean = actor(state[:, 0])  # (N, A): of the nominals, and of nothing else
                next_state, reward, terminated = worlds.step((mean[:, None] + std * noise[t]).tanh())
                done = worlds.restart(terminated)
                steps.append((state, mean, reward, next_state, terminated, done))
                total += reward[:, 0]
                finished, total = (finished + total[done[:, 0]].tolist())[-cfg.n :], total * ~done[:, 0]
            state, mean, reward, next_state, terminated, done = map(torch.stack, zip(*steps, strict=True))
            done[-1] = True  # (8): beyond a segment is what the critic expects; lines 12 and 15 to 18
            next_value = torch.where(terminated, 0.0, target_critic(next_state)[..., 0])
            returns = lambda_returns(0.1 * reward, next_value, done, cfg.gamma, cfg.lam)  # 0.1: values of up to 10
            d_mean, d_log_std = ascent_direction(returns, noise, std)  # lines 19 to 24
        loss = mse_loss(actor(state[:, :, 0]), mean + d_mean)  # (3), whose gradient is the policy gradient (4)
        loss += mse_loss(log_std, std.log() + d_log_std.mean((0, 1)))  # (10)
        actor_adam.param_groups[0]["lr"] = cfg.lr * (1.0 - (iteration - 1) / cfg.iterations)  # falls to nothing
        descend(loss, actor_adam)  # lines 25 to 27
        states, values = state.flatten(0, 2), returns.flatten()  # (9), lines 30 to 36: of all T N K worlds
        for batch in torch.cat([torch.randperm(len(values)) for _ in range(cfg.critic_passes)]).split(cfg.critic_batch):
            descend(mse_loss(critic(states[batch])[:, 0], values[batch]), critic_adam)
        for old, new in zip(target_critic.parameters(), critic.parameters(), strict=True):
            old.data.lerp_(new.data, 1.0 - cfg.rho)
        score = sum(finished) / len(finished)
        if iteration % 10 == 0:
            print(f"iteration {iteration}: return {score:.1f} of 250, std {std.item():.2f}")
    return score


if __name__ == "__main__":
    train(Cfg(**{name: type(getattr(Cfg, name))(value) for name, value in (arg.split("=") for arg in sys.argv[1:])}))
