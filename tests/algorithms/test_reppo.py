"""REPPO against oracles in float64 and invariants; what it refuses; that it learns."""

import dataclasses
import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYERS, MLP, alone, build, refused
from phases import acted, add_targets, collect, compiled, flat, given, rollout_after, with_steps
from runs import QUIET, fresh, reppo

from jaxppo.algorithms import acting, spine
from jaxppo.algorithms.reppo import REPPO, REPPOSettings, draws_of, multiplier_loss, policy_loss
from jaxppo.launch.composing import compose
from jaxppo.networks import actor_q
from jaxppo.ops import distributions
from jaxppo.ops.values import ScalarValue
from jaxppo.runtime.run.jobs import prepare
from jaxppo.runtime.run.loop import run
from jaxppo.types import Box, Discrete

pytestmark = pytest.mark.usefixtures("share_programs")

CLOCK = {"target": "envs.Clock"}  # discrete actions
MEMORY = {"_target_": f"{LAYERS}.memory.Recurrent", "size": 4}
REMEMBERING = {"actor_memory": MEMORY, "critic_torso": MLP, "critic_memory": MEMORY}


@functools.cache
def phases_of(name: str) -> tuple[Any, Any]:
    """The phases of a small system, and its first state; made once."""
    changes: dict[str, dict[str, Any]] = {
        "continuous": {},
        "discrete": {"env": CLOCK},
        "recompute": {"system__recompute_targets": True},
        "memory": {"network": REMEMBERING, "system__sequence_length": 4},
    }
    built, state, _ = build(reppo(system__normalize_observations=True, **changes[name]))
    system, state = alone(built, state)
    return compiled(system), state


NAMES = ["continuous", "discrete", "recompute", "memory"]


# Targets


