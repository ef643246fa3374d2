"""Collecting and learning, whatever the algorithm: against oracles and invariants."""

import dataclasses
import functools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import NETWORK, alone, build, close, small_config
from phases import (
    add_targets,
    collect,
    collect_with_keys,
    compiled,
    flat,
    given,
    random_batch,
    split_step,
    with_hyperparameters,
    with_steps,
)

from jaxppo.algorithms import acting, guards, report, spine
from jaxppo.algorithms.acting import state_values
from jaxppo.algorithms.axes import vmap_members
from jaxppo.algorithms.gradient_steps import make_step
from jaxppo.algorithms.memory import keep_batch
from jaxppo.algorithms.metrics import add
from jaxppo.kernels.permutations import random_permutation
from jaxppo.ops.collectives import BATCH_AXIS
from jaxppo.ops.histograms import edges
from jaxppo.ops.statistics import merge_statistics
from jaxppo.runtime.hosts.devices import parallel
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run.events import of_training
from jaxppo.types import Batch, LearnerState, System

same = partial(close, rtol=1e-5, atol=1e-6)  # but for how two programs round
STATISTICS = ("normalize_observations", "normalize_values", "normalize_rewards")
GRU = {"_target_": "jaxppo.networks.memory.Recurrent", "cell": "gru", "size": 8}
SYSTEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "terminating": {"env__params": {"terminates": True}},
    "statistics": {"system": dict.fromkeys(STATISTICS, True)},
    "stopping": {"system__target_kl": 1e9},
    "settling": {"system": {"epochs": 6, "min_loss_change": 1.0}},
    "six epochs": {"system__epochs": 6},
    "detailed": {"logger__details": True, "system": dict.fromkeys(STATISTICS, True)},
    "skipping": {"arch__on_nonfinite": "skip"},
    "watching": {"system": dict.fromkeys(STATISTICS, True), "arch__learn": False},
    "all": {
        "network": {**NETWORK, "actor_memory": GRU, "critic_memory": GRU},
        "system": {
            **dict.fromkeys(STATISTICS, True),
            **{"sequence_length": 4, "burn_in": 1, "recompute_carries": True},
        },
    },
}


@functools.cache
def system_of(name: str) -> tuple[Any, LearnerState]:
    """The phases of one of `SYSTEMS`, each compiled once for all tests, and its first state."""
    system, state = alone(*build(small_config(**SYSTEMS[name]))[:2])
    return compiled(system), state


@functools.cache
def begun(name: str) -> Any:
    """The phases, the state after a rollout, the rollout and the keys of its epochs."""
    phases, state = system_of(name)
    return phases, *collect_with_keys(phases, state)


@pytest.mark.parametrize("terminates", [False, True])
def test_rollout_says_where_episodes_open_and_how_they_end(terminates: bool) -> None:
    phases, state = system_of("terminating" if terminates else "plain")
    after, rollout = phases.collect(state.agent, state.acting)
    steps, time = rollout.steps, np.arange(8) % 5
    np.testing.assert_array_equal(steps.obs[..., 0], np.tile(time[:, None], (1, 4)))
    np.testing.assert_array_equal(steps.reset, np.tile(time[:, None] == 0, (1, 4)))
    np.testing.assert_array_equal(steps.reward, np.tile(time[:, None] + 1.0, (1, 4)))
    np.testing.assert_array_equal(steps.truncated, np.tile(time[:, None] == 4, (1, 4)))
    np.testing.assert_array_equal(steps.terminated, steps.truncated & terminates)
    # The true successor continues the same episode; only the next observation is of a new one.
    np.testing.assert_array_equal(steps.final_observation[..., 0], steps.obs[..., 0] + 1)
    np.testing.assert_array_equal(steps.final_observation[..., 1], steps.obs[..., 1])
    assert not np.any(steps.obs[5, :, 1] == steps.obs[4, :, 1])
    np.testing.assert_array_equal(after.obs[:, 0], 3.0)
    np.testing.assert_array_equal(rollout.obs, after.obs)
    assert not rollout.reset.any()
    assert jax.tree.leaves(rollout.ended) == [4, 60, 20]


