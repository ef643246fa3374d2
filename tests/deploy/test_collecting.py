"""Rollouts for a learner of one's own are those of training."""

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest
from conftest import NETWORK, close, refused, small_config
from runs import MEMORY, QUIET

import jaxppo
from jaxppo.types import Transition

TWINS = {"JAX": {"target": "simulators.Twin"}, "simulator": {"target": "simulators.Known"}}
TWINS["simulator"]["library"] = "gymnasium"
TWINS["game"] = {"target": "own_games.Nim", "opponent": "pool", "num_opponents": 2}
SIZES = {"total_num_envs": 4, "num_updates": 3, "num_evaluation": 1, "evaluate_first": False}
SIZES |= {"num_eval_episodes": 2, "max_eval_steps": 8}


def settings(env: dict[str, Any], **changes: Any) -> Any:
    """Rates of zero, so that nothing is learnt but the statistics of observations."""
    system = {"actor_lr": 0.0, "critic_lr": 0.0, "normalize_observations": True}
    system |= {"epochs": 2, "sequence_length": None}
    logger = {**QUIET, "every": 1}
    return small_config(env=env, arch=SIZES, system=system, logger=logger, **changes)


@pytest.mark.long
@pytest.mark.parametrize("kind", TWINS)
def test_a_learner_of_ones_own_gets_the_rollouts_of_training(kind: str) -> None:
    config = settings(TWINS[kind], network=NETWORK if kind == "game" else MEMORY)
    trained = jaxppo.train(config, progress=False)
    with jaxppo.rollouts(config) as rollouts:
        found = [rollout.ended for rollout in itertools.islice(rollouts, 4)]
        policy = rollouts.policy  # the fourth rollout has the statistics of three
    ended = np.asarray([[x.count, x.episode_return, x.episode_length] for x in found[:3]]).T
    assert np.array_equal(trained.metrics["episodes"], ended[0])
    for name, total in (("episode_return", ended[1]), ("episode_length", ended[2])):
        np.testing.assert_allclose(trained.metrics[name], total / ended[0], rtol=1e-7)
    assert ended[0].all()
    assert len(set(ended[1])) > 1 or kind == "game"
    latest = trained.policy_of(trained.seeds[0], "latest").policy
    # Small first parameters differ by more where other options have compiled them
    for name in ("obs_statistics",) if kind == "game" else ("params", "obs_statistics"):
        close(getattr(policy, name), getattr(latest, name), rtol=3e-6)
    assert float(policy.obs_statistics.count) > 0


def whole(rollouts: list[Any]) -> list[list[Transition]]:
    """Step by step: the episodes that end in each rollout, by environment."""
    found, running = [], {}
    for rollout in rollouts:
        steps, ended = jax.tree.map(np.asarray, rollout.steps), []
        for env in range(steps.reward.shape[1]):
            for step in range(len(steps.reward)):
                now = jax.tree.map(lambda x, at=(step, env): x[at], steps)
                running.setdefault(env, []).append(now)
                if now.terminated or now.truncated:
                    ended.append(jax.tree.map(lambda *x: np.stack(x), *running.pop(env)))
        found.append(ended)
    return found


def test_episodes_are_whole_and_none_is_lost() -> None:
    config = settings(TWINS["JAX"])
    wanted = whole(list(itertools.islice(jaxppo.rollouts(config, length=4), 5)))
    found = list(itertools.islice(jaxppo.rollouts(config, length=4, episodes=True), 5))
    assert {len(x.reward) for episodes in wanted for x in episodes} == {5, 7}
    for want, got in zip(wanted, found, strict=True):
        close(want, got)
    assert any(not episodes for episodes in found)


@pytest.mark.long
def test_the_network_says_again_what_acting_was_told() -> None:
    """Also in the middle of an episode, where the memory is what it was then."""
    rollouts = jaxppo.rollouts(settings(TWINS["JAX"], network=MEMORY), length=4, num_envs=3)
    for rollout in itertools.islice(rollouts, 2):
        output = jax.jit(rollouts.apply)(rollouts.policy, rollout.steps)
        again = output.distribution.log_prob(rollout.steps.action)
        np.testing.assert_allclose(again, rollout.steps.extras.log_prob, rtol=1e-5)
    episode = jax.tree.map(lambda x: x[:, 1], rollout.steps)
    alone = rollouts.apply(rollouts.policy, episode).value.mean()
    np.testing.assert_allclose(alone, output.value.mean()[:, 1], rtol=1e-5)


def test_a_policy_that_is_assigned_acts_and_is_returned() -> None:
    rollouts = jaxppo.rollouts(settings(TWINS["JAX"]), num_envs=2, length=7)
    params = rollouts.policy.params
    certain = jax.tree.map(
        lambda x: np.float32([-99, 99]) if x.shape == (2,) else x, params["actor_head"]
    )
    certain = {**params, "actor_head": certain}
    rollouts.policy = dataclasses.replace(rollouts.policy, params=certain)
    assert next(rollouts).steps.action.all()
    trained = rollouts.trained()
    assert trained.steps == rollouts.steps == 14
    again = jaxppo.rollouts(trained, num_envs=3, length=2)
    assert next(again).steps.action.shape == (2, 3)
    assert next(again).steps.action.all()


REFUSED = {
    "arch.num_seeds": lambda: jaxppo.rollouts(["env=cartpole", "arch.num_seeds=2"]),
    "arch.actors": lambda: jaxppo.rollouts(
        ["env=gymnasium", "env.name=CartPole-v1", "arch.actors=2"]
    ),
    "init_from=run": lambda: jaxppo.rollouts(["env=cartpole", "init_from=run"]),
    "num_envs=0": lambda: jaxppo.rollouts(["env=cartpole"], num_envs=0),
    "length=0.5": lambda: jaxppo.rollouts(["env=cartpole"], length=0.5),  # type: ignore[arg-type]
    "network": lambda: jaxppo.rollouts(jaxppo.rollouts(["env=cartpole"]).trained(), network={}),
    "observation_space": lambda: jaxppo.rollouts(
        jaxppo.rollouts(["env=cartpole"]).trained(), {"name": "Acrobot-v1"}
    ),
}


@pytest.mark.long_but(2)
@pytest.mark.parametrize("key", REFUSED)
def test_what_rollouts_cannot_be_of_is_refused(key: str) -> None:
    with refused(key):
        REFUSED[key]()