@pytest.mark.long_but(1)
@pytest.mark.parametrize("name", ["recompute", "discrete", "continuous"])
def test_targets_equal_a_loop_over_true_successors(name: str) -> None:
    """G_t = r_t + gamma (1 - terminated_t) [alpha H' + (1 - c_t) Q' + c_t G_{t+1}] in float64."""
    phases, state = phases_of(name)
    before, _, rollout = acted(phases, state)
    agent, steps = before.agent, rollout.steps
    ended = steps.truncated & (np.arange(4) == 1)
    assert ended.any()
    assert (steps.truncated & ~ended).any()
    steps = dataclasses.replace(steps, terminated=ended, truncated=steps.truncated & ~ended)
    rollout = dataclasses.replace(rollout, steps=steps)
    algorithm, params = phases.system.algorithm, agent.policy.params
    params = {**params, "multipliers": {"alpha": jnp.float32(3.0), "beta": jnp.float32(0.0)}}
    agent = dataclasses.replace(agent, policy=dataclasses.replace(agent.policy, params=params))

    def look(obs: Any, action: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Q and entropy; of an action that is sampled, if it is not given."""
        lead = obs.shape[:2]
        output = phases.unroll(agent.policy, (), obs, np.zeros(lead, bool))[1]
        law = output.distribution
        if action is None:
            action = law.sample(seed=draws_of(steps.extras.seed))
        q = np.asarray(algorithm.critic(params, output, action)[0].value.mean(), np.float64)
        entropy = np.asarray(law.entropy(), np.float64)
        if name == "discrete":
            return (
                np.asarray(law.probs if hasattr(law, "probs") else jax.nn.softmax(law.logits)) * q
            ).sum(-1), entropy
        return q, entropy - np.log(np.asarray([4.0, 10.0]) / 2.0).sum()

    q, entropy = look(steps.obs, steps.action)
    last_q, last_entropy = look(rollout.obs[None])
    final = [x.reshape(8, 4) for x in look(steps.final_observation.reshape(1, 32, 2))]
    alpha, expected, following = 0.01 * np.exp(3.0), np.zeros((8, 4)), last_q[0]
    for t in reversed(range(8)):
        cut = np.asarray(steps.truncated[t])
        after = (q[t + 1], entropy[t + 1]) if t < 7 else (last_q[0], last_entropy[0])
        next_q, next_entropy = (
            np.where(cut, end[t], x) for end, x in zip(final, after, strict=True)
        )
        c = np.where(cut, 0.0, 0.65 if t < 7 else 0.0)
        ahead = alpha * next_entropy + (1.0 - c) * next_q + c * following
        following = np.asarray(steps.reward[t]) + 0.99 * (1.0 - ended[t]) * ahead
        expected[t] = following
    agent = given(dataclasses.replace(state, agent=agent), q_lambda=0.65).agent
    found = phases.targets(agent, rollout)[1]
    np.testing.assert_allclose(found.target, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_the_critic_learns_the_known_soft_values_of_two_states() -> None:
    """V = sum_a pi Q + alpha H and Q(s, a) = r(s) + gamma V(a), solved for the policy that acts.

    Only the clock ends an episode, after five steps: values need bootstraps.
    """
    head = {"critic_head": {"_target_": f"{LAYERS}.heads.ScalarHead"}}
    system = {"gamma": 0.8, "initial_alpha": 0.5, "actor_lr": 0.0, "multiplier_lr": 0.0}
    system |= {"critic_lr": 1e-2, "max_grad_norm": 1e9, "q_lambda": 0.5}
    system |= {"decay_learning_rates": True}
    arch = {"total_num_envs": 16, "num_updates": 300}
    config = reppo(env={"target": "envs.TwoStates"}, network=head, system=system, arch=arch)
    built, state = alone(*build(config)[:2])
    phases = compiled(built)
    for _ in range(300):
        state, _ = phases.update(state)
    policy, seen = state.agent.policy, jnp.eye(2)[None]
    output = phases.unroll(policy, (), seen, np.zeros((1, 2), bool))[1]
    law, action = output.distribution, np.zeros((1, 2), np.int32)
    found = built.algorithm.critic(policy.params, output, action)[0].value.mean()[0]
    probs = np.asarray(jax.nn.softmax(law.logits[0]), np.float64)
    entropy = -(probs * np.log(probs)).sum(-1)
    # V = pi (r + gamma V(a)) + alpha H, for both states
    values = np.linalg.solve(np.eye(2) - 0.8 * probs, np.array([-1.0, 2.0]) + 0.5 * entropy)
    expected = np.array([-1.0, 2.0])[:, None] + 0.8 * values
    np.testing.assert_allclose(found, expected, atol=0.05)


# Losses


def algorithm_of(space: Any, critic: Any = None) -> REPPO:
    """REPPO with a stub of a network, whose critic is a function of the scaled action."""
    network = actor_q.ActorQ(None, None, space)
    if critic is not None:
        network = SimpleNamespace(encode_action=network.encode_action, critic=critic)
    return REPPO(REPPOSettings(), network, space)


def test_gradients_through_a_quadratic_q_equal_finite_differences() -> None:
    """Of loc and scale of a tanh-normal, in float64, and zero at the known best action."""
    best, space = np.array([0.3, -0.5]), Box((2,), "float32", (-1.0, 0.0), (3.0, 10.0))

    def critic(params: Any, features: jax.Array, action: jax.Array) -> actor_q.ActionValue:
        q = -params * jnp.sum(jnp.square(action - jnp.float32(best)), axis=-1) + features[..., 0]
        return actor_q.ActionValue(value=ScalarValue(value=q), embedding=features)

    algorithm, key = algorithm_of(space, critic), jax.random.key(3)
    rng = np.random.default_rng(1)
    loc, scale = rng.normal(size=(1, 64, 2)), rng.uniform(0.2, 1.0, (1, 64, 2))
    alpha = 0.3

    def law(loc: Any, scale: Any) -> Any:
        return distributions.tanh_normal(
            jnp.float32(loc), jnp.float32(scale), space.low, space.high, event_ndim=1
        )

    def loss(loc: Any, scale: Any, curvature: Any, features: Any) -> jax.Array:
        output = actor_q.ActorQOutput(distribution=law(loc, scale), features=features)
        q = algorithm.q_of_policy(curvature, output, key)
        entropy = algorithm.entropy(output.distribution)
        return jnp.sum(policy_loss(q, entropy, jnp.zeros_like(q), alpha, 1.0, 0.1))

    noise = (np.asarray(law(loc, scale).sample(seed=key), np.float64) - loc) / scale
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)

    def exact(loc: np.ndarray, scale: np.ndarray) -> float:
        q = -2.0 * np.square(np.tanh(loc + scale * noise) - best).sum(-1)
        slopes = np.log1p(-np.square(np.tanh(loc[..., None] + scale[..., None] * nodes)))
        mean = (slopes * weights).sum(-1) / weights.sum()
        entropy = (np.log(scale * np.sqrt(2 * np.pi * np.e)) + mean).sum(-1)
        return float((-alpha * entropy - q).sum())

    given = jnp.float32(loc), jnp.float32(scale), 2.0, jnp.zeros((1, 64, 1))
    found = jax.grad(loss, argnums=(0, 1, 2, 3))(*given)
    assert all(np.all(x == 0.0) for x in found[2:])  # the critic and what it reads are fixed
    for argument, gradient in enumerate(found[:2]):
        for place in ((0, 0, 0), (0, 17, 1), (0, 63, 0)):
            moved = [[x.copy() for x in (loc, scale)] for _ in range(2)]
            for pair, step in zip(moved, (1e-6, -1e-6), strict=True):
                pair[argument][place] += step
            difference = (exact(*moved[0]) - exact(*moved[1])) / 2e-6
            np.testing.assert_allclose(gradient[place], difference, rtol=2e-4, atol=2e-5)
    at_best = np.broadcast_to(np.arctanh(best), loc.shape)
    alpha = 0.0
    np.testing.assert_allclose(jax.grad(loss)(at_best, 1e-6 * scale, *given[2:]), 0.0, atol=1e-4)


def test_discrete_policies_follow_the_mean_of_q() -> None:
    """d/dlogit_k of -sum_a pi Q - alpha H is -pi_k (A_k - alpha log pi_k - alpha H)."""
    rng, alpha = np.random.default_rng(2), 0.2
    logits, q = rng.normal(size=(2, 1, 5, 3))

    def critic(params: Any, features: jax.Array, action: jax.Array) -> actor_q.ActionValue:
        return actor_q.ActionValue(value=ScalarValue(value=jnp.float32(q)), embedding=features)

    algorithm = algorithm_of(Discrete(3), critic)

    def loss(logits: Any) -> jax.Array:
        law = distributions.categorical(logits)
        output = actor_q.ActorQOutput(distribution=law, features=jnp.zeros((1, 5, 1)))
        value = algorithm.q_of_policy((), output, jax.random.key(0))
        return jnp.sum(policy_loss(value, algorithm.entropy(law), 0.0 * value, alpha, 1.0, 0.1))

    pi = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    entropy = -(pi * np.log(pi)).sum(-1, keepdims=True)
    advantage = q - (pi * q).sum(-1, keepdims=True)
    expected = -pi * (advantage - alpha * (np.log(pi) + entropy))
    np.testing.assert_allclose(jax.grad(loss)(jnp.float32(logits)), expected, atol=1e-6)


@pytest.mark.parametrize("kl, which", [(0.099, "q"), (0.1, "kl")])
def test_the_kl_bound_decides_what_a_policy_learns_from(kl: float, which: str) -> None:
    numbers = jnp.float32(2.0), jnp.float32(0.7), jnp.float32(kl)
    found = jax.grad(lambda x: policy_loss(*x, 0.5, 3.0, 0.1))(numbers)
    expected = (-1.0, -0.5, 0.0) if which == "q" else (0.0, 0.0, 3.0)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("entropy, kl", [(0.4, 0.05), (-2.0, 0.3)])
def test_multipliers_move_against_what_they_hold(entropy: float, kl: float) -> None:
    """Alpha grows where the entropy is below its target, and beta where the KL is above its bound.

    Their gradients in log space are alpha (H - target) and beta (bound - KL).
    """

    def loss(logs: Any, entropy: Any, kl: Any) -> jax.Array:
        return multiplier_loss(entropy, kl, *jnp.exp(logs), -1.0, 0.1)

    numbers = jnp.log(jnp.array([0.5, 2.0])), jnp.float32(entropy), jnp.float32(kl)
    logs, *others = jax.grad(loss, argnums=(0, 1, 2))(*numbers)
    np.testing.assert_allclose(logs, [0.5 * (entropy + 1.0), 2.0 * (0.1 - kl)], rtol=1e-5)
    assert others == [0.0, 0.0]


@pytest.mark.parametrize("target, sign", [(-100.0, -1), (100.0, 1)])
def test_an_update_moves_alpha_towards_its_aim(target: float, sign: int) -> None:
    phases, state = phases_of("continuous")
    state = given(state, target_entropy=target, kl_bound=1e-9)
    after, metrics = phases.update(state)
    moved = after.agent.policy.params["multipliers"]
    assert np.sign(moved["alpha"]) == sign
    assert moved["beta"] > 0  # hardly any KL is below the bound
    finish = metrics.learn.finish
    np.testing.assert_allclose(finish.alpha, 0.01 * np.exp(moved["alpha"]), rtol=1e-6)
    np.testing.assert_allclose(finish.beta, 0.01 * np.exp(moved["beta"]), rtol=1e-6)


@pytest.mark.parametrize(
    "name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.long) for name in NAMES[1:])]
)
def test_the_first_minibatch_of_an_update_has_no_kl(name: str) -> None:
    phases, state = phases_of(name)
    state, _, batch = rollout_after(phases, state, 2)
    _, metrics = phases.loss(state.agent, state.agent.policy.params, batch)
    assert abs(metrics.kl) < 1e-10
    assert metrics.bound_fraction == 0.0
    after, _ = phases.gradient_step(batch, state.agent, np.arange(8 if name != "memory" else 2))
    assert phases.loss(after, after.policy.params, batch)[1].kl > 1e-9


@pytest.mark.long
def test_each_loss_reaches_its_own_parameters() -> None:
    """What the policy learns from is not in the critic's gradient, and the other way round."""
    phases, state = phases_of("continuous")
    state, _, batch = rollout_after(phases, state, 1)

    def gradients(batch: Any, **changes: float) -> dict[str, Any]:
        agent = given(state, **changes).agent
        found = jax.grad(lambda params: phases.loss(agent, params, batch)[0])(agent.policy.params)
        labels = phases.system.algorithm.groups(found)
        return {
            group: flat({part: x for part, x in found.items() if labels[part] == group})
            for group in phases.system.algorithm.group_names
        }

    one = gradients(batch)
    assert all(np.abs(x).max() > 0 for x in one.values())
    other_targets = gradients(with_steps(batch, target=batch.steps.target + 1.0))
    other_weights = gradients(batch, initial_alpha=0.5, target_entropy=1.0)
    far = jax.tree.map(lambda x: x + 1.0, batch.steps.distribution)  # so the KL is above its bound
    other_policy = gradients(with_steps(batch, distribution=far))
    others = other_targets, other_weights, other_policy
    changed = {
        group: [not np.array_equal(one[group], other[group]) for other in others] for group in one
    }
    assert changed == {
        "actor": [False, True, True],
        "critic": [True, False, False],
        "multipliers": [False, True, True],
    }


@pytest.mark.parametrize("name", ["continuous", pytest.param("discrete", marks=pytest.mark.long)])
def test_predictions_are_of_steps_with_a_successor(name: str) -> None:
    """Of truncated steps too, but not where the MDP ended, and they equal an oracle."""
    phases, state = phases_of(name)
    state, _, batch = rollout_after(phases, state, 1)
    steps, params = batch.steps, state.agent.policy.params
    terminated = np.arange(32)[None] % 3 == 0
    batch = with_steps(batch, terminated=terminated)

    def auxiliary(embedding: Any, reward: Any) -> float:
        changed = with_steps(batch, next_embedding=embedding, reward=reward)
        return float(phases.loss(state.agent, params, changed)[1].auxiliary_loss)

    algorithm = phases.system.algorithm
    output = phases.unroll(state.agent.policy, (), steps.obs, steps.reset)[1]
    critic, inputs = algorithm.critic(params, output, steps.action)
    predicted = np.asarray(algorithm.network.predict(params, critic.embedding, inputs), np.float64)
    error = np.square(predicted[..., :-1] - steps.next_embedding).mean(-1)
    error += np.square(predicted[..., -1] - steps.reward)
    found = auxiliary(steps.next_embedding, steps.reward)
    np.testing.assert_allclose(found, np.where(terminated, 0.0, error).mean(), rtol=1e-4)
    embedding, reward = np.array(steps.next_embedding), np.array(steps.reward)
    embedding[terminated], reward[terminated] = 7.0, -3.0
    assert auxiliary(embedding, reward) == found


def test_embeddings_to_predict_are_those_of_the_next_action() -> None:
    phases, state = phases_of("continuous")
    before, _, rollout = acted(phases, state)
    found = phases.targets(before.agent, rollout)[1]
    policy, steps = before.agent.policy, rollout.steps
    output = phases.unroll(policy, (), steps.obs, np.zeros((8, 4), bool))[1]
    embedding = phases.system.algorithm.critic(policy.params, output, steps.action)[0].embedding
    goes_on = ~np.asarray(steps.truncated)[:-1]
    assert goes_on.any()
    np.testing.assert_allclose(
        np.asarray(found.next_embedding)[:-1][goes_on], embedding[1:][goes_on], atol=1e-5
    )
    assert not np.allclose(np.asarray(found.next_embedding)[:-1][~goes_on], embedding[1:][~goes_on])


def test_minibatches_and_epochs_draw_anew() -> None:
    phases, state = phases_of("continuous")
    state, rollout = collect(phases, state)
    _, batch = add_targets(phases, state.agent, rollout)
    seeds = np.asarray(batch.steps.seed)
    assert len(np.unique(seeds)) == seeds.size
    one, other = (phases.loss(state.agent, state.agent.policy.params, each)[1].q_value
                  for each in (batch, with_steps(batch, seed=batch.steps.seed + 1)))  # fmt: skip
    assert one != other


# What it shares with all algorithms


@pytest.mark.long
@pytest.mark.parametrize("name", ["discrete", pytest.param("memory", marks=pytest.mark.slow)])
def test_an_episode_is_described(name: str) -> None:
    changes: dict[str, Any] = {"env": CLOCK}
    if name == "memory":
        changes = {"network": REMEMBERING, "system__sequence_length": 4}
    policy = fresh(reppo(arch={"num_eval_episodes": 5}, **changes))
    episode, *_ = policy.play(episodes=2)
    assert set(episode.distribution) == ({"logits"} if name == "discrete" else {"loc", "scale"})
    obs, reset = episode.observations[:, None], jnp.zeros((episode.length, 1), bool)
    given = policy.system, policy.policy, policy.initial_carry(1), obs, reset
    output, algorithm = acting.unroll(*given)[1], policy.system.algorithm
    raw = output.distribution.mode()
    q = algorithm.critic(policy.policy.params, output, raw)[0].value.mean()
    expected = algorithm.mean_q(output.distribution, q)[:, 0]
    np.testing.assert_allclose(episode.values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {
            "system": {
                **{"recompute_targets": True, "microbatch_size": 4},
                "schedules": {"kl_bound": {"kind": "linear", "end": 0.01}},
            }
        },
        {"arch": {"precision": "bf16", "on_nonfinite": "skip"}},
        {
            "network": {
                "critic_head": {"_target_": f"{LAYERS}.heads.ScalarHead"},
                "actor_head": {"_target_": f"{LAYERS}.heads.BetaHead"},
            }
        },
        {"network": {"shared_torso": MLP, "actor_torso": None}},
        {"network": REMEMBERING, "system__sequence_length": 4, "system__burn_in": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_all_algorithms_have_works(changes: dict[str, Any]) -> None:
    built, state = alone(*build(reppo(**changes))[:2])
    after, metrics = jax.jit(functools.partial(spine.update, built))(state)
    assert not np.array_equal(flat(after.agent.policy.params), flat(state.agent.policy.params))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(metrics.learn.steps))


# Learning


@pytest.mark.long
@pytest.mark.parametrize("target, at_least", [("envs.Aim", -0.08), ("envs.Copy", 0.98)])
def test_both_kinds_of_actions_are_learnt(tmp_path: Path, target: str, at_least: float) -> None:
    """0 is the optimum of the first, -1/4 the middle; 1 is that of the second, 1/3 chance."""
    rates = dict.fromkeys(("actor_lr", "critic_lr"), 3e-3)
    arch = {"total_num_envs": 32, "num_updates": 100}
    config = reppo(env={"target": target}, arch=arch, system=rates, logger=QUIET)
    assert run(config, tmp_path) > at_least


@pytest.mark.slow
def test_pendulum_is_learnt_by_the_command(tmp_path: Path) -> None:
    assert run(compose("ff_reppo", ["env=pendulum", "logger.console=false"]), tmp_path) > -200


# Refusals


@pytest.mark.parametrize(
    "typed, names",
    [
        ("env.name=null env.target=envs.Parts", "envs.Parts|MultiDiscrete|ff_ppo"),
        ("env.name=null env.target=envs.Mixed", "envs.Mixed|Discrete|Box"),
        ("env=pendulum network=lstm", "network.actor_memory|rec_reppo"),
        ("env=pendulum network/critic_head=scalar", "network.critic_head|num_atoms"),
        ("env=pendulum system.clip_eps=0.1", "system.clip_eps"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(typed: str, names: str) -> None:
    with refused("".join(rf"(?=.*{re.escape(name)})" for name in names.split("|"))):
        prepare(compose("ff_reppo", typed.split()))