def test_running_episodes_are_counted_once_and_across_rollouts() -> None:
    phases, state = system_of("plain")
    totals, acting = np.zeros(3), state.acting
    for _ in range(5):  # 40 steps: 8 episodes of 5 steps and return 15 in each environment
        acting, rollout = phases.collect(state.agent, acting)
        totals += jax.tree.leaves(rollout.ended)
    np.testing.assert_array_equal(totals, [4 * 8, 4 * 8 * 15, 4 * 8 * 5])


@pytest.mark.long
def test_an_update_is_to_collect_and_to_learn() -> None:
    """`learn` is a program of its own, which a rollout of NumPy arrays from elsewhere suits."""
    phases, collected, rollout, keys = begun("all")
    state = system_of("all")[1]
    updated, metrics = phases.update(state)
    learner = compiled(dataclasses.replace(phases.system, env=None))  # there is nothing to step
    agent, learnt = learner.learn(state.agent, rollout, keys)
    told = learner.report(rollout, learnt)
    same((agent, collected.acting, told), (updated.agent, updated.acting, metrics))
    close(learner.learn(state.agent, jax.tree.map(np.asarray, rollout), keys), (agent, learnt))


@pytest.mark.long
def test_an_update_reports_its_diagnostics_and_moves_all_statistics_once() -> None:
    """Those of observations over every observation so far."""
    phases, state = system_of("statistics")
    seen = []
    for count in range(1, 4):
        _, rollout = phases.collect(state.agent, state.acting)
        seen.append(np.asarray(rollout.steps.obs).reshape(-1, 2))
        state, metrics = phases.update(state)
        agent, everything = state.agent, np.concatenate(seen).astype(np.float64)
        statistics = agent.policy.obs_statistics
        np.testing.assert_allclose(statistics.mean, everything.mean(0), rtol=1e-5)
        np.testing.assert_allclose(statistics.variance, everything.var(0), rtol=1e-4)
        assert [statistics.count, agent.reward_statistics.count] == [32 * count] * 2
        old = sum(0.99**age for age in range(count))  # those of values forget
        np.testing.assert_allclose(
            agent.algorithm_state.value_statistics.count, 32 * old, rtol=1e-5
        )
    norm = np.sqrt(np.sum(np.square(flat(state.agent.policy.params))))
    np.testing.assert_allclose(metrics.learn.parameter_norm, norm, rtol=1e-5)
    assert metrics.learn.gradient_steps == 2 * 4
    assert metrics.learn.targets.advantage_std > 0
    assert metrics.learn.steps.loss.ratio_min < 1 < metrics.learn.steps.loss.ratio_max
    assert metrics.rollout.empty_mask == 0


def test_statistics_of_observations_move_for_a_share_of_the_updates() -> None:
    """And in the first update, however small the share is."""
    given = {"normalize_observations": True}
    for share, moving in ((1.0, 4), (0.5, 2), (0.49, 1), (0.01, 1)):
        system, state = alone(*build(small_config(system={**given, "obs_norm_share": share}))[:2])
        phases = compiled(system)
        _, rollout = phases.collect(state.agent, state.acting)
        counts = [
            phases.update_obs_statistics(
                dataclasses.replace(state.agent, update=jnp.int32(update)), rollout
            ).policy.obs_statistics.count
            for update in (1, 2, 3, 4)
        ]
        assert counts == [32] * moving + [0] * (4 - moving)


def test_an_entry_that_begins_to_change_after_the_statistics_is_seen() -> None:
    """Frozen statistics would have all of its values at the clip for good."""
    settings = {"normalize_observations": True, "obs_norm_share": 0.5}
    system, state = alone(*build(small_config(system=settings))[:2])
    policy = state.agent.policy
    empty = merge_statistics(policy.obs_statistics, jnp.zeros((4, 2)))
    policy = dataclasses.replace(policy, obs_statistics=empty)
    seen = jnp.asarray([[[0.5, 0.0]], [[2.0, 0.0]], [[-4.0, 0.0]]])  # [L, S, O]
    _, found = acting.unroll(system, policy, {}, seen, jnp.zeros((3, 1), bool))
    raw = dataclasses.replace(system, normalize_observations=False)
    _, wanted = acting.unroll(raw, policy, {}, seen, jnp.zeros((3, 1), bool))
    close(found.value.mean(), wanted.value.mean(), rtol=1e-6)


