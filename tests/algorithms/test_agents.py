"""Worlds with several agents: rows that pad are not learnt from, and no world is cut."""

import dataclasses
import functools
import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import worlds
from conftest import alone, build, close, refused, small_config
from phases import add_targets, collect_with_keys, compiled
from runs import MEMORY, QUIET, fresh, pqn

import jaxppo
from jaxppo.algorithms import report
from jaxppo.algorithms.evaluation import evaluate
from jaxppo.config.schema import Config, EnvConfig
from jaxppo.envs.episodes import Episodes
from jaxppo.types import LearnerState, Rollout

pytestmark = pytest.mark.usefixtures("share_programs")

ALL = dict.fromkeys(("normalize_observations", "normalize_values", "normalize_rewards"), True)


def of_world(name: str, **changes: Any) -> Config:
    arch = {"total_num_envs": 12, **changes.pop("arch", {})}
    given = {"arch": arch, "env__target": f"worlds.{name}", **changes}
    return small_config(**given)


@functools.cache
def leaving(**system: Any) -> tuple[Any, LearnerState]:
    settings = {**ALL, "rollout_length": 16, "num_minibatches": 1, **system}
    built, state = alone(*build(of_world("Leaving", system=settings))[:2])
    return compiled(built), state


@functools.cache
def rollout(num_updates: int = 2, **system: Any) -> tuple[Any, LearnerState, Rollout, Any]:
    phases, state = leaving(**system)
    for _ in range(num_updates):
        state, _ = phases.update(state)
    return phases, *collect_with_keys(phases, state)


@pytest.mark.long
def test_one_agent_a_world_is_the_plain_environment() -> None:
    """A whole run: parameters, metrics and evaluations, bit for bit."""
    changes: dict[str, Any] = {"network": MEMORY, "system": {**ALL, "sequence_length": 4}}
    changes["arch"] = {"total_num_envs": 12, "update_batch_size": 2, "num_eval_episodes": 5}
    with_agents, plain = (
        jaxppo.train(small_config(env__target=target, logger=QUIET, **changes))
        for target in ("worlds.One", "own_envs.Count")
    )
    for part in ("params", "obs_statistics"):
        close(*(getattr(each.policy.policy, part) for each in (with_agents, plain)))
    for name, values in plain.evaluations.items():
        if "second" not in name:
            np.testing.assert_array_equal(with_agents.evaluations[name], values, err_msg=name)


class Twins(Episodes):
    """`Steady`s whose starts have the keys of `worlds.Apart`."""

    def starts(self, key: jax.Array) -> Any:
        keys = jax.vmap(functools.partial(jax.random.split, num=2))(key[::2]).reshape(-1)
        return super().starts(keys)


@pytest.mark.long
def test_two_agents_that_never_meet_are_two_environments() -> None:
    system, state = alone(*build(of_world("Apart", system=ALL))[:2])
    twins = Twins("twins", worlds.Steady(), EnvConfig())
    other = dataclasses.replace(system, env=twins, metrics={})
    env_state, obs = twins.reset(jax.random.split(jax.random.key(3), 12))
    same, same_obs = system.env.reset(jax.random.split(jax.random.key(3), 12))
    np.testing.assert_array_equal(obs, same_obs)
    plain = dataclasses.replace(state.acting, env_state=env_state, obs=obs, tallies={})
    paired = dataclasses.replace(state.acting, env_state=same, obs=obs)
    agents = []
    for each, acting in ((other, plain), (system, paired)):
        now, update = LearnerState(agent=state.agent, acting=acting), compiled(each).update
        for _ in range(3):
            now, _ = update(now)
        agents.append((now.agent.policy.params, now.acting.obs))
    params, obs = zip(*agents, strict=True)
    np.testing.assert_array_equal(*obs)
    close(*params, rtol=1e-4, atol=1e-6)


def test_rows_pad_from_the_end_of_an_agent_to_that_of_its_world() -> None:
    steps = rollout()[2].steps
    obs = np.asarray(steps.obs).reshape(16, 4, 3, 3)
    alive, over, reset = (
        np.asarray(x).reshape(16, 4, 3)
        for x in (steps.alive, steps.terminated | steps.truncated, steps.reset)
    )
    action, reward = (np.asarray(x).reshape(16, 4, 3) for x in (steps.action, steps.reward))
    assert 0.1 < alive.mean() < 0.9
    starts = obs[..., 0] == 0
    np.testing.assert_array_equal(starts, starts.all(-1, keepdims=True) | np.zeros(3, bool))
    for t in range(1, 16):
        for world in range(4):
            there = alive[t - 1, world] & ~over[t - 1, world]
            assert starts[t, world, 0] == (not there.any())  # anew only when all are over
            np.testing.assert_array_equal(
                alive[t, world], np.ones(3, bool) if starts[t, world, 0] else there
            )
    late = obs[..., 0] == 3
    np.testing.assert_array_equal(over, (action == 1) | late | ~alive)
    np.testing.assert_array_equal(reward, alive * alive.sum(-1, keepdims=True))
    np.testing.assert_array_equal(reset[1:], over[:-1])  # memories are empty in the next episode


