"""Collecting and learning, whatever the algorithm: against oracles and invariants."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import NETWORK, build, small_config
from phases import (
    add_targets,
    collect,
    collect_with_keys,
    compiled,
    flat,
    random_batch,
    rollout_after,
    with_hyperparameters,
)

from jaxppo.algorithms import guards, report, spine
from jaxppo.algorithms.acting import state_values
from jaxppo.algorithms.gradient_steps import gradient_step, make_step, select
from jaxppo.algorithms.memory import keep_batch
from jaxppo.algorithms.metrics import add, over_axes
from jaxppo.kernels.permutations import random_permutation
from jaxppo.ops.collectives import BATCH_AXIS
from jaxppo.runtime.hosts.devices import parallel
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run.events import of_training
from jaxppo.types import Batch, LearnerState, System

NORMALIZED = {"system__normalize_observations": True}
STATISTICS = ("normalize_observations", "normalize_values", "normalize_rewards")
GRU = {"_target_": "jaxppo.networks.memory.Recurrent", "cell": "gru", "size": 8}


@pytest.mark.parametrize("terminates", [False, True])
def test_rollout_says_where_episodes_open_and_how_they_end(small: Any, terminates: bool) -> None:
    system, state = small(env__params={"terminates": terminates})
    after, rollout = compiled(system).collect(state.agent, state.acting)
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


def test_running_episodes_are_counted_once_and_across_rollouts(small: Any) -> None:
    system, state = small(env__params={"max_steps_in_episode": 6})
    totals, acting = np.zeros(3), state.acting
    phases = compiled(system)
    for _ in range(6):  # 48 steps: 8 episodes of 6 steps and return 21 in each environment
        acting, rollout = phases.collect(state.agent, acting)
        totals += jax.tree.leaves(rollout.ended)
    np.testing.assert_array_equal(totals, [4 * 8, 4 * 8 * 21, 4 * 8 * 6])


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"system": dict.fromkeys(STATISTICS, True)},
        {
            "network": {**NETWORK, "actor_memory": GRU, "critic_memory": GRU},
            "system": {"sequence_length": 4, "burn_in": 1, "recompute_carries": True},
        },
    ],
    ids=["plain", "statistics", "memory"],
)
def test_an_update_is_to_collect_and_to_learn(small: Any, changes: dict[str, Any]) -> None:
    """`learn` is a program of its own, which a rollout of NumPy arrays from elsewhere suits."""
    system, state = small(**changes)
    phases = compiled(system)
    updated, metrics = phases.update(state)
    collected, rollout, keys = collect_with_keys(phases, state)
    alone = compiled(dataclasses.replace(system, env=None))  # there is nothing to step
    agent, learnt = alone.learn(state.agent, rollout, keys)
    told = alone.report(rollout, learnt)
    same((agent, collected.acting, told), (updated.agent, updated.acting, metrics))
    elsewhere = jax.tree.map(np.asarray, rollout)
    again = alone.learn(state.agent, elsewhere, keys)
    for one, other in zip(*map(jax.tree.leaves, ((agent, learnt), again)), strict=True):
        np.testing.assert_array_equal(key_data(one), key_data(other))


def key_data(x: Any) -> np.ndarray:
    """Numbers, those of a key too."""
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def same(one: Any, other: Any) -> None:
    """Equal but for how two programs round."""
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(key_data(a), key_data(b), rtol=1e-5, atol=1e-6)


def test_an_update_learns_with_the_statistics_it_acted_with(small: Any) -> None:
    """Of one gradient step an update, the losses are those of the acting policy: the ratio is 1."""
    system, state = small(system={"epochs": 1, "num_minibatches": 1}, **NORMALIZED)
    phases = compiled(system)
    for _ in range(4):
        state, metrics = phases.update(state)
        assert metrics.learn.steps.loss.approximate_kl < 1e-9
        assert metrics.learn.steps.loss.clip_fraction == 0


def test_statistics_move_once_an_update_over_every_observation(small: Any) -> None:
    system, state = small(**NORMALIZED)
    phases = compiled(system)
    seen = []
    for count in range(1, 4):
        before = state.agent.policy.obs_statistics
        middle, rollout, keys = collect_with_keys(phases, state)
        agent, batch = add_targets(phases, middle.agent, rollout)
        trained, _ = phases.run_epochs(agent, rollout, batch, keys)
        for one, other in zip(
            jax.tree.leaves(before), jax.tree.leaves(trained.policy.obs_statistics), strict=True
        ):
            np.testing.assert_array_equal(one, other)
        agent = phases.update_obs_statistics(trained, rollout)
        state = dataclasses.replace(middle, agent=agent)
        seen.append(np.asarray(rollout.steps.obs).reshape(-1, 2))
        statistics = agent.policy.obs_statistics
        assert statistics.count == 32 * count
        everything = np.concatenate(seen).astype(np.float64)
        np.testing.assert_allclose(statistics.mean, everything.mean(0), rtol=1e-5)
        np.testing.assert_allclose(statistics.variance, everything.var(0), rtol=1e-4)


def test_every_transition_lands_in_exactly_one_minibatch(small: Any) -> None:
    system, _ = small()
    keys = jax.random.split(jax.random.key(0), 3)
    step = lambda batch, carry, indices: (carry, indices)  # noqa: E731
    _, orders = spine.scan_epochs(system, random_batch(32), keys, step, keep_batch, ())
    for order in orders:
        assert order.shape == (4, 8)
        np.testing.assert_array_equal(np.sort(order.ravel()), np.arange(32))
    assert not np.array_equal(orders[0], orders[1])


def test_select_takes_whole_transitions() -> None:
    batch = random_batch(32)
    chosen = select((), (), batch, jnp.array([5, 30]))
    for part, whole in zip(jax.tree.leaves(chosen), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(part, np.asarray(whole)[:, [5, 30]])


@pytest.mark.long
@pytest.mark.parametrize("num_batches, standardized", [(2, "batch"), (4, "minibatch")])
def test_split_over_update_batches_gives_the_same_step(
    small: Any, num_batches: int, standardized: str
) -> None:
    system, state = small(system__standardize_advantages=standardized)
    batch = random_batch(32)
    whole, metrics = compiled(system).gradient_step(batch, state.agent, jnp.arange(32))
    split = jax.tree.map(
        lambda x: x.reshape(1, num_batches, -1, *x.shape[2:]).swapaxes(0, 1), batch
    )
    mapped = dataclasses.replace(system, axes=(BATCH_AXIS,))

    def step(*args: Any) -> Any:
        agent, found = gradient_step(mapped, *args)
        return agent, dataclasses.replace(found, loss=over_axes(mapped.axes, found.loss))

    parts, split_metrics = jax.jit(
        jax.vmap(step, in_axes=(0, None, None), out_axes=None, axis_name=BATCH_AXIS)
    )(split, state.agent, jnp.arange(32 // num_batches))
    learnt, learnt_apart = (
        jax.tree.leaves((agent.policy.params, agent.opt_state, of))
        for agent, of in ((whole, metrics), (parts, split_metrics))
    )
    for one, other in zip(learnt, learnt_apart, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_update_batches_act_apart_and_share_parameters() -> None:
    built, state, plan = build(
        small_config(
            arch={"total_num_envs": 8, "update_batch_size": 2},
            env__target="envs.Copy",
            system=dict.fromkeys(STATISTICS, True),
        )
    )
    layout = Layout(plan, built, (0,))
    train = parallel(partial(spine.train_members, built), 1)
    after, metrics = train(state, layout.no_metrics(), layout.place_count(2))
    assert jax.tree.leaves(after.agent.policy.params)[0].ndim == 2 + 1  # [D, P, ...]: no U
    keys = jax.random.key_data(after.acting.key)
    assert not np.array_equal(keys[0, 0, 0], keys[0, 0, 1])
    assert not np.array_equal(after.acting.obs[0, 0, 0], after.acting.obs[0, 0, 1])
    # Every step of both update batches, twice
    assert metrics.rollout.num_episodes[0, 0] == 2 * 8 * 8
    for statistics in (after.agent.policy.obs_statistics, after.agent.reward_statistics):
        assert statistics.count[0, 0] == 2 * 8 * 8


def test_whatever_draws_moves_the_random_stream_on(small: Any) -> None:
    system, state = small()
    phases = compiled(system)
    keys = [state.acting.key]
    for _ in range(2):
        acting, _ = phases.collect(state.agent, state.acting)
        _, _, of_epochs = collect_with_keys(phases, state)
        state, _ = phases.update(state)
        keys += [acting.key, *of_epochs, state.acting.key]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == len(keys)


@pytest.mark.long
def test_same_seed_same_bits_and_another_seed_others() -> None:
    def trained(seed: int) -> list[np.ndarray]:
        built, state, plan = build(small_config(arch__seed=seed))
        layout = Layout(plan, built, (0,))
        train = parallel(partial(spine.train_members, built), 1)
        state, _ = train(state, layout.no_metrics(), layout.place_count(2))
        return [np.asarray(x) for x in jax.tree.leaves(state.agent.policy.params)]

    first, again, other = trained(1), trained(1), trained(2)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize(
    "name, value",
    [("gamma", 0.5), ("clip_eps", 1e-4), ("ent_coef", 0.5), ("vf_coef", 5.0), ("actor_lr", 0.01),
     ("critic_lr", 0.01), ("gae_lambda", 0.1), ("max_grad_norm", 1e-3), ("reward_scale", 0.1),
     ("decay_learning_rates", 0.0)],
)  # fmt: skip
def test_hyperparameters_are_data(compiled_block: Any, name: str, value: float) -> None:
    """Each changes what is learnt, and none compiles anything."""
    train, state, total, counts, (baseline, _), compilations = compiled_block
    before = len(compilations)
    agent = with_hyperparameters(state.agent, **{name: jnp.full((1, 1), value, jnp.float32)})
    changed, _ = train(dataclasses.replace(state, agent=agent), total, counts(3))
    params = jax.device_get(jax.tree.leaves(changed.agent.policy.params))
    assert len(compilations) == before
    assert any(not np.array_equal(a, b) for a, b in zip(params, baseline, strict=True))


@pytest.fixture(scope="module")
def compiled_block() -> Any:
    built, state, plan = build(small_config())
    layout = Layout(plan, built, (0,))
    total, three = layout.no_metrics(), layout.place_count(3)
    train = parallel(partial(spine.train_members, built), 1).lower(state, total, three).compile()
    after, metrics = train(state, total, three)
    baseline = jax.device_get((jax.tree.leaves(after.agent.policy.params), metrics))
    jax.block_until_ready(jnp.full((1, 1), 0.5, jnp.float32))
    compilations: list[str] = []

    def listen(event: str, duration: float, **kwargs: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield train, state, total, layout.place_count, baseline, compilations
    jax.monitoring.clear_event_listeners()


def test_compilations_are_noticed(compiled_block: Any) -> None:
    compilations = compiled_block[-1]
    before = len(compilations)
    jax.block_until_ready(jax.jit(lambda x: x * 3.25 + 1)(jnp.ones(17)))
    assert len(compilations) > before


def test_a_block_in_several_calls_is_the_block_in_one(compiled_block: Any) -> None:
    """Bit for bit, its metrics too, and without compiling anything."""
    train, state, total, counts, (params, metrics), compilations = compiled_block
    before = len(compilations)
    state, total = train(*train(state, total, counts(1)), counts(2))
    assert len(compilations) == before
    assert state.agent.update[0] == 3
    found = (jax.tree.leaves(state.agent.policy.params), total)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves((params, metrics)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_episode_returns_are_reported_unscaled(small: Any) -> None:
    system, state = small(system__reward_scale=0.01)
    _, metrics = compiled(system).update(state)
    assert metrics.rollout.episode_return == 60


def test_learning_rate_falls_to_its_last_share(small: Any) -> None:
    system, state = small(arch__num_updates=4, system__actor_lr=1.0)
    rates = []
    phases = compiled(system)
    for _ in range(4):
        state, metrics = phases.update(state)
        rates.append(float(metrics.learn.learning_rate))
    np.testing.assert_allclose(rates, [1.0, 0.75, 0.5, 0.25])


@pytest.mark.parametrize("poison", ["reward", "obs"])
def test_nonfinite_numbers_are_counted(small: Any, poison: str) -> None:
    system, state = small()
    env = system.env
    bad = float("nan") if poison == "obs" else float("inf")

    class Poisoned:
        def __getattr__(self, name: str) -> Any:
            return getattr(env, name)

        def step(self, *args: Any) -> Any:
            env_state, step = env.step(*args)
            replaced = jax.tree.map(lambda x: jnp.full_like(x, bad), getattr(step, poison))
            return env_state, dataclasses.replace(step, **{poison: replaced})

    system = dataclasses.replace(system, env=Poisoned())
    _, metrics = compiled(system).update(state)
    assert (metrics.rollout.nonfinite_reward > 0) == (poison == "reward")
    assert (metrics.rollout.nonfinite_observation > 0) == (poison == "obs")
    assert metrics.learn.nonfinite_loss > 0


def test_values_of_truncated_successors_cost_nothing_where_none_is(small: Any) -> None:
    """The branch is a real one: its critic pass stays out of the unconditional program."""
    system, state = small()
    _, rollout = collect(compiled(system), state)
    values = partial(state_values, system, value=lambda output: output.value.mean())
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


def test_branches_are_not_batched_by_update_batches(small: Any) -> None:
    """A `cond` each for resets, truncated values and the stop: none became a select."""
    counts = []
    for limit in (float("inf"), 0.01):
        system, state = small(system__target_kl=limit)
        counts.append(update_of_batches(system, state).count("cond["))
    assert counts == [2, 3]


def test_one_norm_of_all_groups_is_plain_adam_of_all(small: Any) -> None:
    system, state = small(system__max_grad_norm=1e-2, system__clip_together=True)
    batch, agent = random_batch(32), state.agent
    grad = jax.jit(jax.grad(partial(system.algorithm.loss, system, agent), has_aux=True))
    gradients, _ = grad(agent.policy.params, batch)
    whole = float(optax.tree.norm(gradients))
    assert whole > 2e-2
    plain = optax.chain(optax.clip_by_global_norm(1e-2), optax.adam(1e-3, eps=1e-5))
    updates, _ = plain.update(gradients, plain.init(agent.policy.params))
    moved, metrics = compiled(system).gradient_step(batch, agent, jnp.arange(32))
    expected = optax.apply_updates(agent.policy.params, updates)
    pairs = zip(jax.tree.leaves(moved.policy.params), jax.tree.leaves(expected), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-8)
    norms = [metrics.norms[f"{group}_gradient_norm"] for group in ("actor", "critic")]
    clipped = [metrics.norms[f"{group}_gradient_norm_clipped"] for group in ("actor", "critic")]
    np.testing.assert_allclose(np.hypot(*clipped), 1e-2, rtol=1e-5)
    np.testing.assert_allclose(np.divide(*clipped), np.divide(*norms), rtol=1e-5)


def test_gradient_norms_before_and_after_clipping(small: Any) -> None:
    system, state = small(system__max_grad_norm=1e-3)
    batch = random_batch(32)
    grad = jax.jit(jax.grad(partial(system.algorithm.loss, system, state.agent), has_aux=True))
    gradients, _ = grad(state.agent.policy.params, batch)
    _, metrics = compiled(system).gradient_step(batch, state.agent, jnp.arange(32))
    for group in ("actor", "critic"):
        leaves = jax.tree.leaves({k: x for k, x in gradients.items() if k.startswith(group)})
        norm = np.sqrt(sum(np.sum(np.square(np.asarray(x, np.float64))) for x in leaves))
        np.testing.assert_allclose(metrics.norms[f"{group}_gradient_norm"], norm, rtol=1e-4)
        clipped = metrics.norms[f"{group}_gradient_norm_clipped"]
        np.testing.assert_allclose(clipped, 1e-3, rtol=1e-6)


def test_an_update_reports_its_diagnostics_and_moves_all_statistics(small: Any) -> None:
    system, state = small(system=dict.fromkeys(STATISTICS, True))
    state, metrics = compiled(system).update(state)
    norm = np.sqrt(np.sum(np.square(flat(state.agent.policy.params))))
    np.testing.assert_allclose(metrics.learn.parameter_norm, norm, rtol=1e-5)
    assert metrics.learn.gradient_steps == 2 * 4
    assert metrics.learn.targets.advantage_std > 0
    assert metrics.learn.steps.loss.ratio_min < 1 < metrics.learn.steps.loss.ratio_max
    assert metrics.rollout.empty_mask == 0
    agent = state.agent
    statistics = (
        agent.policy.obs_statistics,
        agent.algorithm_state.value_statistics,
        agent.reward_statistics,
    )
    assert [x.count for x in statistics] == [32, 32, 32]


def test_extremes_of_a_block_are_its_own(small: Any) -> None:
    system, state = small()
    update = compiled(system).update
    extremes = []
    total = report.zero_metrics(system)
    for _ in range(3):
        state, metrics = update(state)
        loss = metrics.learn.steps.loss
        extremes.append((loss.ratio_min, loss.ratio_max))
        total = add(total, metrics)
    assert total.learn.steps.loss.ratio_min == min(low for low, _ in extremes)
    assert total.learn.steps.loss.ratio_max == max(high for _, high in extremes)
    assert total.learn.gradient_steps == 3 * 8


def test_updates_without_a_gradient_step_do_not_count(small: Any) -> None:
    """With `skip`, losses in the log are those of the updates that have learnt something."""
    system, state = small(arch__on_nonfinite="skip")
    phases = compiled(system)
    state, rollout, keys = collect_with_keys(phases, state)
    steps = dataclasses.replace(rollout.steps, reward=rollout.steps.reward * jnp.nan)
    of_good, of_none = (
        phases.report(rollout, phases.learn(state.agent, each, keys)[1])
        for each in (rollout, dataclasses.replace(rollout, steps=steps))
    )
    found = of_training(add(of_good, of_none), 2)
    good = of_good.learn.steps.loss
    assert found["entropy"] == good.entropy > 0
    assert found["ratio_min"] == good.ratio_min
    assert (found["gradient_steps"], found["skipped_steps"], found["skipped_updates"]) == (4, 4, 1)
    found = of_training(of_none, 1)
    assert {found[name] for name in ("entropy", "total_loss", "ratio_max")} == {None}


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sums(small: Any) -> None:
    system, state = small(system={"normalize_rewards": True, "reward_clip": 1.0, "gamma": 0.9})
    phases = compiled(system)
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
def test_constant_returns_are_divided_by_their_size(small: Any, reward: float) -> None:
    """They have no deviation: rounding errors would scale rewards up by a million."""
    system, state = small(system={"normalize_rewards": True})
    phases = compiled(system)
    state, rollout = collect(phases, state)
    given = jnp.full_like(rollout.steps.reward, reward)
    steps = dataclasses.replace(rollout.steps, reward=given, discounted_return=given)
    _, scaled = phases.scale_rewards(state.agent, dataclasses.replace(rollout, steps=steps))
    np.testing.assert_allclose(scaled.steps.reward, np.sign(reward), rtol=1e-6)


@pytest.mark.long
def test_epochs_end_where_the_kl_passes_its_limit(small: Any) -> None:
    """The first step finds KL 0 and is taken; the second sees it, and nothing moves after."""
    fast = {"actor_lr": 0.05, "decay_learning_rates": False}
    stopping, state = small(system={**fast, "target_kl": 1e-6})
    phases = compiled(stopping)
    start, rollout, keys = collect_with_keys(phases, state)
    agent, batch = add_targets(phases, start.agent, rollout)
    stopped, outcomes = phases.run_epochs(agent, rollout, batch, keys)
    assert outcomes.counted.sum() == 2
    assert outcomes.learnt.sum() == 1  # the second was looked at and moved nothing
    assert not outcomes.skipped.any()
    assert outcomes.metrics.loss.approximate_kl.max() > 0
    free, _ = small(system=fast)
    one, _ = compiled(free).gradient_step(batch, agent, first_minibatch(free, keys))
    for a, b in zip(
        jax.tree.leaves((stopped.policy.params, stopped.opt_state)),
        jax.tree.leaves((one.policy.params, one.opt_state)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_what_others_go_on_for_changes_nothing_of_what_has_stopped(small: Any) -> None:
    """Of two members one has stopped: it stays so, whatever the KL of later minibatches."""
    system, state = small(system={"target_kl": 1e9, "actor_lr": 0.05})
    phases = compiled(system)
    start, rollout, keys = collect_with_keys(phases, state)
    agent, batch = add_targets(phases, start.agent, rollout)
    order = first_minibatch(system, keys)
    stopped = jnp.array([True, False])
    (after, stop), outcome = jax.jit(
        jax.vmap(lambda stopped: until_stopped(system, batch, (agent, stopped), order))
    )(stopped)
    metrics = outcome.metrics
    np.testing.assert_array_equal(stop, stopped)
    np.testing.assert_array_equal(outcome.counted, ~stopped)
    np.testing.assert_array_equal(outcome.learnt, ~stopped)
    assert not outcome.skipped.any()
    np.testing.assert_array_equal(metrics.loss.entropy == 0.0, stopped)
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
def test_a_limit_that_is_not_reached_changes_nothing(small: Any) -> None:
    trained = []
    for limit in (float("inf"), 1e9):
        system, state = small(system__target_kl=limit)
        assert system.stop_early == (limit == 1e9)
        state, metrics = compiled(system).update(state)
        assert metrics.learn.gradient_steps == 8
        trained.append(jax.tree.leaves((state.agent.policy.params, metrics)))
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_noise_is_that_of_acting_and_new_every_update(small: Any) -> None:
    noisy = {"_target_": "jaxppo.networks.torsos.NoisyMLP", "layer_sizes": [16]}
    system, state = small(network__actor_torso=noisy)
    phases = compiled(system)
    keys = []
    for _ in range(2):
        state, rollout, batch = rollout_after(phases, state, 1)
        _, losses = phases.loss(state.agent, state.agent.policy.params, batch)
        assert losses.approximate_kl < 1e-9
        keys.append(jax.random.key_data(state.agent.policy.noise_key))
    assert not np.array_equal(*keys)
    quiet = dataclasses.replace(state.agent.policy, noise_key=None)
    with_noise, without = (
        phases.unroll(policy, (), rollout.steps.obs, rollout.steps.reset)[1].distribution.logits
        for policy in (state.agent.policy, quiet)
    )
    assert not np.allclose(with_noise, without, atol=1e-4)


@pytest.mark.long
def test_bfloat16_is_of_torsos_alone(small: Any) -> None:
    system, state = small(arch__precision="bf16", **NORMALIZED)
    phases = compiled(system)
    assert {x.dtype.name for x in jax.tree.leaves(state.agent.policy.params)} == {"float32"}
    jaxpr = str(jax.make_jaxpr(partial(spine.update, system))(state))
    assert "bf16" in jaxpr
    state, metrics = phases.update(state)
    assert {x.dtype.name for x in jax.tree.leaves(state.agent.policy.params)} == {"float32"}
    assert metrics.learn.steps.total_loss.dtype == jnp.float32
    state, rollout, batch = rollout_after(phases, state, 1)
    seen = rollout.steps.obs, rollout.steps.reset
    _, output = phases.unroll(state.agent.policy, (), *seen)
    value = output.value.mean()
    assert {output.distribution.logits.dtype.name, value.dtype.name} == {"float32"}
    _, losses = phases.loss(state.agent, state.agent.policy.params, batch)
    assert losses.approximate_kl < 1e-5
    full, _ = small(**NORMALIZED)
    exact = compiled(full).unroll(state.agent.policy, (), *seen)[1].value.mean()
    assert not np.array_equal(exact, value)
    np.testing.assert_allclose(exact, value, atol=0.05)
    assert "bf16" not in str(jax.make_jaxpr(partial(spine.update, full))(state))


@pytest.mark.long
def test_a_mask_without_a_legal_action_is_counted(small: Any) -> None:
    for empty in (False, True):
        system, state = small(env={"target": "envs.Masked", "params": {"empty": empty}})
        _, metrics = compiled(system).update(state)
        assert (metrics.rollout.empty_mask > 0) == empty
        assert np.isfinite(metrics.learn.steps.total_loss)