def test_every_transition_lands_in_exactly_one_minibatch() -> None:
    system = system_of("plain")[0].system
    keys = jax.random.split(jax.random.key(0), 3)
    step = lambda batch, carry, indices: (carry, indices)  # noqa: E731
    _, orders = spine.scan_epochs(system, random_batch(32), keys, step, keep_batch, ())
    for order in orders:
        assert order.shape == (4, 8)
        np.testing.assert_array_equal(np.sort(order.ravel()), np.arange(32))
    assert not np.array_equal(orders[0], orders[1])


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.long), True])
def test_split_over_update_batches_gives_the_same_step(padded: bool) -> None:
    """Also of advantages standardised by minibatch, and where each has another share of padding."""
    changes = small_config(system__standardize_advantages="minibatch")
    system, state = alone(*build(changes)[:2])
    weight = jnp.asarray(np.arange(32)[None] > 12, jnp.float32) if padded else None
    batch = with_steps(random_batch(32), weight=weight)
    whole, metrics = compiled(system).gradient_step(batch, state.agent, jnp.arange(32))
    parts, of_parts = split_step(system, batch, state.agent)
    found = ((x.policy.params, x.opt_state, of) for x, of in ((whole, metrics), (parts, of_parts)))
    close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_update_batches_act_apart_and_share_parameters() -> None:
    built, state, plan = build(
        small_config(
            arch={"total_num_envs": 8, "update_batch_size": 2},
            env__target="envs.Copy",
            system=dict.fromkeys(STATISTICS, True),
        )
    )
    layout = Layout(plan, built, (0,))
    train = parallel(partial(vmap_members(spine.train_block, shared=1), built), 1)
    after, metrics = train(state, layout.no_metrics(), layout.place_count(2))
    assert jax.tree.leaves(after.agent.policy.params)[0].ndim == 2 + 1  # [D, P, ...]: no U
    keys = jax.random.key_data(after.acting.key)
    assert not np.array_equal(keys[0, 0, 0], keys[0, 0, 1])
    assert not np.array_equal(after.acting.obs[0, 0, 0], after.acting.obs[0, 0, 1])
    # Every step of both update batches, twice
    assert metrics.rollout.num_episodes[0, 0] == 2 * 8 * 8
    for statistics in (after.agent.policy.obs_statistics, after.agent.reward_statistics):
        assert statistics.count[0, 0] == 2 * 8 * 8


@pytest.mark.long
def test_whatever_draws_moves_the_random_stream_on() -> None:
    phases, state = system_of("plain")
    keys = [state.acting.key]
    for _ in range(2):
        acting, _ = phases.collect(state.agent, state.acting)
        _, _, of_epochs = collect_with_keys(phases, state)
        state, _ = phases.update(state)
        keys += [acting.key, *of_epochs, state.acting.key]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == len(keys)


@pytest.mark.long
def test_same_seed_same_bits_and_another_seed_others(compiled_block: Any) -> None:
    train, _, total, counts, _ = compiled_block

    def trained(seed: int) -> np.ndarray:
        _, state, _ = build(small_config(arch__seed=seed))
        return flat(train(state, total, counts(2))[0].agent.policy.params)

    first = trained(1)
    np.testing.assert_array_equal(first, trained(1))
    assert not np.array_equal(first, trained(2))


