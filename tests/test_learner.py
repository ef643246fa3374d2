"""The phases of an iteration, against oracles and invariants."""

import dataclasses
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from conftest import build, small_config

from jaxppo.algorithms import learner
from jaxppo.algorithms.objectives import clip_objective
from jaxppo.ops.distributions import categorical
from jaxppo.runtime.build import no_metrics
from jaxppo.runtime.devices import parallel, replicate
from jaxppo.types import Batch, LearnerState, System

NORMALIZED = {"system__normalize_observations": True}


def compiled(system: System) -> Any:
    """The learner's phases for one system, each compiled at its first call."""
    names = ("collect", "scale_rewards", "add_targets", "observe_targets", "run_epochs")
    names += ("observe", "update", "unroll", "loss", "run_epoch", "gradient_step")
    return SimpleNamespace(**{n: jax.jit(partial(getattr(learner, n), system)) for n in names})


def rollout_after(phases: Any, state: LearnerState, num_updates: int) -> Any:
    """A fresh rollout and its batch, of an agent that has learnt for some updates."""
    for _ in range(num_updates):
        state, _ = phases.update(state)
    state, rollout, _ = phases.collect(state)
    state, scaled = phases.scale_rewards(state, rollout)
    return state, rollout, phases.add_targets(state, scaled)[0]


@pytest.mark.parametrize("terminates", [False, True])
def test_rollout_says_where_episodes_open_and_how_they_end(small: Any, terminates: bool) -> None:
    system, state = small(env__params={"terminates": terminates})
    after, rollout, metrics = compiled(system).collect(state)
    time = np.arange(8) % 5
    np.testing.assert_array_equal(rollout.obs[..., 0], np.tile(time[:, None], (1, 4)))
    np.testing.assert_array_equal(rollout.reset, np.tile(time[:, None] == 0, (1, 4)))
    np.testing.assert_array_equal(rollout.reward, np.tile(time[:, None] + 1.0, (1, 4)))
    np.testing.assert_array_equal(rollout.truncated, np.tile(time[:, None] == 4, (1, 4)))
    np.testing.assert_array_equal(rollout.terminated, rollout.truncated & terminates)
    # The true successor continues the same episode; only the next observation is of a new one.
    np.testing.assert_array_equal(rollout.final_observation[..., 0], rollout.obs[..., 0] + 1)
    np.testing.assert_array_equal(rollout.final_observation[..., 1], rollout.obs[..., 1])
    assert not np.any(rollout.obs[5, :, 1] == rollout.obs[4, :, 1])
    np.testing.assert_array_equal(after.acting.obs[:, 0], 3.0)
    assert (metrics.num_episodes, metrics.episode_return, metrics.episode_length) == (4, 60, 20)


def test_running_episodes_are_counted_once_and_across_rollouts(small: Any) -> None:
    system, state = small(env__params={"max_steps_in_episode": 6})
    totals = np.zeros(3)
    collect = compiled(system).collect
    for _ in range(6):  # 48 steps: 8 episodes of 6 steps and return 21 in each environment
        state, _, metrics = collect(state)
        totals += [metrics.num_episodes, metrics.episode_return, metrics.episode_length]
    np.testing.assert_array_equal(totals, [4 * 8, 4 * 8 * 21, 4 * 8 * 6])


