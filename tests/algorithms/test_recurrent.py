"""Memories, alone and through the phases: what they carry, where it ends, what is learnt of it."""

import copy
import dataclasses
import functools
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import phases
import pytest
from conftest import LAYERS, NETWORK, alone, build, close, products_by_type, refused, small_config
from phases import compiled, flat, moved, with_hyperparameters, with_steps

from jaxppo.algorithms import guards
from jaxppo.algorithms.evaluation import evaluate
from jaxppo.algorithms.gradient_steps import select
from jaxppo.algorithms.memory import make_refresh
from jaxppo.config.plan import plan
from jaxppo.kernels.platforms import compiling_for
from jaxppo.networks.memory import CELLS, LRU, Recurrent
from jaxppo.networks.transformer import GTrXL
from jaxppo.ops import sequences
from jaxppo.ops.distributions import categorical
from jaxppo.runtime.programs import build as programs
from jaxppo.types import AgentState, Batch, LearnerState, Rollout

T, B = 8, 4  # of `small`
near = partial(close, rtol=1e-4, atol=1e-5)


def memory(cell: str, **changes: Any) -> dict[str, Any]:
    """The settings of a small memory."""
    if cell == "lru":
        return {"_target_": f"{LAYERS}.memory.LRU", "size": 6, "state_size": 5, **changes}
    if cell == "gtrxl":
        small = {"size": 6, "num_heads": 2, "num_layers": 1, "window": 3, "mlp_size": 8}
        return {"_target_": f"{LAYERS}.transformer.GTrXL", **small, **changes}
    return {"_target_": f"{LAYERS}.memory.Recurrent", "cell": cell, "size": 6, **changes}


def with_memory(cell: str = "gru") -> dict[str, Any]:
    """A memory of the actor and one of the critic; of a GRU one that they share."""
    slots = ["shared_memory"] if cell == "gru" else ["actor_memory", "critic_memory"]
    return {**NETWORK, **dict.fromkeys(slots, memory(cell))}


# Memories alone


MODULES: dict[str, Any] = {
    "lstm-2": Recurrent("lstm", size=6, num_layers=2),
    "gru-1": Recurrent("gru", size=6),
    "lru-2": LRU(size=6, state_size=5, num_layers=2),
    "gtrxl-3": GTrXL(6, 2, 2, window=3, mlp_size=8),
    "gtrxl-20": GTrXL(6, 2, 2, window=20, mlp_size=8),
}
LENGTH = 20  # more than a block of the linear recurrence on accelerators