@pytest.mark.parametrize(
    "name, value",
    [("gamma", 0.5), ("clip_eps", 1e-4), ("ent_coef", 0.5), ("vf_coef", 5.0), ("actor_lr", 0.01),
     ("critic_lr", 0.01), ("gae_lambda", 0.1), ("max_grad_norm", 1e-3), ("reward_scale", 0.1),
     ("decay_learning_rates", 0.0)],
)  # fmt: skip
def test_hyperparameters_are_data(compiled_block: Any, name: str, value: float) -> None:
    """Each changes what is learnt, by the program that is compiled."""
    train, state, total, counts, (baseline, _) = compiled_block
    agent = with_hyperparameters(state.agent, **{name: jnp.full((1, 1), value, jnp.float32)})
    changed, _ = train(dataclasses.replace(state, agent=agent), total, counts(3))
    assert not np.array_equal(flat(changed.agent.policy.params), flat(baseline))


@pytest.fixture(scope="module")
def compiled_block() -> Any:
    built, state, plan = build(small_config())
    layout = Layout(plan, built, (0,))
    total, three = layout.no_metrics(), layout.place_count(3)
    train = (
        parallel(partial(vmap_members(spine.train_block, shared=1), built), 1)
        .lower(state, total, three)
        .compile()
    )
    after, metrics = train(state, total, three)
    return train, state, total, layout.place_count, (after.agent.policy.params, metrics)


def test_a_block_in_several_calls_is_the_block_in_one(compiled_block: Any) -> None:
    """Bit for bit, its metrics too, by the program that is compiled."""
    train, state, total, counts, whole = compiled_block
    state, total = train(*train(state, total, counts(1)), counts(2))
    assert state.agent.update[0] == 3
    close((state.agent.policy.params, total), whole)


@pytest.mark.long
def test_numbers_of_a_run_reach_its_report() -> None:
    """Returns are not scaled; the learning rate falls to its last share; extremes are of all."""
    phases, state = system_of("plain")
    state = given(state, reward_scale=0.01, actor_lr=1.0)
    total, rates, extremes = report.zero_metrics(phases.system), [], []
    for _ in range(4):
        state, metrics = phases.update(state)
        rates.append(float(metrics.learn.learning_rate))
        loss = metrics.learn.steps.loss
        extremes.append((loss.ratio_min, loss.ratio_max))
        total = add(total, metrics)
    np.testing.assert_allclose(rates, [1.0, 0.75, 0.5, 0.25])
    assert total.rollout.episode_return / total.rollout.num_episodes == 15
    assert total.learn.steps.loss.ratio_min == min(low for low, _ in extremes)
    assert total.learn.steps.loss.ratio_max == max(high for _, high in extremes)
    assert total.learn.gradient_steps == 4 * 8


@pytest.mark.long
@pytest.mark.parametrize("poison", ["reward", "obs"])
def test_nonfinite_numbers_are_counted(poison: str) -> None:
    phases, state, rollout, keys = begun("plain")
    bad = jnp.full_like(getattr(rollout.steps, poison), jnp.nan if poison == "obs" else jnp.inf)
    steps = dataclasses.replace(rollout.steps, **{poison: bad})
    rollout = dataclasses.replace(rollout, steps=steps)
    metrics = phases.report(rollout, phases.learn(state.agent, rollout, keys)[1])
    assert (metrics.rollout.nonfinite_reward > 0) == (poison == "reward")
    assert (metrics.rollout.nonfinite_observation > 0) == (poison == "obs")
    assert metrics.learn.nonfinite_loss > 0


def test_values_of_truncated_successors_cost_nothing_where_none_is() -> None:
    """The branch is a real one: its critic pass stays out of the unconditional program."""
    phases, state, rollout, _ = begun("plain")
    values = partial(state_values, phases.system, value=lambda output: output.value.mean())
    jaxpr = str(jax.make_jaxpr(values)(state.agent.policy, rollout))
    assert jaxpr.count("cond[") == 1
    several = jax.tree.map(lambda x: jnp.stack([x, x]), (state.agent.policy, rollout))
    jaxpr = str(jax.make_jaxpr(jax.vmap(values))(*several))
    assert jaxpr.count("cond[") == 1  # vmap with its own predicate would compute both branches