def test_an_agents_advantages_end_with_it() -> None:
    """Those of the oracle, and standardised by the steps in which agents acted."""
    phases, state, found, _ = rollout()
    steps, hp = found.steps, state.agent.hyperparameters
    agent, scaled = phases.scale_rewards(state.agent, found)
    batch = add_targets(phases, agent, scaled)[1].steps
    alive = np.asarray(steps.alive)
    value = np.asarray(batch.value).reshape(16, 12)
    following = np.concatenate([value[1:], value[:1]])
    reward, terminated, truncated = (
        np.asarray(x)
        for x in (scaled.steps.reward, steps.terminated, steps.truncated & ~steps.terminated)
    )
    numbers = {"gamma": float(hp.gamma), "gae_lambda": float(hp.gae_lambda)}
    advantage, _ = oracles.gae(reward, value, following, terminated, truncated, **numbers)
    # Where the steps until the next termination need neither the rollout's end nor a truncation
    known = np.zeros_like(alive)
    for t in reversed(range(16)):
        known[t] = terminated[t] | (~truncated[t] & (known[t + 1] if t < 15 else False))
    assert (known & alive & ~terminated).any()
    target = np.asarray(batch.target).reshape(16, 12)
    np.testing.assert_allclose(target[known], (advantage + value)[known], atol=1e-4)
    standardized = np.asarray(batch.advantage).reshape(16, 12)
    np.testing.assert_allclose(standardized[alive].mean(), 0.0, atol=1e-5)
    np.testing.assert_allclose(standardized[alive].std(), 1.0, atol=1e-4)
    spread = (target - value)[alive].std()
    shifted = (target - value - (target - value)[alive].mean()) / spread
    np.testing.assert_allclose(standardized[alive], shifted[alive], atol=1e-3)