@pytest.mark.parametrize("terminates", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_targets_equal_an_oracle_on_true_successors(
    small: Any, terminates: bool, normalize: bool
) -> None:
    system, state = small(
        env__params={"terminates": terminates},
        system={"normalize_observations": normalize, "standardize_advantages": "none"},
        system__reward_scale=0.1,
    )
    phases = compiled(system)
    state, rollout, batch = rollout_after(phases, state, 3)

    def values(obs: jax.Array) -> np.ndarray:
        reset = jnp.zeros(obs.shape[:2], bool)
        return np.asarray(phases.unroll(state.agent.policy, (), obs, reset)[2].mean())

    advantage, target = oracles.gae(
        np.asarray(rollout.reward) * 0.1,
        values(rollout.obs),
        values(rollout.final_observation),
        np.asarray(rollout.terminated),
        np.asarray(rollout.truncated),
        gamma=0.99,
        gae_lambda=0.95,
    )
    np.testing.assert_allclose(batch.advantage.reshape(8, 4), advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.target.reshape(8, 4), target, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_first_minibatch_ratio_is_one_after_several_updates(small: Any, normalize: bool) -> None:
    system, state = small(system__normalize_observations=normalize)
    phases = compiled(system)
    state, _, batch = rollout_after(phases, state, 4)
    _, losses = phases.loss(state.agent, state.agent.policy.params, batch)
    assert losses.approximate_kl < 1e-9
    assert losses.clip_fraction == 0
    np.testing.assert_allclose(losses.actor_loss, -np.mean(batch.advantage), atol=1e-6)


def test_an_update_learns_with_the_statistics_it_acted_with(small: Any) -> None:
    """Of one gradient step an update, the losses are those of the acting policy: the ratio is 1."""
    system, state = small(system={"epochs": 1, "num_minibatches": 1}, **NORMALIZED)
    phases = compiled(system)
    for _ in range(4):
        state, metrics = phases.update(state)
        assert metrics.losses.approximate_kl < 1e-9
        assert metrics.losses.clip_fraction == 0


def test_statistics_move_once_an_iteration_over_every_observation(small: Any) -> None:
    system, state = small(**NORMALIZED)
    phases = compiled(system)
    seen = []
    for count in range(1, 4):
        before = state.agent.policy.obs_statistics
        middle, rollout, _ = phases.collect(state)
        batch, _ = phases.add_targets(middle, rollout)
        trained, *_ = phases.run_epochs(middle, rollout, batch)
        for one, other in zip(
            jax.tree.leaves(before),
            jax.tree.leaves(trained.agent.policy.obs_statistics),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)
        state = phases.observe(trained, rollout)
        seen.append(np.asarray(rollout.obs).reshape(-1, 2))
        statistics = state.agent.policy.obs_statistics
        assert statistics.count == 32 * count
        everything = np.concatenate(seen).astype(np.float64)
        np.testing.assert_allclose(statistics.mean, everything.mean(0), rtol=1e-5)
        np.testing.assert_allclose(statistics.variance, everything.var(0), rtol=1e-4)


def test_every_transition_lands_in_exactly_one_minibatch(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, state = small()
    monkeypatch.setattr(learner, "gradient_step", lambda system, batch, agent, i: (agent, i))
    batch, phases = random_batch(32), compiled(system)
    progress = (state.agent, jnp.zeros((), bool))
    orders = [
        np.asarray(phases.run_epoch(state, (), batch, progress, jax.random.key(seed))[1][0])
        for seed in range(3)
    ]
    for order in orders:
        assert order.shape == (4, 8)
        np.testing.assert_array_equal(np.sort(order.ravel()), np.arange(32))
    assert not np.array_equal(orders[0], orders[1])


def test_select_takes_whole_transitions() -> None:
    batch = random_batch(32)
    chosen = learner.select(batch, jnp.array([5, 30]))
    for part, whole in zip(jax.tree.leaves(chosen), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(part, np.asarray(whole)[:, [5, 30]])


def random_batch(num: int, seed: int = 0) -> Batch:
    draw = np.random.default_rng(seed).normal
    rows = lambda *shape: jnp.asarray(draw(size=(1, num, *shape)), jnp.float32)  # noqa: E731
    return Batch(
        obs=rows(2),
        reset=jnp.zeros((1, num), bool),
        carry=(),
        action=jnp.asarray(np.arange(num)[None] % 2, jnp.int32),
        log_prob=-0.7 + 0.3 * rows(),
        distribution=(),
        value=rows(),
        critic_value=rows(),
        advantage=rows(),
        target=rows(),
    )


@pytest.mark.parametrize("clip_value_loss", [False, True])
def test_loss_is_the_sum_of_its_parts_from_the_oracle(small: Any, clip_value_loss: bool) -> None:
    system, state = small(
        system__clip_value_loss=clip_value_loss, system__ent_coef=0.05, system__vf_coef=0.7
    )
    batch = random_batch(64)
    phases = compiled(system)
    total, losses = phases.loss(state.agent, state.agent.policy.params, batch)
    _, policy, value = phases.unroll(state.agent.policy, (), batch.obs, batch.reset)
    logits = np.asarray(policy.logits, np.float64)[0]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = log_probs[np.arange(64), np.asarray(batch.action)[0]]
    ratio = np.exp(chosen - np.asarray(batch.log_prob, np.float64)[0])
    advantage = np.asarray(batch.advantage, np.float64)[0]
    actor = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage).mean()
    value = value.mean()
    value, old, target = (
        np.asarray(x, np.float64)[0] for x in (value, batch.critic_value, batch.target)
    )
    squared = (value - target) ** 2
    if clip_value_loss:
        squared = np.maximum(squared, (old + np.clip(value - old, -0.2, 0.2) - target) ** 2)
    critic = 0.5 * squared.mean()
    entropy = -(np.exp(log_probs) * log_probs).sum(-1).mean()
    np.testing.assert_allclose(losses.actor_loss, actor, rtol=1e-4)
    np.testing.assert_allclose(losses.value_loss, critic, rtol=1e-4)
    np.testing.assert_allclose(losses.entropy, entropy, rtol=1e-4)
    np.testing.assert_allclose(total, actor + 0.7 * critic - 0.05 * entropy, rtol=1e-4)


@pytest.mark.parametrize("num_batches, standardized", [(2, "batch"), (4, "minibatch")])
def test_split_over_update_batches_gives_the_same_step(
    small: Any, num_batches: int, standardized: str
) -> None:
    system, state = small(system__standardize_advantages=standardized)
    batch = random_batch(32)
    whole, losses = compiled(system).gradient_step(batch, state.agent, jnp.arange(32))
    split = jax.tree.map(
        lambda x: x.reshape(1, num_batches, -1, *x.shape[2:]).swapaxes(0, 1), batch
    )
    mapped = dataclasses.replace(system, axes=(learner.BATCH_AXIS,))
    parts, split_losses = jax.jit(
        jax.vmap(
            partial(learner.gradient_step, mapped),
            in_axes=(0, None, None),
            out_axes=None,
            axis_name=learner.BATCH_AXIS,
        )
    )(split, state.agent, jnp.arange(32 // num_batches))
    learnt, learnt_apart = (
        jax.tree.leaves((agent.policy.params, agent.opt_state, of))
        for agent, of in ((whole, losses), (parts, split_losses))
    )
    for one, other in zip(learnt, learnt_apart, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_update_batches_act_apart_and_share_parameters() -> None:
    built, state, plan = build(
        small_config(arch={"total_num_envs": 8, "update_batch_size": 2}, env__target="envs.Copy")
    )
    train = parallel(partial(learner.train_members, built), 1)
    count = replicate(jnp.int32(2), jax.local_devices()[:1])
    after, metrics = train(state, no_metrics(plan), count)
    assert jax.tree.leaves(after.agent.policy.params)[0].ndim == 2 + 1  # [D, P, ...]: no U
    keys = jax.random.key_data(after.acting.key)
    assert not np.array_equal(keys[0, 0, 0], keys[0, 0, 1])
    assert not np.array_equal(after.acting.obs[0, 0, 0], after.acting.obs[0, 0, 1])
    assert metrics.num_episodes[0, 0] == 2 * 8 * 8  # every step of both update batches, twice


def test_every_phase_that_draws_moves_the_random_stream_on(small: Any) -> None:
    system, state = small()
    phases = compiled(system)
    keys = [state.acting.key]
    for _ in range(2):
        state, rollout, _ = phases.collect(state)
        keys.append(state.acting.key)
        state, *_ = phases.run_epochs(state, rollout, phases.add_targets(state, rollout)[0])
        keys.append(state.acting.key)
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == len(keys)


def test_same_seed_same_bits_and_another_seed_others() -> None:
    def trained(seed: int) -> list[np.ndarray]:
        built, state, plan = build(small_config(arch__seed=seed))
        train = parallel(partial(learner.train_members, built), 1)
        count = replicate(jnp.int32(2), jax.local_devices()[:1])
        state, _ = train(state, no_metrics(plan), count)
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
    train, state, total, (baseline, _), compilations = compiled_block
    before = len(compilations)
    hp = dataclasses.replace(
        state.agent.hyperparameters, **{name: jnp.full((1, 1), value, jnp.float32)}
    )
    agent = dataclasses.replace(state.agent, hyperparameters=hp)
    changed, _ = train(dataclasses.replace(state, agent=agent), total, updates(3))
    params = jax.device_get(jax.tree.leaves(changed.agent.policy.params))
    assert len(compilations) == before
    assert any(not np.array_equal(a, b) for a, b in zip(params, baseline, strict=True))


def updates(num: int) -> jax.Array:
    return replicate(jnp.int32(num), jax.local_devices()[:1])


@pytest.fixture(scope="module")
def compiled_block() -> Any:
    built, state, plan = build(small_config())
    total, three = no_metrics(plan), updates(3)
    train = parallel(partial(learner.train_members, built), 1).lower(state, total, three).compile()
    after, metrics = train(state, total, three)
    baseline = jax.device_get((jax.tree.leaves(after.agent.policy.params), metrics))
    jax.block_until_ready(jnp.full((1, 1), 0.5, jnp.float32))
    compilations: list[str] = []

    def listen(event: str, duration: float, **kwargs: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield train, state, total, baseline, compilations
    jax.monitoring.clear_event_listeners()


def test_compilations_are_noticed(compiled_block: Any) -> None:
    compilations = compiled_block[-1]
    before = len(compilations)
    jax.block_until_ready(jax.jit(lambda x: x * 3.25 + 1)(jnp.ones(17)))
    assert len(compilations) > before


def test_a_block_in_several_calls_is_the_block_in_one(compiled_block: Any) -> None:
    """Bit for bit, its metrics too, and without compiling anything."""
    train, state, total, (params, metrics), compilations = compiled_block
    before = len(compilations)
    state, total = train(*train(state, total, updates(1)), updates(2))
    assert len(compilations) == before
    assert state.agent.update[0] == 3
    found = (jax.tree.leaves(state.agent.policy.params), total)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves((params, metrics)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_episode_returns_are_reported_unscaled(small: Any) -> None:
    system, state = small(system__reward_scale=0.01)
    assert compiled(system).collect(state)[2].episode_return == 60


def test_learning_rate_falls_to_its_last_share(small: Any) -> None:
    system, state = small(arch__num_updates=4, system__actor_lr=1.0)
    rates = []
    phases = compiled(system)
    for _ in range(4):
        state, metrics = phases.update(state)
        rates.append(float(metrics.learning_rate))
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
    assert (metrics.nonfinite_reward > 0) == (poison == "reward")
    assert (metrics.nonfinite_observation > 0) == (poison == "obs")
    assert metrics.nonfinite_loss > 0


def test_values_of_truncated_successors_cost_nothing_where_none_is(small: Any) -> None:
    """The branch is a real one: its critic pass stays out of the unconditional program."""
    system, state = small()
    state, rollout, _ = compiled(system).collect(state)
    jaxpr = str(jax.make_jaxpr(partial(learner.rollout_values, system))(state, rollout))
    assert jaxpr.count("cond[") == 1


def test_truncation_branch_is_not_batched_by_update_batches(small: Any) -> None:
    system, state = small()
    mapped = dataclasses.replace(system, axes=(learner.BATCH_AXIS,))
    layout = LearnerState(agent=None, acting=0)
    acting = jax.tree.map(lambda x: jnp.stack([x, x]), state.acting)
    both = LearnerState(agent=state.agent, acting=acting)
    jaxpr = jax.make_jaxpr(
        jax.vmap(
            partial(learner.update, mapped),
            in_axes=(layout,),
            out_axes=(layout, None),
            axis_name=learner.BATCH_AXIS,
        )
    )(both)
    assert "cond[" in str(jaxpr)


@pytest.mark.parametrize("objective", ["penalty", "dpo", "reinforce"])
def test_actors_loss_is_the_objectives(small: Any, objective: str) -> None:
    """Against the definitions in float64; the clipped one has its test above."""
    system, state = small(system__objective=objective, system__kl_coef=0.7)
    phases = compiled(system)
    batch = random_batch(64)
    _, policy, _ = phases.unroll(state.agent.policy, (), batch.obs, batch.reset)
    old = categorical(policy.logits + jnp.asarray([0.5, -0.5]))
    batch = dataclasses.replace(batch, distribution=old, log_prob=old.log_prob(batch.action))
    _, losses = phases.loss(state.agent, state.agent.policy.params, batch)

    new, before = (
        x - np.log(np.exp(x).sum(-1, keepdims=True))
        for x in (np.asarray(d.logits, np.float64)[0] for d in (policy, old))
    )
    taken = np.arange(64), np.asarray(batch.action)[0]
    ratio = np.exp(new[taken] - before[taken])
    advantage = np.asarray(batch.advantage, np.float64)[0]
    kl = (np.exp(before) * (before - new)).sum(-1)
    gain, log_gain = (ratio - 1) * advantage, np.log(ratio) * advantage
    drift = np.where(
        advantage >= 0,
        np.maximum(gain - 2.0 * np.tanh(gain / 2.0), 0),
        np.maximum(log_gain - 0.6 * np.tanh(log_gain / 0.6), 0),
    )
    expected = {
        "penalty": -ratio * advantage + 0.7 * kl,
        "dpo": drift - ratio * advantage,
        "reinforce": -new[taken] * advantage,
    }[objective]
    np.testing.assert_allclose(losses.actor_loss, expected.mean(), rtol=1e-4)
    np.testing.assert_allclose(losses.ratio_min, ratio.min(), rtol=1e-4)
    np.testing.assert_allclose(losses.ratio_max, ratio.max(), rtol=1e-4)


def kl_of_mine(agent: Any, batch: Batch, distribution: Any, log_prob: jax.Array) -> jax.Array:
    return batch.distribution.kl_divergence(distribution)


def test_an_objective_by_import_path_sees_the_acting_policy(small: Any) -> None:
    system, state = small(system__objective="test_learner.kl_of_mine")
    assert system.objective is kl_of_mine
    jax.eval_shape(partial(learner.update, system), state)
    blind = dataclasses.replace(system, objective=clip_objective)
    _, rollout, _ = jax.eval_shape(partial(learner.collect, blind), state)
    batch, _ = jax.eval_shape(partial(learner.add_targets, blind), state, rollout)
    assert batch.distribution == ()  # what is not looked at is not kept


class Equal:
    """An objective without a hash, as a dataclass is by default."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return NotImplemented

    def __call__(self, agent: Any, batch: Batch, _: Any, log_prob: jax.Array) -> jax.Array:
        return -log_prob


unhashable = Equal()


def test_an_objective_needs_no_hash(small: Any) -> None:
    system, state = small(system__objective="test_learner.unhashable")
    jax.eval_shape(partial(learner.update, system), state)


def test_upper_clip_bound_is_its_own(small: Any) -> None:
    """With ratios of 1.25, an upper bound of 1.3 keeps the gradient that 1.2 takes away."""
    batch = dataclasses.replace(random_batch(64), advantage=jnp.ones((1, 64)))
    norms = []
    for high in (None, 0.3):
        system, state = small(system__clip_eps_high=high, system__ent_coef=0.0)
        phases = compiled(system)
        _, policy, _ = phases.unroll(state.agent.policy, (), batch.obs, batch.reset)
        old = policy.log_prob(batch.action) - np.log(1.25)
        _, losses = phases.gradient_step(
            dataclasses.replace(batch, log_prob=old), state.agent, jnp.arange(64)
        )
        norms.append(losses.actor_gradient_norm)
    assert norms[0] < 1e-6 < 1e-2 < norms[1]


def test_one_norm_of_actor_and_critic_is_plain_adam_of_all(small: Any) -> None:
    system, state = small(system__max_grad_norm=1e-2, system__clip_together=True)
    batch, agent = random_batch(32), state.agent
    grad = jax.jit(jax.grad(partial(learner.loss, system, agent), has_aux=True))
    gradients, _ = grad(agent.policy.params, batch)
    whole = float(optax.tree.norm(gradients))
    assert whole > 2e-2
    plain = optax.chain(optax.clip_by_global_norm(1e-2), optax.adam(3e-4, eps=1e-5))
    updates, _ = plain.update(gradients, plain.init(agent.policy.params))
    moved, losses = compiled(system).gradient_step(batch, agent, jnp.arange(32))
    expected = optax.apply_updates(agent.policy.params, updates)
    pairs = zip(jax.tree.leaves(moved.policy.params), jax.tree.leaves(expected), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-8)
    norms = [losses.actor_gradient_norm, losses.critic_gradient_norm]
    clipped = [losses.actor_gradient_norm_clipped, losses.critic_gradient_norm_clipped]
    np.testing.assert_allclose(np.hypot(*clipped), 1e-2, rtol=1e-5)
    np.testing.assert_allclose(np.divide(*clipped), np.divide(*norms), rtol=1e-5)


def test_gradient_norms_before_and_after_clipping(small: Any) -> None:
    system, state = small(system__max_grad_norm=1e-3)
    batch = random_batch(32)
    grad = jax.jit(jax.grad(partial(learner.loss, system, state.agent), has_aux=True))
    gradients, _ = grad(state.agent.policy.params, batch)
    _, losses = compiled(system).gradient_step(batch, state.agent, jnp.arange(32))
    for group in ("actor", "critic"):
        leaves = jax.tree.leaves({k: x for k, x in gradients.items() if k.startswith(group)})
        norm = np.sqrt(sum(np.sum(np.square(np.asarray(x, np.float64))) for x in leaves))
        np.testing.assert_allclose(getattr(losses, f"{group}_gradient_norm"), norm, rtol=1e-4)
        clipped = getattr(losses, f"{group}_gradient_norm_clipped")
        np.testing.assert_allclose(clipped, 1e-3, rtol=1e-6)


def test_an_update_reports_its_diagnostics_and_moves_all_statistics(small: Any) -> None:
    names = ("normalize_observations", "normalize_values", "normalize_rewards")
    system, state = small(system=dict.fromkeys(names, True))
    state, metrics = compiled(system).update(state)
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(state.agent.policy.params)))
    np.testing.assert_allclose(metrics.parameter_norm, norm, rtol=1e-5)
    assert metrics.gradient_steps == 2 * 4
    assert metrics.advantage_std > 0
    assert metrics.losses.ratio_min < 1 < metrics.losses.ratio_max
    assert metrics.empty_mask == 0
    agent = state.agent
    statistics = (agent.policy.obs_statistics, agent.value_statistics, agent.reward_statistics)
    assert [x.count for x in statistics] == [32, 32, 32]


def test_critic_learns_normalised_targets_of_values_in_real_units(small: Any) -> None:
    system, state = small(
        system={"normalize_values": True, "standardize_advantages": "none"},
        system__value_norm_decay=0.9,
    )
    phases = compiled(system)
    means, squares, weight = 0.0, 0.0, 0.0
    for _ in range(3):
        before = state.agent.value_statistics
        state, rollout, _ = phases.collect(state)
        batch, _ = phases.add_targets(state, rollout)
        _, _, estimate = phases.unroll(state.agent.policy, (), rollout.obs, rollout.reset)
        deviation = np.sqrt(before.variance + 1e-4)
        value = np.asarray(estimate.mean()) * deviation + before.mean
        np.testing.assert_allclose(batch.value.reshape(8, 4), value, rtol=1e-4, atol=1e-4)
        # Advantages are of rewards as they are: the error of the values is all there is.
        np.testing.assert_allclose(batch.target, batch.advantage + batch.value, rtol=1e-5)
        state = phases.observe_targets(state, batch)
        target = np.asarray(batch.target, np.float64)
        means = 0.9 * means + 0.1 * target.mean()
        squares = 0.9 * squares + 0.1 * np.square(target).mean()
        weight = 0.9 * weight + 0.1
        statistics = state.agent.value_statistics
        np.testing.assert_allclose(statistics.mean, means / weight, rtol=1e-4)
        variance = squares / weight - (means / weight) ** 2
        np.testing.assert_allclose(statistics.variance, variance, rtol=1e-3)
        _, losses = phases.loss(state.agent, state.agent.policy.params, batch)
        units = (target - statistics.mean) / np.sqrt(statistics.variance + 1e-4)
        error = np.asarray(estimate.mean()).reshape(1, -1) - units
        np.testing.assert_allclose(losses.value_loss, 0.5 * np.square(error).mean(), rtol=1e-3)
        state, *_ = phases.run_epochs(state, rollout, batch)


def test_clip_of_values_is_around_what_the_critic_said(small: Any) -> None:
    """At first nothing is clipped, though the units have moved since: the gradient is whole."""
    losses = []
    for clip in (False, True):
        system, state = small(system={"normalize_values": True, "clip_value_loss": clip})
        phases = compiled(system)
        state, rollout, _ = phases.collect(state)
        batch, _ = phases.add_targets(state, rollout)
        state = phases.observe_targets(state, batch)
        losses.append(phases.gradient_step(batch, state.agent, jnp.arange(32))[1])
    assert losses[0].critic_gradient_norm > 0.01
    for field in ("value_loss", "critic_gradient_norm"):
        np.testing.assert_allclose(*(getattr(x, field) for x in losses), rtol=1e-5)


def test_extremes_of_a_block_are_its_own(small: Any) -> None:
    system, state = small()
    update = compiled(system).update
    extremes = []
    total = learner.zero_metrics()
    for _ in range(3):
        state, metrics = update(state)
        extremes.append((metrics.losses.ratio_min, metrics.losses.ratio_max))
        total = learner._accumulate(total, metrics)
    assert total.losses.ratio_min == min(low for low, _ in extremes)
    assert total.losses.ratio_max == max(high for _, high in extremes)
    assert total.gradient_steps == 3 * 8


@pytest.mark.parametrize("name, value", [("kl_coef", 50.0), ("dpo_alpha", 0.1)])
def test_numbers_of_the_other_objectives_are_data_too(small: Any, name: str, value: float) -> None:
    system, state = small(system__objective="penalty" if name == "kl_coef" else "dpo")
    update, params = compiled(system).update, []
    for change in ({}, {name: jnp.float32(value)}):
        hp = dataclasses.replace(state.agent.hyperparameters, **change)
        agent = dataclasses.replace(state.agent, hyperparameters=hp)
        moved, _ = update(dataclasses.replace(state, agent=agent))
        params.append(
            np.concatenate([x.ravel() for x in jax.tree.leaves(moved.agent.policy.params)])
        )
    assert not np.array_equal(*params)


def test_rewards_are_divided_by_the_spread_of_their_discounted_sums(small: Any) -> None:
    system, state = small(system={"normalize_rewards": True, "reward_clip": 1.0, "gamma": 0.9})
    phases = compiled(system)
    past, sums = np.zeros(4), []
    for _ in range(3):
        state, rollout, _ = phases.collect(state)
        state, scaled = phases.scale_rewards(state, rollout)
        for t in range(8):
            past = np.asarray(rollout.reward, np.float64)[t] + 0.9 * past
            sums.append(past)
            past = np.where(rollout.terminated[t] | rollout.truncated[t], 0.0, past)
        expected = np.asarray(rollout.reward) / np.sqrt(np.var(sums) + 1e-8)
        assert expected.max() > 1.0
        np.testing.assert_allclose(scaled.reward, np.minimum(expected, 1.0), rtol=1e-4)
        np.testing.assert_allclose(state.acting.discounted_return, past, rtol=1e-5)


def test_advantages_can_be_standardised_by_minibatch(small: Any) -> None:
    """Then neither their scale nor their mean matters, whatever the other minibatches hold."""
    system, state = small(system__standardize_advantages="minibatch")
    batch, phases = random_batch(32), compiled(system)
    other = dataclasses.replace(batch, advantage=3.0 * batch.advantage.at[:, 16:].add(9.0) - 5.0)
    steps = [phases.gradient_step(b, state.agent, jnp.arange(16))[1] for b in (batch, other)]
    np.testing.assert_allclose(steps[0].actor_loss, steps[1].actor_loss, atol=1e-5)
    apart = dataclasses.replace(system, standardize_advantages="none")
    raw = [compiled(apart).gradient_step(b, state.agent, jnp.arange(16))[1] for b in (batch, other)]
    assert abs(raw[0].actor_loss - raw[1].actor_loss) > 1.0


def test_vtrace_on_the_acting_policy_is_the_lambda_return(small: Any) -> None:
    targets = []
    for name in ("gae", "vtrace"):
        recompute = name == "vtrace"
        system, state = small(system={"advantages": name, "recompute_advantages": recompute})
        phases = compiled(system)
        state, rollout, _ = phases.collect(state)
        targets.append(phases.add_targets(state, rollout)[0].target)
    np.testing.assert_allclose(*targets, rtol=1e-5)


def test_recomputed_advantages_are_those_of_the_pass(small: Any) -> None:
    """The first pass finds what it would have found; later ones the parameters of their time."""
    params = {}
    for epochs in (1, 2):
        for recompute in (False, True):
            system, state = small(system={"epochs": epochs, "recompute_advantages": recompute})
            state, _ = compiled(system).update(state)
            params[epochs, recompute] = np.concatenate(
                [x.ravel() for x in jax.tree.leaves(state.agent.policy.params)]
            )
    np.testing.assert_allclose(params[1, True], params[1, False], rtol=1e-5, atol=1e-7)
    assert not np.allclose(params[2, True], params[2, False], rtol=1e-5, atol=1e-7)


def test_passes_end_where_the_kl_passes_its_limit(small: Any) -> None:
    """The first step finds KL 0 and is taken; the second sees it, and nothing moves after."""
    fast = {"actor_lr": 0.05, "decay_learning_rates": False}
    stopping, state = small(system={**fast, "kl_stop": 1e-6})
    phases = compiled(stopping)
    start, rollout, _ = phases.collect(state)
    batch, _ = phases.add_targets(start, rollout)
    stopped, losses, taken, _ = phases.run_epochs(start, rollout, batch)
    assert taken == 1  # the second was looked at and moved nothing
    assert losses.approximate_kl > 0
    free, _ = small(system=fast)
    one, _ = compiled(free).gradient_step(batch, start.agent, first_minibatch(free, start))
    for a, b in zip(
        jax.tree.leaves((stopped.agent.policy.params, stopped.agent.opt_state)),
        jax.tree.leaves((one.policy.params, one.opt_state)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_what_others_go_on_for_changes_nothing_of_what_has_stopped(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that has stopped stays so, whatever the KL of later minibatches."""
    monkeypatch.setattr(learner, "_all_stopped", lambda system, stopped: jnp.zeros((), bool))
    system, state = small(system={"kl_stop": 1e9, "actor_lr": 0.05})
    phases = compiled(system)
    start, rollout, _ = phases.collect(state)
    batch, _ = phases.add_targets(start, rollout)
    order = first_minibatch(system, start)
    for stopped in (True, False):
        (agent, stop), (losses, seen, taken, skipped) = learner.step_unless_stopped(
            system, batch, (start.agent, jnp.asarray(stopped)), order
        )
        assert (stop, seen, taken, skipped) == (stopped, not stopped, not stopped, False)
        assert (losses.entropy == 0.0) == stopped
        pairs = zip(jax.tree.leaves(start.agent.opt_state), jax.tree.leaves(agent.opt_state),
                    strict=True)  # fmt: skip
        assert all(np.array_equal(x, y) for x, y in pairs) == stopped


def first_minibatch(system: System, state: LearnerState) -> jax.Array:
    key = jax.random.split(state.acting.key, 1 + system.epochs)[1]
    return learner.random_permutation(key, 32)[: 32 // system.num_minibatches]


def test_a_limit_that_is_not_reached_changes_nothing(small: Any) -> None:
    trained = []
    for limit in (float("inf"), 1e9):
        system, state = small(system__kl_stop=limit)
        assert system.stop_by_kl == (limit == 1e9)
        state, metrics = compiled(system).update(state)
        assert metrics.gradient_steps == 8
        trained.append(jax.tree.leaves((state.agent.policy.params, metrics)))
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_the_end_of_passes_is_a_branch_over_update_batches_too(small: Any) -> None:
    """A `cond` each for resets, truncated values and the stop: none became a select."""
    counts = []
    for limit in (float("inf"), 0.01):
        system, state = small(system__kl_stop=limit)
        mapped = dataclasses.replace(system, axes=(learner.BATCH_AXIS,))
        layout = LearnerState(agent=None, acting=0)
        acting = jax.tree.map(lambda x: jnp.stack([x, x]), state.acting)
        step = jax.vmap(
            partial(learner.update, mapped),
            in_axes=(layout,),
            out_axes=(layout, None),
            axis_name=learner.BATCH_AXIS,
        )
        jaxpr = str(jax.make_jaxpr(step)(LearnerState(agent=state.agent, acting=acting)))
        counts.append(jaxpr.count("cond["))
    assert counts == [2, 3]


@pytest.mark.parametrize("target, factor", [(1e-9, 2.0), (1e9, 0.5)])
def test_penalty_adapts_to_its_target(small: Any, target: float, factor: float) -> None:
    system, state = small(
        system={"objective": "penalty", "adapt_kl_coef": True, "kl_target": target, "kl_coef": 3.0}
    )
    phases = compiled(system)
    for update in (1, 2):
        state, metrics = phases.update(state)
        assert state.agent.kl_factor == factor**update
        assert metrics.kl_coef == 3.0 * factor**update
        assert state.agent.hyperparameters.kl_coef == 3.0


def test_penalty_stays_within_half_of_its_target(small: Any) -> None:
    system, state = small(system={"objective": "penalty", "adapt_kl_coef": True, "epochs": 1})
    phases = compiled(system)
    state, rollout, _ = phases.collect(state)
    batch, _ = phases.add_targets(state, rollout)
    hp = dataclasses.replace(state.agent.hyperparameters, kl_target=jnp.float32(0.1))
    agent = dataclasses.replace(state.agent, hyperparameters=hp)
    adapt = jax.jit(partial(learner.adapt_kl_coef, system))
    for shift, factor in ((0.0, 0.5), (0.45, 1.0), (0.9, 2.0)):  # KL near 0, 0.1 and 0.37
        old = categorical(batch.distribution.logits + jnp.asarray([2 * shift, 0.0]))
        moved = adapt(agent, dataclasses.replace(batch, distribution=old))
        assert moved.kl_factor == factor, shift


def test_noise_is_that_of_acting_and_new_every_iteration(small: Any) -> None:
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
        phases.unroll(policy, (), rollout.obs, rollout.reset)[1].logits
        for policy in (state.agent.policy, quiet)
    )
    assert not np.allclose(with_noise, without, atol=1e-4)


def test_bfloat16_is_of_torsos_alone(small: Any) -> None:
    system, state = small(arch__precision="bf16", **NORMALIZED)
    phases = compiled(system)
    assert {x.dtype.name for x in jax.tree.leaves(state.agent.policy.params)} == {"float32"}
    jaxpr = str(jax.make_jaxpr(partial(learner.update, system))(state))
    assert "bf16" in jaxpr
    state, metrics = phases.update(state)
    assert {x.dtype.name for x in jax.tree.leaves(state.agent.policy.params)} == {"float32"}
    assert metrics.losses.total_loss.dtype == jnp.float32
    state, rollout, batch = rollout_after(phases, state, 1)
    _, policy, estimate = phases.unroll(state.agent.policy, (), rollout.obs, rollout.reset)
    assert {policy.logits.dtype.name, estimate.mean().dtype.name} == {"float32"}
    _, losses = phases.loss(state.agent, state.agent.policy.params, batch)
    assert losses.approximate_kl < 1e-5
    full, _ = small(**NORMALIZED)
    exact = compiled(full).unroll(state.agent.policy, (), rollout.obs, rollout.reset)[2].mean()
    assert not np.array_equal(exact, estimate.mean())
    np.testing.assert_allclose(exact, estimate.mean(), atol=0.05)
    assert "bf16" not in str(jax.make_jaxpr(partial(learner.update, full))(state))


def test_a_mask_without_a_legal_action_is_counted(small: Any) -> None:
    for empty in (False, True):
        system, state = small(env={"target": "envs.Masked", "params": {"empty": empty}})
        _, metrics = compiled(system).update(state)
        assert (metrics.empty_mask > 0) == empty
        assert np.isfinite(metrics.losses.total_loss)