def update_of_batches(system: System, state: LearnerState) -> str:
    """The program of an update of two update batches."""
    mapped = dataclasses.replace(system, axes=(BATCH_AXIS,))
    layout = LearnerState(agent=None, acting=0)
    acting = jax.tree.map(lambda x: jnp.stack([x, x]), state.acting)
    step = jax.vmap(
        partial(spine.update, mapped),
        in_axes=(layout,),
        out_axes=(layout, None),
        axis_name=BATCH_AXIS,
    )
    return str(jax.make_jaxpr(step)(LearnerState(agent=state.agent, acting=acting)))


@pytest.mark.long
def test_branches_are_not_batched_by_update_batches() -> None:
    """A `cond` each for resets, truncated values and the stop: none became a select."""
    for name, count in (("plain", 2), ("stopping", 3)):
        phases, state = system_of(name)
        assert update_of_batches(phases.system, state).count("cond[") == count


@functools.cache
def gradients_of_noise() -> Any:
    """The gradients of a batch of noise, unclipped."""
    phases, state = system_of("plain")
    algorithm = phases.system.algorithm
    grad = jax.jit(jax.grad(partial(algorithm.loss, phases.system, state.agent), has_aux=True))
    return grad(state.agent.policy.params, random_batch(32))[0]


@pytest.mark.long
def test_one_norm_of_all_groups_is_plain_adam_of_all() -> None:
    phases, state = system_of("plain")
    gradients, agent = gradients_of_noise(), given(state, max_grad_norm=1e-2).agent
    assert float(optax.tree.norm(gradients)) > 2e-2
    plain = optax.chain(optax.clip_by_global_norm(1e-2), optax.adam(1e-3, eps=1e-5))
    updates, _ = plain.update(gradients, plain.init(agent.policy.params))
    system = dataclasses.replace(phases.system, clip_together=True)
    agent = spine.with_optimizer(system, agent)
    moved, metrics = compiled(system).gradient_step(random_batch(32), agent, jnp.arange(32))
    expected = optax.apply_updates(agent.policy.params, updates)
    np.testing.assert_allclose(flat(moved.policy.params), flat(expected), rtol=1e-5, atol=1e-8)
    norms = [metrics.norms[f"{group}_gradient_norm"] for group in ("actor", "critic")]
    clipped = [metrics.norms[f"{group}_gradient_norm_clipped"] for group in ("actor", "critic")]
    np.testing.assert_allclose(np.hypot(*clipped), 1e-2, rtol=1e-5)
    np.testing.assert_allclose(np.divide(*clipped), np.divide(*norms), rtol=1e-5)


def test_gradient_norms_before_and_after_clipping() -> None:
    phases, state = system_of("plain")
    agent = given(state, max_grad_norm=1e-3).agent
    _, metrics = phases.gradient_step(random_batch(32), agent, jnp.arange(32))
    for group in ("actor", "critic"):
        own = {k: x for k, x in gradients_of_noise().items() if k.startswith(group)}
        norm = np.sqrt(np.sum(np.square(flat(own).astype(np.float64))))
        np.testing.assert_allclose(metrics.norms[f"{group}_gradient_norm"], norm, rtol=1e-4)
        clipped = metrics.norms[f"{group}_gradient_norm_clipped"]
        np.testing.assert_allclose(clipped, 1e-3, rtol=1e-6)