def test_statistics_and_counts_leave_padding_out() -> None:
    phases, state, found, _ = rollout(0)
    steps, alive = found.steps, np.asarray(found.steps.alive)
    after = phases.update_obs_statistics(state.agent, found).policy.obs_statistics
    mean, variance = oracles.mean_and_variance([np.asarray(steps.obs)[alive]])
    np.testing.assert_allclose(after.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(after.variance, variance, rtol=1e-4, atol=1e-6)
    assert after.count == alive.sum()
    agent, _ = phases.scale_rewards(state.agent, found)
    _, variance = oracles.mean_and_variance([np.asarray(steps.discounted_return)[alive]])
    np.testing.assert_allclose(agent.reward_statistics.variance, variance, rtol=1e-4)
    over = np.asarray(steps.terminated | steps.truncated) & alive
    assert found.ended.count == over.sum()
    batch = add_targets(phases, state.agent, found)
    _, variance = oracles.mean_and_variance(
        [np.asarray(batch[1].steps.target).reshape(16, 12)[alive]]
    )
    np.testing.assert_allclose(
        batch[0].algorithm_state.value_statistics.variance, variance, rtol=1e-4
    )
    explained = phases.finish(state.agent, batch[1])[1].explained_variance
    pairs = (
        np.asarray(x).reshape(16, 12)[alive] for x in (batch[1].steps.value, batch[1].steps.target)
    )
    np.testing.assert_allclose(explained, oracles.explained_variance(*pairs), atol=1e-4)


def test_masks_of_padding_are_not_reported_as_empty() -> None:
    """An agent that has left may be shown nothing that is legal."""
    steps = (found := rollout(0)[2]).steps
    network = types.SimpleNamespace(empty_masks=lambda obs: obs[..., 2] >= 1)
    system: Any = types.SimpleNamespace(algorithm=types.SimpleNamespace(network=network))
    empty, alive = np.asarray(steps.obs[..., 2] >= 1), np.asarray(steps.alive)
    assert (empty & ~alive).any()
    assert report.of_rollout(system, found).empty_mask == (empty & alive).sum() > 0


@pytest.mark.parametrize(
    "standardize", ["batch", pytest.param("minibatch", marks=pytest.mark.long)]
)
def test_gradient_is_that_of_the_steps_in_which_agents_acted(standardize: str) -> None:
    phases, state, found, _ = rollout(standardize_advantages=standardize)
    agent, scaled = phases.scale_rewards(state.agent, found)
    agent, batch = add_targets(phases, agent, scaled)
    padded, metrics = phases.gradient_step(batch, agent, jnp.arange(16 * 12))
    alive = np.flatnonzero(np.asarray(batch.steps.weight)[0])
    steps = jax.tree.map(lambda x: x[:, alive], batch.steps)
    only = dataclasses.replace(batch, steps=dataclasses.replace(steps, weight=None))
    plain, wanted = phases.gradient_step(only, agent, jnp.arange(len(alive)))
    assert 0 < len(alive) < 16 * 12
    found = (padded.policy.params, metrics)
    close(found, (plain.policy.params, wanted), rtol=1e-4, atol=1e-5)


def test_what_padding_holds_changes_nothing() -> None:
    """Observations, actions, rewards and successors, bit for bit."""
    phases, state, found, keys = rollout()
    steps, pads = found.steps, ~jnp.asarray(found.steps.alive)
    other = dataclasses.replace(
        steps,
        obs=jnp.where(pads[..., None], steps.obs[::-1] + 7.0, steps.obs),
        final_observation=jnp.where(pads[..., None], 5.0, steps.final_observation),
        action=jnp.where(pads, 1 - steps.action, steps.action),
        reward=jnp.where(pads, -3.0, steps.reward),
        discounted_return=jnp.where(pads, 9.0, steps.discounted_return),
    )
    changed = dataclasses.replace(found, steps=other)
    close(*(phases.learn(state.agent, each, keys)[0] for each in (found, changed)))


def test_evaluation_counts_worlds() -> None:
    """Returns are means over agents; what a world tells is told once, of its whole episode."""
    config = of_world(
        "Leaving", arch__num_eval_episodes=7, env={"metrics": ["there:sum", "time"]}, logger=QUIET
    )
    made = fresh(config)
    sampled = dataclasses.replace(made.system, evaluation_greedy=False)
    keys = jax.random.split(jax.random.key(1), 9)
    play = jax.jit(functools.partial(evaluate, sampled))
    found, same = play(made.policy, keys), play(made.policy, keys[jnp.full(9, 4)])
    assert found.returns.shape == (9,)
    np.testing.assert_allclose(found.metrics["team_return"], 3 * found.returns, rtol=1e-6)
    np.testing.assert_array_equal(found.metrics["time"], found.lengths)
    close(*(jax.tree.map(lambda x: x[4:5], each) for each in (found, same)), rtol=1e-6)
    # The reward is the number of agents that are there, and each of them gets it
    assert (found.metrics["team_return"] >= found.metrics["there"]).all()
    assert found.finished.all()


def test_the_return_of_a_team_counts_also_where_its_evaluation_is_cut_off() -> None:
    """Without those, a mean would leave out the worlds that last longest."""
    made = fresh(of_world("Leaving", arch__max_eval_steps=2, logger=QUIET))
    sampled = dataclasses.replace(made.system, evaluation_greedy=False)
    keys = jax.random.split(jax.random.key(1), 9)
    found = jax.jit(functools.partial(evaluate, sampled))(made.policy, keys)
    assert {*found.finished.tolist()} == {True, False}
    np.testing.assert_allclose(found.metrics["team_return"], 3 * found.returns, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": {"total_num_envs": 10}}, "arch.total_num_envs=10: counts agents, and 10 for"),
        ({"arch": {"update_batch_size": 2, "total_num_envs": 8}}, "the nearest that are: 6"),
        ({"logger": {"details": True}}, "logger.details=true: is not for worlds"),
        ({"env": {"metrics": ["team_return"]}}, "env.metrics=[team_return]: is there for every"),
        ({"world": "Unlike"}, "reward has shape (3,); with num_agents=2 it must have (2,), or ()"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    config = of_world(changes.pop("world", "Leaving"), **changes)
    with refused(re.escape(message)):
        build(config)


def test_an_algorithm_that_learns_from_every_step_takes_no_padding() -> None:
    arch, target = {"total_num_envs": 12}, {"target": "worlds.Leaving"}
    with refused(r"system\.algorithm=pqn: learns from every step"):
        build(pqn(env=target, arch=arch))
    build(pqn(env={"target": "worlds.Apart"}, arch=arch))


@pytest.mark.long
@pytest.mark.parametrize(
    "select, passes",
    [
        ([], True),
        pytest.param(
            ["network/input_layer=select", "network.input_layer.key=observation"],
            False,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["mappo", "ippo"],
)
def test_a_critic_that_sees_the_state_learns_where_one_that_sees_its_agent_does_not(
    select: list[str], passes: bool
) -> None:
    """MAPPO and IPPO in `env=gate`, three seeds each; a lever at random passes 0.25."""
    sizes = ["arch.num_seeds=3", "arch.total_timesteps=73728", "arch.num_evaluation=2"]
    quiet = ["logger.console=false", "arch.absolute_metric=false"]
    result = jaxppo.train(["env=gate", *sizes, *quiet, *select])
    passed = np.asarray(result.evaluations["env/passed"])[:, -1].mean()
    assert passed > 0.9 if passes else passed < 0.4