@functools.cache
def example(module: Any, length: int = LENGTH, num: int = 3) -> tuple[Any, Any, Any, Any, Any]:
    """Parameters, a carry that is not empty, features, resets, and `apply` as a program."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(length, num, 4)), jnp.float32)
    reset = jnp.asarray(rng.random((length, num)) < 0.2)
    carry = jax.tree.map(
        lambda c: c + jnp.asarray(rng.normal(size=c.shape), c.dtype), module.initial_carry(num)
    )
    params = jax.jit(module.init)(jax.random.key(0), carry, x, reset)
    return params, carry, x, reset, jax.jit(module.apply)


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_a_sequence_at_once_is_its_steps_one_by_one(module: str) -> None:
    params, carry, x, reset, apply = example(MODULES[module])
    end, outputs = apply(params, carry, x, reset)
    assert outputs.shape == (LENGTH, 3, 6)
    one_by_one = []
    for t in range(LENGTH):
        carry, y = apply(params, carry, x[t : t + 1], reset[t : t + 1])
        one_by_one.append(y[0])
    near((end, outputs), (carry, np.stack(one_by_one)))
    assert jax.tree.map(jnp.result_type, end) == jax.tree.map(jnp.result_type, carry)


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_nothing_crosses_a_reset(module: str) -> None:
    """Neither what was seen, nor the carry, nor a gradient."""
    params, carry, x, _, apply = example(MODULES[module])
    reset = jnp.zeros((LENGTH, 3), bool).at[7, 1].set(True)
    one = apply(params, carry, x, reset)[1]
    other_carry = jax.tree.map(lambda c: c + 1.0, carry)
    other = apply(params, other_carry, x.at[:7].add(2.0), reset)[1]
    np.testing.assert_array_equal(one[7:, 1], other[7:, 1])
    assert not np.allclose(one[7:, 0], other[7:, 0], atol=1e-3)
    empty = jax.tree.map(jnp.zeros_like, carry)
    fresh = apply(params, empty, jnp.roll(x, -7, 0), reset & False)[1]
    np.testing.assert_allclose(one[7:, 1], fresh[: LENGTH - 7, 1], atol=1e-6)
    slope = jax.jit(
        jax.grad(lambda x: jnp.sum(jnp.square(apply(params, carry, x, reset)[1][9, 1])))
    )
    influence = np.abs(slope(x)).sum(-1)
    assert (influence[7:10, 1] > 0).all()
    assert not influence[:7].any()
    assert not influence[:, [0, 2]].any()


@pytest.mark.long
@pytest.mark.parametrize(
    "platform, module",
    [
        *(("cpu", name) for name in ("lstm-2", "lru-2", "gtrxl-3")),
        *(("gpu", name) for name in ("gru-1", "lru-2")),
    ],
)
def test_a_number_that_is_not_finite_ends_with_its_episode(platform: str, module: str) -> None:
    """In a sequence and step by step: outputs, memory and gradients are those of a fresh one."""
    params, carry, x, _, apply = example(MODULES[module])
    bad = x.at[3, 0, 0].set(jnp.nan).at[4, 0, 1].set(jnp.inf)
    later, at_once = (jnp.zeros((LENGTH, 3), bool).at[t].set(True) for t in (7, 0))
    with compiling_for(platform):
        slope = jax.jit(jax.grad(lambda p, c: jnp.sum(apply(p, c, x, at_once)[1])))
        outputs = apply(params, carry, bad, later)[1]
        assert not np.isfinite(outputs[4:7, 0]).any()
        np.testing.assert_array_equal(outputs[7:], apply(params, carry, x, later)[1][7:])
        ill, fresh = carry, MODULES[module].initial_carry(3)
        for t in range(3, 7):
            ill = apply(params, ill, bad[t : t + 1], later[t : t + 1])[0]
        assert not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ill))
        exactly(apply(params, ill, x, at_once), apply(params, fresh, x, at_once))
        exactly(slope(params, ill), slope(params, fresh))
        for t in range(3):
            ill, one = apply(params, ill, x[t : t + 1], at_once[t : t + 1])
            fresh, other = apply(params, fresh, x[t : t + 1], at_once[t : t + 1])
            exactly((ill, one), (fresh, other))


def exactly(one: Any, other: Any) -> None:
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(one))
    close(one, other)


@pytest.mark.parametrize("cell", CELLS)
def test_a_recurrent_layer_is_flaxs_cell(cell: str) -> None:
    module = Recurrent(cell, size=6)
    params, carry, x, _, _ = example(module)
    (layer,) = params["params"].values()
    state = carry[0]
    for t in range(3):
        state, y = CELLS[cell](6).apply({"params": layer}, state, x[t])
    outputs = module.apply(params, carry, x, jnp.zeros((LENGTH, 3), bool))[1]
    np.testing.assert_allclose(outputs[2], y, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_lru_is_its_equations_in_float64() -> None:
    module = LRU(size=6, state_size=5)
    variables, carry, x, reset, _ = example(module)
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), variables["params"])
    layer = p["layer_0"]
    h = np.asarray(x, np.float64) @ p["embedding"]["kernel"] + p["embedding"]["bias"]
    u = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6)
    u = u * layer["LayerNorm_0"]["scale"] + layer["LayerNorm_0"]["bias"]
    decay = np.exp(-np.exp(layer["log_rate"]) + 1j * np.exp(layer["log_phase"]))
    kernel = layer["Dense_0"]["kernel"]
    inputs = u @ (kernel[:, :5] + 1j * kernel[:, 5:]) * np.sqrt(1 - np.abs(decay) ** 2)
    states = oracles.linear_recurrence(decay, inputs, np.asarray(reset), np.asarray(carry[0]))
    out = layer["Dense_1"]["kernel"]
    y = (states @ (out[:5] - 1j * out[5:])).real + layer["skip"] * u
    y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    gate = 1 / (1 + np.exp(-(y @ layer["Dense_2"]["kernel"] + layer["Dense_2"]["bias"])))
    end, outputs = module.apply(variables, carry, x, reset)
    np.testing.assert_allclose(outputs, h + y * gate, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(end[0], states[-1], rtol=1e-4, atol=1e-5)


def test_lru_begins_within_its_radii_and_phases() -> None:
    module = LRU(size=4, state_size=400, min_radius=0.5, max_radius=0.99, max_phase=0.3)
    layer = example(module)[0]["params"]["layer_0"]
    radius, phase = np.exp(-np.exp(layer["log_rate"])), np.exp(layer["log_phase"])
    assert 0.5 <= radius.min() < 0.53 < 0.97 < radius.max() <= 0.99
    assert 0 < phase.min() < 0.02 < 0.28 < phase.max() <= 0.3
    np.testing.assert_allclose(np.mean(radius**2), (0.5**2 + 0.99**2) / 2, atol=0.03)


# Through the phases


SETTINGS = {
    **{"normalize_observations": True, "standardize_advantages": "none", "num_minibatches": 2},
    **{"objective": "penalty", "adapt_kl_coef": True, "sequence_length": T},
}
SHARED = "gru"
CELLS_OF_SYSTEMS = [SHARED, *(pytest.param(x, marks=pytest.mark.long) for x in ("lru", "gtrxl"))]


@functools.cache
def learning(cell: str, length: int = T) -> Any:
    """The phases of a small system, each compiled once, by the length of its sequences."""
    if length != T:
        whole = learning(cell)
        case = compiled(dataclasses.replace(whole.system, sequence_length=length))
        case.start = whole.start
        return case
    settings = small_config(network=with_memory(cell), system=SETTINGS)
    system, state = alone(*build(settings)[:2])
    case = compiled(system)
    case.start = state
    return case


@functools.cache
def acted(cell: str) -> tuple[LearnerState, LearnerState, Rollout]:
    case = learning(cell)
    return phases.acted(case, case.start)


def batch_of(cell: str, agent: AgentState, rollout: Rollout, length: int = T) -> Batch:
    _, steps, _ = learning(cell).targets(agent, rollout)
    carry = sequences.first(rollout.steps.carry, length)
    return Batch(carry=carry, steps=sequences.cut(steps, length))


@functools.cache
def acted_batch(cell: str, length: int = T) -> tuple[AgentState, Batch]:
    _, after, rollout = acted(cell)
    return after.agent, batch_of(cell, after.agent, rollout, length)


@functools.cache
def step_by_step(cell: str, other: bool = False) -> Any:
    """Carries before each step and after the last, values, and those of true successors.

    Of the parameters that acted, or of others.
    """
    case, (before, _, rollout) = learning(cell), acted(cell)
    policy = (moved(before.agent) if other else before.agent).policy
    carry, stays, steps = before.acting.carry, jnp.zeros((1, B), bool), rollout.steps
    carries, values, successors = [carry], [], []
    for t in range(T):
        obs, reset = steps.obs[t : t + 1], steps.reset[t : t + 1]
        carry, output = case.unroll(policy, carry, obs, reset)
        carries.append(carry)
        values.append(output.value.mean()[0])
        final = steps.final_observation[t : t + 1]
        successors.append(case.unroll(policy, carry, final, stays)[1].value.mean()[0])
    stacked = jax.tree.map(lambda *x: np.stack(x), *carries)
    return stacked, np.stack(values), np.stack(successors)


@pytest.mark.long
@pytest.mark.parametrize("cell, length", [("lru", 2), ("gtrxl", 4), (SHARED, 2)])
def test_first_minibatch_ratio_is_one(cell: str, length: int) -> None:
    """Episodes of five steps in rollouts of eight: rollouts open and sequences begin within one."""
    case, rollout = learning(cell, length), acted(cell)[2]
    agent, batch = acted_batch(cell, length)
    steps = rollout.steps
    assert steps.reset[1:].any()
    assert not steps.reset[0].any()
    assert any(np.abs(x[0]).max() > 0.01 for x in jax.tree.leaves(steps.carry))
    _, losses = case.loss(agent, agent.policy.params, batch)
    assert losses.approximate_kl < 1e-8
    np.testing.assert_allclose([losses.ratio_min, losses.ratio_max], 1.0, atol=1e-3)
    # Another carry would be noticed.
    for wrong in (lambda x: jnp.roll(x, -1, 0), lambda x: jnp.roll(x, 1, 1), jnp.zeros_like):
        carry = sequences.first(jax.tree.map(wrong, steps.carry), length)
        other = dataclasses.replace(batch, carry=carry)
        assert case.loss(agent, agent.policy.params, other)[1].approximate_kl > 1e-7


@pytest.mark.parametrize("cell", CELLS_OF_SYSTEMS)
def test_stored_carry_is_the_one_before_the_step(cell: str) -> None:
    _, after, rollout = acted(cell)
    carries, _, _ = step_by_step(cell)
    near(rollout.steps.carry, jax.tree.map(lambda x: x[:-1], carries))
    last = jax.tree.map(lambda x: x[-1], carries)
    near(after.acting.carry, last)
    near(rollout.carry, last)


@pytest.mark.parametrize("cell", [SHARED, pytest.param("lstm", marks=pytest.mark.long)])
def test_targets_equal_an_oracle_that_remembers_step_by_step(cell: str) -> None:
    """The successor of a truncated step is seen with the memory after that step."""
    _, after, rollout = acted(cell)
    _, values, successors = step_by_step(cell)
    steps = rollout.steps
    terminated = steps.truncated & (np.arange(B) == 1)  # of one environment, episodes are over
    rollout = dataclasses.replace(rollout, steps=dataclasses.replace(steps, terminated=terminated))
    reward, over, cut = map(np.asarray, (steps.reward, terminated, steps.truncated))
    expected = oracles.gae(reward, values, successors, over, cut, gamma=0.99, gae_lambda=0.95)
    assert cut.sum() == 2 * B
    found = batch_of(cell, after.agent, rollout, 2).steps
    close((found.advantage, found.target), sequences.cut(expected, 2), rtol=1e-4, atol=1e-4)


def test_an_earlier_episode_changes_nothing_of_a_later_one() -> None:
    """Its observations and the carry before it are perturbed; losses and gradients are of after."""
    case, rollout = learning(SHARED), acted(SHARED)[2]
    agent, batch = acted_batch(SHARED)
    opening = int(np.flatnonzero(np.asarray(rollout.steps.reset)[:, 0])[0])
    assert 0 < opening < T - 1

    def later(params: Any, batch: Any) -> Any:
        policy, steps = dataclasses.replace(agent.policy, params=params), batch.steps
        _, output = case.unroll(policy, batch.carry, steps.obs, steps.reset)
        said = output.distribution.log_prob(steps.action) + output.value.mean()
        return jnp.sum(jnp.square(said[opening:])), said

    other = with_steps(batch, obs=batch.steps.obs.at[:opening].add(3.0))
    other = dataclasses.replace(other, carry=jax.tree.map(lambda x: x + 1.0, batch.carry))
    slope = jax.jit(jax.value_and_grad(later, has_aux=True))
    (one, before), gradients = slope(agent.policy.params, batch)
    (two, after), other_gradients = slope(agent.policy.params, other)
    assert not np.allclose(before[:opening], after[:opening])
    np.testing.assert_allclose(one, two, rtol=1e-6)
    close(gradients, other_gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_a_split_into_sequences_changes_the_truncated_gradient_alone() -> None:
    found = []
    for length in (T, 2):
        agent, batch = acted_batch("lstm", length)
        loss = partial(learning("lstm", length).loss, agent)
        found.append(jax.jit(jax.grad(loss, has_aux=True))(agent.policy.params, batch))
    gradients, losses = zip(*found, strict=True)
    near(*losses)
    close(*(g["critic_head"] for g in gradients), rtol=1e-3, atol=1e-4)
    memories = [flat(g["critic_memory"]) for g in gradients]
    assert not np.allclose(*memories, rtol=1e-2, atol=1e-3)


class Nothing(nn.Module):
    """A memory of size zero."""

    @nn.nowrap
    def initial_carry(self, num: int) -> jax.Array:
        return jnp.zeros((num, 0))

    def __call__(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> Any:
        return carry, x


@pytest.mark.long
def test_a_memory_of_size_zero_is_feed_forward(small: Any) -> None:
    nothing = {"_target_": "test_recurrent.Nothing"}
    trained = []
    for network in (NETWORK, {**NETWORK, "actor_memory": nothing, "critic_memory": nothing}):
        system, state = small(network=network, system__sequence_length=4)
        update = compiled(dataclasses.replace(system, sequence_length=4, epochs=1)).update
        for _ in range(2):
            state, metrics = update(state)
        trained.append((state.agent.policy.params, metrics))
    close(*trained)


def test_minibatches_are_of_whole_sequences() -> None:
    case, steps = learning(SHARED, 2), acted(SHARED)[2].steps
    _, batch = acted_batch(SHARED, 2)
    assert batch.steps.obs.shape[:2] == (2, 4 * B)
    # Environment 1 from step 0 on, 2 from step 2 on
    chosen = select(case.system, (), batch, jnp.array([1, 6]))
    np.testing.assert_array_equal(chosen.steps.obs[:, 0], steps.obs[:2, 1])
    np.testing.assert_array_equal(chosen.steps.obs[:, 1], steps.obs[2:4, 2])
    expected = jax.tree.map(lambda x: jnp.stack([x[0, 1], x[2, 2]]), steps.carry)
    close(chosen.carry, expected, rtol=0.0)


@pytest.mark.long
def test_burn_in_brings_the_carry_up_to_date_and_is_not_learnt_from() -> None:
    case = learning("lstm")
    burning = compiled(dataclasses.replace(case.system, burn_in=3))
    agent, batch = acted_batch("lstm")
    agent, steps = moved(agent), batch.steps
    left = burning.burn_in(agent, batch)
    near(left.carry, case.unroll(agent.policy, batch.carry, steps.obs[:3], steps.reset[:3])[0])
    np.testing.assert_array_equal(left.steps.obs, steps.obs[3:])
    np.testing.assert_array_equal(left.steps.advantage, steps.advantage[3:])
    everything = jnp.arange(B)
    learnt, metrics = burning.gradient_step(batch, agent, everything)
    by_hand, same_metrics = case.gradient_step(left, agent, everything)
    near(learnt.policy.params, by_hand.policy.params)
    near(metrics, same_metrics)
    other = with_steps(batch, advantage=steps.advantage.at[:3].add(9.0))
    close(burning.gradient_step(other, agent, everything)[1], metrics, rtol=1e-6)
    # The critic's memory learns by the critic's rate
    still = with_hyperparameters(agent, critic_lr=jnp.zeros(()))
    learnt, _ = burning.gradient_step(batch, still, everything)
    for name, part in agent.policy.params.items():
        same = np.array_equal(flat(part), flat(learnt.policy.params[name]))
        assert same == name.startswith("critic"), name


@pytest.mark.parametrize("cell", CELLS_OF_SYSTEMS)
def test_recomputed_carries_are_those_of_the_parameters(cell: str) -> None:
    """Of the acting parameters they are the stored ones; of others, what these would have had."""
    case, (before, after, rollout) = learning(cell), acted(cell)
    last, carries = case.recompute_carries(before.agent, rollout, 1)
    near((last, carries), (after.acting.carry, rollout.steps.carry))
    expected, _, _ = step_by_step(cell, other=True)
    for every in (1, 4):
        last, carries = case.recompute_carries(moved(before.agent), rollout, every)
        near(carries, jax.tree.map(lambda x, n=every: x[:-1:n], expected))
        near(last, jax.tree.map(lambda x: x[-1], expected))


@pytest.mark.long_but(1)
@pytest.mark.parametrize("carries, targets", [(True, False), (False, True)])
def test_an_epoch_reads_what_the_parameters_remember_now(carries: bool, targets: bool) -> None:
    """Recomputed targets do, after truncated steps too; minibatches begin with it if told to."""
    case, rollout = learning(SHARED, 2), acted(SHARED)[2]
    changed = compiled(
        dataclasses.replace(case.system, recompute_carries=carries, recompute_targets=targets)
    )
    agent, batch = acted_batch(SHARED, 2)
    agent = moved(agent)
    last, remembered = case.recompute_carries(agent, rollout, 1)
    steps = dataclasses.replace(rollout.steps, carry=remembered)
    fresh = dataclasses.replace(rollout, carry=last, steps=steps)
    wanted = (batch_of(SHARED, agent, fresh, 2) if targets else batch).steps
    stale = batch_of(SHARED, agent, rollout, 2).steps
    assert not np.allclose(wanted.advantage, stale.advantage, rtol=1e-3)
    carry = sequences.first(remembered, 2) if carries else batch.carry
    found = changed.refresh_batch(rollout, agent, batch)
    of_targets = found.steps.advantage, found.steps.target
    close(
        (found.carry, of_targets), (carry, (wanted.advantage, wanted.target)), rtol=1e-4, atol=1e-4
    )
    stays = with_steps(found, advantage=batch.steps.advantage, target=batch.steps.target)
    close(stays.steps, batch.steps, rtol=0.0)  # the acting policy is what it was


def test_an_epoch_after_the_end_recomputes_nothing() -> None:
    case, rollout = learning(SHARED, 2), acted(SHARED)[2]
    system = dataclasses.replace(case.system, recompute_carries=True, stop_early=True)
    agent, batch = acted_batch(SHARED, 2)
    agent = moved(agent)
    fresh = sequences.first(case.recompute_carries(agent, rollout, 1)[1], 2)

    def look(stopped: bool) -> Any:
        """The batch of an epoch of `guards.until_stopped`."""

        def one(step: Any, refresh: Any, _: Any) -> Any:
            return (agent, None), refresh((agent, jnp.asarray(stopped)), batch)

        return guards.until_stopped(system, one, ())((), make_refresh(system, rollout), agent)[1]

    for stopped, carry in ((False, fresh), (True, batch.carry)):
        near(look(stopped).carry, carry)


@pytest.mark.parametrize("cell, kinds", [("lru", {"complex64"}), ("gtrxl", {"float32", "int32"})])
def test_memories_compute_in_float32_between_torsos_that_do_not(cell: str, kinds: set[str]) -> None:
    settings = small_config(
        network=with_memory(cell), arch__precision="bf16", system__sequence_length=T
    )
    network = programs.build(settings, plan(settings, 1)).algorithm.network
    params = jax.eval_shape(network.init, jax.random.key(0))
    obs, reset, start = jnp.ones((T, B, 2)), jnp.zeros((T, B), bool), network.initial_carry(B)
    carry, _ = jax.eval_shape(network.unroll, params, start, obs, reset)
    assert {x.dtype.name for x in jax.tree.leaves((start, carry))} == kinds
    found = products_by_type(network.unroll, params, start, obs, reset)
    assert found["bfloat16"] == 2  # of the two torsos


def test_evaluated_episodes_open_with_an_empty_memory() -> None:
    case = learning(SHARED)
    network, algorithm = case.system.algorithm.network, copy.copy(case.system.algorithm)
    seen = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(network, name)

        def unroll(self, params: Any, carry: Any, obs: Any, reset: jax.Array, noise: Any) -> Any:
            jax.debug.callback(lambda c, r: seen.append((c, r)), carry, reset, ordered=True)
            return network.unroll(params, carry, obs, reset, noise)

    algorithm.network = Watched()
    watched = dataclasses.replace(case.system, algorithm=algorithm)
    evaluate(watched, case.start.agent.policy, jax.random.split(jax.random.key(0), 3))
    jax.effects_barrier()
    assert len(seen) == 5
    assert all(np.asarray(reset).all() == (i == 0) for i, (_, reset) in enumerate(seen))
    remembers = [any(np.any(x) for x in jax.tree.leaves(carry)) for carry, _ in seen]
    assert remembers == [False, True, True, True, True]


def test_the_kl_of_an_update_is_of_what_was_learnt_from() -> None:
    """After burn-in: what the first steps would say of the policy does not move the penalty."""
    finish = compiled(dataclasses.replace(learning(SHARED).system, burn_in=3)).finish
    agent, batch = acted_batch(SHARED)
    factors = []
    for first, rest in ((0.0, 0.0), (5.0, 0.0), (0.0, 5.0)):
        logits = batch.steps.distribution.logits.at[:3, :, 0].add(first).at[3:, :, 0].add(rest)
        adapted, _ = finish(agent, with_steps(batch, distribution=categorical(logits)))
        factors.append(float(adapted.algorithm_state.kl_factor))
    assert factors == [0.5, 0.5, 2.0]


class Sideways(Nothing):
    """A memory that does not look at how many episodes it remembers."""

    @nn.nowrap
    def initial_carry(self, num: int) -> jax.Array:
        return jnp.zeros((1, 2))

    def __call__(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> Any:
        return carry + jnp.sum(x[-1], -1, keepdims=True), x


class Growing(Nothing):
    """A memory whose carry is of another form after a step."""

    def __call__(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> Any:
        return jnp.zeros((carry.shape[0], 1)), x


@pytest.mark.parametrize(
    "target, key",
    [
        ("test_recurrent.Growing", "network.actor_memory.*carry"),
        ("test_recurrent.Sideways", "network.actor_memory.*carry"),
        (f"{LAYERS}.torsos.MLP", "network.actor_memory"),
    ],
)
def test_what_is_no_memory_is_refused_in_one_line(target: str, key: str) -> None:
    network = {**NETWORK, "actor_memory": {"_target_": target}}
    with refused(key):
        build(small_config(network=network, system__sequence_length=T))