@pytest.mark.long
def test_updates_without_a_gradient_step_do_not_count() -> None:
    """With `skip`, losses in the log are those of the updates that have learnt something."""
    phases, state, rollout, keys = begun("skipping")
    steps = dataclasses.replace(rollout.steps, reward=rollout.steps.reward * jnp.nan)
    (before, after), (of_good, of_none) = zip(
        *(
            (agent, phases.report(rollout, learnt))
            for each in (rollout, dataclasses.replace(rollout, steps=steps))
            for agent, learnt in (phases.learn(state.agent, each, keys),)
        ),
        strict=True,
    )
    start = flat(state.agent.policy.params)
    assert not np.array_equal(flat(before.policy.params), start)
    np.testing.assert_array_equal(flat(after.policy.params), start)
    found = of_training(add(of_good, of_none), 2)
    good = of_good.learn.steps.loss
    assert found["entropy"] == good.entropy > 0
    assert found["ratio_min"] == good.ratio_min
    assert found["advantage_std"] == of_good.learn.targets.advantage_std > 0
    assert found["explained_variance"] == of_good.learn.finish.explained_variance != 0
    assert (found["gradient_steps"], found["skipped_steps"], found["skipped_updates"]) == (4, 4, 1)
    found = of_training(of_none, 1)
    names = "entropy", "total_loss", "ratio_max", "advantage_std", "explained_variance"
    assert {found[name] for name in names} == {None}


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sums() -> None:
    phases, state = system_of("statistics")
    state = given(state, reward_clip=1.0, gamma=0.9)
    past, sums = np.zeros(4), []
    for _ in range(3):
        state, rollout = collect(phases, state)
        agent, scaled = phases.scale_rewards(state.agent, rollout)
        state, steps = dataclasses.replace(state, agent=agent), rollout.steps
        for t in range(8):
            past = np.asarray(steps.reward, np.float64)[t] + 0.9 * past
            sums.append(past)
            past = np.where(steps.terminated[t] | steps.truncated[t], 0.0, past)
        expected = np.asarray(steps.reward) / np.sqrt(np.var(sums) + 1e-8)
        assert expected.max() > 1.0
        np.testing.assert_allclose(scaled.steps.reward, np.minimum(expected, 1.0), rtol=1e-4)
        np.testing.assert_allclose(state.acting.discounted_return, past, rtol=1e-5)


@pytest.mark.parametrize("reward", [0.1, 0.0, -300.0])
def test_constant_returns_are_divided_by_their_size(reward: float) -> None:
    """They have no deviation: rounding errors would scale rewards up by a million."""
    phases, _, rollout, _ = begun("statistics")
    state = system_of("statistics")[1]
    constant = jnp.full_like(rollout.steps.reward, reward)
    steps = dataclasses.replace(rollout.steps, reward=constant, discounted_return=constant)
    _, scaled = phases.scale_rewards(state.agent, dataclasses.replace(rollout, steps=steps))
    np.testing.assert_allclose(scaled.steps.reward, np.sign(reward), rtol=1e-6)


@pytest.mark.long
def test_epochs_end_where_the_kl_passes_its_limit() -> None:
    """The first step finds KL 0 and is taken; the second sees it, and nothing moves after."""
    (plain, state, rollout, keys), stopping = begun("plain"), system_of("stopping")[0]
    state = given(state, actor_lr=0.05, decay_learning_rates=0.0, target_kl=1e-6)
    agent, batch = add_targets(plain, state.agent, rollout)
    stopped, outcomes = stopping.run_epochs(agent, rollout, batch, keys)
    assert outcomes.counted.sum() == 2
    assert outcomes.learnt.sum() == 1  # the second was looked at and moved nothing
    assert not outcomes.skipped.any()
    assert outcomes.metrics.loss.approximate_kl.max() > 0
    one, _ = plain.gradient_step(batch, agent, first_minibatch(plain.system, keys))
    learnt = [flat((x.policy.params, x.opt_state)) for x in (stopped, one)]
    np.testing.assert_allclose(*learnt, rtol=1e-5, atol=1e-7)


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    (plain, state, rollout, keys), stopping = begun("plain"), system_of("stopping")[0]
    assert (plain.system.stop_early, stopping.system.stop_early) == (False, True)
    agent, batch = add_targets(plain, given(state, target_kl=1e9).agent, rollout)
    (free, metrics), (limited, outcomes) = (
        phases.run_epochs(agent, rollout, batch, keys) for phases in (plain, stopping)
    )
    assert outcomes.learnt.sum() == 8
    same((limited.policy.params, outcomes.metrics), (free.policy.params, metrics))


@pytest.mark.long
def test_epochs_end_once_their_loss_hardly_changes() -> None:
    """By the means of the plain epochs: no step after the first two that are near enough."""
    (plain, state, rollout, keys), (settling, limits) = begun("six epochs"), system_of("settling")
    agent, batch = add_targets(plain, given(state, actor_lr=0.02).agent, rollout)
    _, metrics = plain.run_epochs(agent, rollout, batch, keys)
    changes = np.abs(np.diff(np.mean(metrics.total_loss, axis=1)))  # of 6 epochs, 5
    for least in (2 * changes.max(), np.partition(changes, 1)[1], changes.min() / 2):
        near = [i + 2 for i, change in enumerate(changes) if change < least]
        num = min([*near, 6])
        numbers = given(limits, actor_lr=0.02, min_loss_change=least).agent.hyperparameters
        limited = dataclasses.replace(agent, hyperparameters=numbers)
        found, outcomes = settling.run_epochs(limited, rollout, batch, keys)
        wanted, _ = plain.run_epochs(agent, rollout, batch, keys[:num])
        assert outcomes.learnt.sum() == outcomes.counted.sum() == num * 4
        learnt = [flat((x.policy.params, x.opt_state)) for x in (found, wanted)]
        np.testing.assert_allclose(*learnt, rtol=1e-5, atol=1e-7)


@pytest.mark.long
def test_details_are_of_the_batch_and_the_agent_after_it() -> None:
    """And what is learnt is the same, bit for bit, as without them."""
    (plain, state), (phases, _) = system_of("statistics"), system_of("detailed")
    for _ in range(2):
        state = plain.update(state)[0]
    after, found = phases.update(state)
    wanted, metrics = plain.update(state)
    same((after.agent, after.acting), (wanted.agent, wanted.acting))
    same(dataclasses.replace(found.learn, details=metrics.learn.details), metrics.learn)

    _, rollout, keys = collect_with_keys(plain, state)
    _, learnt = phases.learn(state.agent, rollout, keys)
    steps, own = learnt.batch.steps, found.learn.details.own
    _, output = phases.unroll(learnt.agent.policy, learnt.batch.carry, steps.obs, steps.reset)
    of_values = learnt.agent.algorithm_state.value_statistics
    change = np.abs(output.value.mean() - steps.raw_value) * np.sqrt(of_values.variance + 1e-4)
    ratio = np.exp(output.distribution.log_prob(steps.action) - steps.log_prob)
    moments = max(float(jnp.max(x)) for x in second_moments(learnt.agent.opt_state))
    numbers = {
        "value_mean": np.mean(steps.value),
        "value_change": np.mean(change),
        "value_change_max": np.max(change),
        "target_mean": np.mean(steps.target),
        "target_std": np.std(steps.target),
        "advantage_min": np.min(steps.advantage),
        "advantage_max": np.max(steps.advantage),
        "ratio_change": np.mean(np.abs(1.0 - ratio)),
        "logit_max": np.max(np.abs(output.distribution.logits)),
    }
    for name, number in numbers.items():
        np.testing.assert_allclose(getattr(own, name), number, rtol=1e-3, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found.learn.details.second_moment_max, moments, rtol=1e-5)
    for name in ("advantage", "value", "target"):
        expected = np.histogram(getattr(steps, name), edges())[0]
        np.testing.assert_array_equal(getattr(own, f"{name}_histogram"), expected)


def second_moments(opt_state: Any) -> list[jax.Array]:
    """Those of Adam, in the optimiser of each group."""
    groups = opt_state.inner_states.values()
    adams = [x for group in groups for x in group.inner_state if hasattr(x, "nu")]
    assert len(adams) == 2
    return jax.tree.leaves([adam.nu for adam in adams])


@pytest.mark.long
def test_a_run_that_only_watches_learns_nothing() -> None:
    """Its rollout is that of training, and its statistics move as there."""
    (learning, state), watching = system_of("statistics"), system_of("watching")[0]
    learnt, found = learning.update(state)
    watched, seen = watching.update(state)
    same(watched.agent.policy.params, state.agent.policy.params)
    same(watched.agent.opt_state, state.agent.opt_state)
    same(watched.acting.obs, learnt.acting.obs)
    same(watched.agent.policy.obs_statistics, learnt.agent.policy.obs_statistics)
    same(seen.rollout, found.rollout)
    assert watched.agent.update == 1
    event = of_training(jax.device_get(seen), 1)
    assert event["actor_loss"] is None
    assert event["gradient_steps"] == 0


@pytest.mark.long
def test_what_others_go_on_for_changes_nothing_of_what_has_stopped() -> None:
    """Of two members one has stopped: it stays so, whatever the KL of later minibatches."""
    (plain, state, rollout, keys), stopping = begun("plain"), system_of("stopping")[0]
    state = given(state, actor_lr=0.05, target_kl=1e9)
    agent, batch = add_targets(plain, state.agent, rollout)
    order, system = first_minibatch(stopping.system, keys), stopping.system
    stopped = jnp.array([True, False])
    (after, stop), outcome = jax.jit(
        jax.vmap(lambda stopped: until_stopped(system, batch, (agent, stopped), order))
    )(stopped)
    np.testing.assert_array_equal(stop, stopped)
    np.testing.assert_array_equal(outcome.counted, ~stopped)
    np.testing.assert_array_equal(outcome.learnt, ~stopped)
    assert not outcome.skipped.any()
    np.testing.assert_array_equal(outcome.metrics.loss.entropy == 0.0, stopped)
    for member in range(2):
        learnt = jax.tree.map(lambda x, i=member: x[i], (after.policy.params, after.opt_state))
        before = (agent.policy.params, agent.opt_state)
        assert np.array_equal(flat(learnt), flat(before)) == stopped[member]


def until_stopped(system: System, batch: Batch, progress: Any, indices: jax.Array) -> Any:
    """A step as `guards.until_stopped` makes it, from any progress."""

    def one(step: Any, refresh: Any, _: Any) -> Any:
        return (progress, None), step(batch, progress, indices)

    scan = guards.until_stopped(system, one, report.no_step(system))
    return scan(make_step(system), keep_batch, progress[0])[1]


def first_minibatch(system: System, keys: jax.Array) -> jax.Array:
    return random_permutation(keys[0], 32)[: 32 // system.num_minibatches]


@pytest.mark.long
def test_noise_is_that_of_acting_and_new_every_update(small: Any) -> None:
    noisy = {"_target_": "jaxppo.networks.torsos.NoisyMLP", "layer_sizes": [16]}
    system, state = small(network__actor_torso=noisy)
    phases = compiled(system)
    state, rollout = collect(phases, state)
    agent, batch = add_targets(phases, state.agent, rollout)
    assert phases.loss(agent, agent.policy.params, batch)[1].approximate_kl < 1e-9
    after = spine.end_update(system, agent, agent, rollout)
    policies = agent.policy, after.policy, dataclasses.replace(agent.policy, noise_key=None)
    found = [
        phases.unroll(policy, (), rollout.steps.obs, rollout.steps.reset)[1].distribution.logits
        for policy in policies
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not np.allclose(found[one], found[other], atol=1e-4)


@pytest.mark.long
def test_ratios_are_one_and_values_near_in_bfloat16(small: Any) -> None:
    system, state = small(arch__precision="bf16", system__normalize_observations=True)
    phases = compiled(system)
    state, rollout = collect(phases, state)
    agent, batch = add_targets(phases, state.agent, rollout)
    loss, metrics = phases.loss(agent, agent.policy.params, batch)
    assert loss.dtype == jnp.float32
    assert metrics.approximate_kl < 1e-5
    seen = agent.policy, (), rollout.steps.obs, rollout.steps.reset
    full = small(system__normalize_observations=True)[0]
    value, exact = (each.unroll(*seen)[1].value.mean() for each in (phases, compiled(full)))
    assert not np.array_equal(exact, value)
    np.testing.assert_allclose(exact, value, atol=0.05)


@pytest.mark.long
def test_a_mask_without_a_legal_action_is_counted(small: Any) -> None:
    system, state = small(env={"target": "envs.Masked", "params": {"empty": True}})
    phases = compiled(system)
    state, rollout = collect(phases, state)
    assert report.of_rollout(system, rollout).empty_mask > 0
    agent, batch = add_targets(phases, state.agent, rollout)
    assert np.isfinite(phases.loss(agent, agent.policy.params, batch)[0])
