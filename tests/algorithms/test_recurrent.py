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
import pytest
from conftest import LAYERS, NETWORK, alone, build, products_by_type, small_config
from phases import add_targets, collect, compiled, with_hyperparameters, with_steps

from jaxppo.algorithms import guards, spine
from jaxppo.algorithms.evaluation import evaluate
from jaxppo.algorithms.gradient_steps import select
from jaxppo.algorithms.memory import make_refresh
from jaxppo.config.fields import ConfigError
from jaxppo.kernels.platforms import compiling_for
from jaxppo.networks.memory import CELLS, LRU, Recurrent
from jaxppo.networks.transformer import GTrXL
from jaxppo.ops import sequences
from jaxppo.ops.distributions import categorical
from jaxppo.types import AgentState, Batch, LearnerState, Rollout

T, B = 8, 4  # of `small`


def memory(cell: str, **changes: Any) -> dict[str, Any]:
    """The settings of a small memory."""
    if cell == "lru":
        return {"_target_": f"{LAYERS}.memory.LRU", "size": 6, "state_size": 5, **changes}
    if cell == "gtrxl":
        small = {"size": 6, "num_heads": 2, "window": 3, "mlp_size": 8}
        return {"_target_": f"{LAYERS}.transformer.GTrXL", **small, **changes}
    return {"_target_": f"{LAYERS}.memory.Recurrent", "cell": cell, "size": 6, **changes}


def with_memory(cell: str = "gru", shared: bool = False) -> dict[str, Any]:
    slots = ["shared_memory"] if shared else ["actor_memory", "critic_memory"]
    return {**NETWORK, **dict.fromkeys(slots, memory(cell))}


# Memories alone


MODULES = [
    *(pytest.param(Recurrent(cell, size=6, num_layers=n), id=f"{cell}-{n}") for cell, n in
      [*((cell, 1) for cell in CELLS), ("lstm", 2)]),
    *(pytest.param(LRU(size=6, state_size=5, num_layers=n), id=f"lru-{n}") for n in (1, 2)),
    *(pytest.param(GTrXL(6, 2, 2, window=w, mlp_size=8), id=f"gtrxl-{w}") for w in (3, 20)),
]  # fmt: skip


def example(module: Any, length: int = 12, num: int = 3) -> tuple[Any, Any, Any, Any]:
    """Parameters, a carry that is not empty, features and resets."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(length, num, 4)), jnp.float32)
    reset = jnp.asarray(rng.random((length, num)) < 0.2)
    carry = jax.tree.map(
        lambda c: c + jnp.asarray(rng.normal(size=c.shape), c.dtype), module.initial_carry(num)
    )
    return module.init(jax.random.key(0), carry, x, reset), carry, x, reset


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_a_sequence_at_once_is_its_steps_one_by_one(module: Any) -> None:
    params, carry, x, reset = example(module)
    apply = jax.jit(module.apply)
    end, outputs = apply(params, carry, x, reset)
    assert outputs.shape == (12, 3, 6)
    one_by_one = []
    for t in range(12):
        carry, y = apply(params, carry, x[t : t + 1], reset[t : t + 1])
        one_by_one.append(y[0])
    np.testing.assert_allclose(outputs, np.stack(one_by_one), rtol=1e-4, atol=1e-5)
    for one, other in zip(jax.tree.leaves(end), jax.tree.leaves(carry), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.long_but(2)
@pytest.mark.parametrize("module", MODULES)
def test_nothing_crosses_a_reset(module: Any) -> None:
    """Neither what was seen, nor the carry, nor a gradient."""
    params, carry, x, _ = example(module)
    reset = jnp.zeros((12, 3), bool).at[7, 1].set(True)
    other_carry = jax.tree.map(lambda c: c + 1.0, carry)
    one = module.apply(params, carry, x, reset)[1]
    other = module.apply(params, other_carry, x.at[:7].add(2.0), reset)[1]
    np.testing.assert_array_equal(one[7:, 1], other[7:, 1])
    assert not np.allclose(one[7:, 0], other[7:, 0], atol=1e-3)
    empty = jax.tree.map(jnp.zeros_like, carry)
    np.testing.assert_allclose(
        one[7:, 1], module.apply(params, empty, x[7:], reset[7:] & False)[1][:, 1], atol=1e-6
    )
    slope = jax.grad(lambda x: jnp.sum(jnp.square(module.apply(params, carry, x, reset)[1][9, 1])))
    influence = np.abs(slope(x)).sum(-1)
    assert (influence[7:10, 1] > 0).all()
    assert not influence[:7].any()
    assert not influence[:, [0, 2]].any()


@pytest.mark.long_but(6)
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_number_that_is_not_finite_ends_with_its_episode(platform: str, module: Any) -> None:
    """In a sequence and step by step: outputs, memory and gradients are those of a fresh one."""
    params, carry, x, _ = example(module, 34, 2)
    bad = x.at[3, 0, 0].set(jnp.nan).at[4, 0, 1].set(jnp.inf)
    later, at_once = (jnp.zeros((34, 2), bool).at[t].set(True) for t in (7, 0))
    with compiling_for(platform):
        apply = jax.jit(module.apply)
        slope = jax.jit(jax.grad(lambda p, c: jnp.sum(module.apply(p, c, x, at_once)[1])))
        outputs = apply(params, carry, bad, later)[1]
        assert not np.isfinite(outputs[4:7, 0]).any()
        np.testing.assert_array_equal(outputs[7:], apply(params, carry, x, later)[1][7:])
        ill, fresh = carry, module.initial_carry(2)
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
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cell", CELLS)
def test_a_recurrent_layer_is_flaxs_cell(cell: str) -> None:
    module = Recurrent(cell, size=6)
    params, carry, x, _ = example(module)
    (layer,) = params["params"].values()
    state = carry[0]
    for t in range(3):
        state, y = CELLS[cell](6).apply({"params": layer}, state, x[t])
    outputs = module.apply(params, carry, x, jnp.zeros((12, 3), bool))[1]
    np.testing.assert_allclose(outputs[2], y, rtol=1e-5, atol=1e-6)


def test_lru_is_its_equations_in_float64() -> None:
    module = LRU(size=6, state_size=5)
    variables, carry, x, reset = example(module)
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
    "normalize_observations": True,
    "standardize_advantages": "none",
    "actor_lr": 1e-2,
    "critic_lr": 1e-2,
    "num_minibatches": 2,
}


@functools.cache
def learning(cell: str, length: int, shared: bool = False, terminates: bool = False) -> Any:
    """A small system, its phases (each compiled once) and its state after an update."""
    settings = small_config(
        network=with_memory(cell, shared),
        system={**SETTINGS, "sequence_length": length},
        env__params={"terminates": terminates},
    )
    system, state = alone(*build(settings)[:2])
    phases = compiled(system)
    phases.start, phases.state = state, phases.update(state)[0]
    return phases


def rollout_of(case: Any, state: LearnerState | None = None) -> tuple[LearnerState, Rollout, Batch]:
    """A fresh rollout and its batch."""
    state, rollout = collect(case, case.state if state is None else state)
    return state, rollout, batch_of(case, state.agent, rollout)


def batch_of(case: Any, agent: AgentState, rollout: Rollout) -> Batch:
    return add_targets(case, agent, rollout)[1]


def moved(agent: AgentState) -> AgentState:
    """The agent with other parameters."""
    params = jax.tree.map(lambda x: x * 1.1, agent.policy.params)
    return dataclasses.replace(agent, policy=dataclasses.replace(agent.policy, params=params))


def equal(one: Any, other: Any, **tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


WHOLE, CUT, SHARED = ("lstm", T), ("lru", 2), ("gru", 2, True)
WINDOW = ("gtrxl", 4)


@pytest.mark.long
@pytest.mark.parametrize("of", [WHOLE, CUT, WINDOW, pytest.param(SHARED, marks=pytest.mark.slow)])
def test_first_minibatch_ratio_is_one_after_several_updates(of: Any) -> None:
    """Episodes of five steps in rollouts of eight: rollouts open and sequences begin within one."""
    case = learning(*of)
    state = case.state
    for _ in range(3):
        state, _ = case.update(state)
    state, rollout, batch = rollout_of(case, state)
    steps = rollout.steps
    assert steps.reset[1:].any()
    assert not steps.reset[0].any()
    assert any(np.abs(x[0]).max() > 0.01 for x in jax.tree.leaves(steps.carry))
    _, losses = case.loss(state.agent, state.agent.policy.params, batch)
    assert losses.approximate_kl < 1e-8
    np.testing.assert_allclose([losses.ratio_min, losses.ratio_max], 1.0, atol=1e-3)
    # Another carry would be noticed.
    for wrong in (lambda x: jnp.roll(x, -1, 0), lambda x: jnp.roll(x, 1, 1), jnp.zeros_like):
        carry = sequences.first(jax.tree.map(wrong, steps.carry), case.system.sequence_length)
        other = dataclasses.replace(batch, carry=carry)
        _, losses = case.loss(state.agent, state.agent.policy.params, other)
        assert losses.approximate_kl > 1e-7


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(WHOLE, marks=pytest.mark.long),
        CUT,
        pytest.param(WINDOW, marks=pytest.mark.long),
    ],
)
def test_stored_carry_is_the_one_before_the_step(of: Any) -> None:
    case = learning(*of)
    after, rollout = case.collect(case.state.agent, case.state.acting)
    carry, steps = case.state.acting.carry, rollout.steps
    for t in range(T):
        equal(jax.tree.map(lambda x, t=t: x[t], steps.carry), carry, rtol=1e-4, atol=1e-5)
        obs, reset = steps.obs[t : t + 1], steps.reset[t : t + 1]
        carry = case.unroll(case.state.agent.policy, carry, obs, reset)[0]
    equal(after.carry, carry, rtol=1e-4, atol=1e-5)
    equal(rollout.carry, carry, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("of", [WHOLE, CUT, WINDOW, (*SHARED, True)])
def test_targets_equal_an_oracle_that_remembers_step_by_step(of: Any) -> None:
    """The successor of a truncated step is seen with the memory after that step."""
    case = learning(*of)
    carry, policy, stays = case.state.acting.carry, case.state.agent.policy, jnp.zeros((1, B), bool)
    _, rollout, batch = rollout_of(case)
    steps, values, successors = rollout.steps, [], []
    for t in range(T):
        obs, reset = steps.obs[t : t + 1], steps.reset[t : t + 1]
        carry, output = case.unroll(policy, carry, obs, reset)
        values.append(output.value.mean()[0])
        final = steps.final_observation[t : t + 1]
        successors.append(case.unroll(policy, carry, final, stays)[1].value.mean()[0])
    advantage, target = oracles.gae(
        np.asarray(steps.reward),
        np.stack(values),
        np.stack(successors),
        np.asarray(steps.terminated),
        np.asarray(steps.truncated),
        gamma=0.99,
        gae_lambda=0.95,
    )
    assert steps.truncated.sum() == 2 * B
    expected = sequences.cut((advantage, target), case.system.sequence_length)
    np.testing.assert_allclose(batch.steps.advantage, expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.steps.target, expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("cell", ["lstm", "lru", "gtrxl"])
def test_an_earlier_episode_changes_nothing_of_a_later_one(cell: str) -> None:
    """Its observations and the carry before it are perturbed; losses and gradients are of after."""
    case = learning(cell, T)
    state, rollout, batch = rollout_of(case)
    opening = int(np.flatnonzero(np.asarray(rollout.steps.reset)[:, 0])[0])
    assert 0 < opening < T - 1

    @jax.jit
    def later(params: Any, batch: Any) -> Any:
        policy, steps = dataclasses.replace(state.agent.policy, params=params), batch.steps
        _, output = case.unroll(policy, batch.carry, steps.obs, steps.reset)
        said = output.distribution.log_prob(steps.action) + output.value.mean()
        return jnp.sum(jnp.square(said[opening:])), said

    other = with_steps(batch, obs=batch.steps.obs.at[:opening].add(3.0))
    other = dataclasses.replace(other, carry=jax.tree.map(lambda x: x + 1.0, batch.carry))
    slope = jax.jit(jax.value_and_grad(later, has_aux=True))
    (one, before), gradients = slope(state.agent.policy.params, batch)
    (two, after), other_gradients = slope(state.agent.policy.params, other)
    assert not np.allclose(before[:opening], after[:opening])
    np.testing.assert_allclose(one, two, rtol=1e-6)
    equal(gradients, other_gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("cell", ["lstm", "lru", "gtrxl"])
def test_a_split_into_sequences_changes_the_truncated_gradient_alone(cell: str) -> None:
    cases = [learning(cell, length) for length in (T, 2)]
    state, rollout, whole = rollout_of(cases[0])
    batches = [whole, batch_of(cases[1], state.agent, rollout)]
    for name in ("advantage", "target", "value", "log_prob", "obs", "reset", "action"):
        cut = sequences.cut(getattr(whole.steps, name), 2)
        np.testing.assert_allclose(getattr(batches[1].steps, name), cut, rtol=1e-5, atol=1e-6)
    gradients, losses = zip(
        *(
            jax.jit(jax.grad(partial(case.loss, state.agent), has_aux=True))(
                state.agent.policy.params, batch
            )
            for case, batch in zip(cases, batches, strict=True)
        ),
        strict=True,
    )
    equal(*losses, rtol=1e-4, atol=1e-5)
    equal(*(g["critic_head"] for g in gradients), rtol=1e-3, atol=1e-4)
    memories = [
        np.concatenate([x.ravel() for x in jax.tree.leaves(g["critic_memory"])]) for g in gradients
    ]
    assert not np.allclose(*memories, rtol=1e-2, atol=1e-3)


class Nothing(nn.Module):
    """A memory of size zero."""

    @nn.nowrap
    def initial_carry(self, num: int) -> jax.Array:
        return jnp.zeros((num, 0))

    def __call__(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> Any:
        return carry, x


@pytest.mark.long
@pytest.mark.parametrize("length", [1, 4])
def test_a_memory_of_size_zero_is_feed_forward(small: Any, length: int) -> None:
    nothing = {"_target_": "test_recurrent.Nothing"}
    trained = []
    for network in (NETWORK, {**NETWORK, "actor_memory": nothing, "critic_memory": nothing}):
        system, state = small(network=network, system__sequence_length=4)
        system = dataclasses.replace(system, sequence_length=length)
        update = jax.jit(partial(spine.update, system))
        for _ in range(2):
            state, metrics = update(state)
        trained.append((state.agent.policy.params, metrics))
    for one, other in zip(*map(jax.tree.leaves, trained), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
def test_minibatches_are_of_whole_sequences() -> None:
    case = learning(*SHARED)
    _, rollout, batch = rollout_of(case)
    assert batch.steps.obs.shape[:2] == (2, 4 * B)
    chosen = select(
        case.system, (), batch, jnp.array([1, 6])
    )  # environment 1 from 0, 2 from step 2 on
    steps = rollout.steps
    np.testing.assert_array_equal(chosen.steps.obs[:, 0], steps.obs[:2, 1])
    np.testing.assert_array_equal(chosen.steps.obs[:, 1], steps.obs[2:4, 2])
    expected = jax.tree.map(lambda x: jnp.stack([x[0, 1], x[2, 2]]), steps.carry)
    for one, other in zip(*map(jax.tree.leaves, (chosen.carry, expected)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_burn_in_brings_the_carry_up_to_date_and_is_not_learnt_from() -> None:
    case = learning(*WHOLE)
    burning = compiled(dataclasses.replace(case.system, burn_in=3))
    state, _, batch = rollout_of(case)
    agent = moved(state.agent)
    left = burning.burn_in(agent, batch)
    steps = batch.steps
    carry, _ = case.unroll(agent.policy, batch.carry, steps.obs[:3], steps.reset[:3])
    equal(left.carry, carry, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(left.steps.obs, steps.obs[3:])
    np.testing.assert_array_equal(left.steps.advantage, steps.advantage[3:])
    everything = jnp.arange(B)
    learnt, metrics = burning.gradient_step(batch, agent, everything)
    by_hand, same_metrics = case.gradient_step(left, agent, everything)
    equal(learnt.policy.params, by_hand.policy.params, rtol=1e-4, atol=1e-5)
    equal(metrics, same_metrics, rtol=1e-4, atol=1e-5)
    other = with_steps(batch, advantage=steps.advantage.at[:3].add(9.0))
    equal(burning.gradient_step(other, agent, everything)[1], metrics, rtol=1e-6)


@pytest.mark.parametrize("of", [WHOLE, CUT, pytest.param(WINDOW, marks=pytest.mark.long)])
def test_recomputed_carries_are_those_of_the_parameters(of: Any) -> None:
    """Of the acting parameters they are the stored ones; of others, what these would have had."""
    case = learning(*of)
    state, rollout, _ = rollout_of(case)
    steps = rollout.steps
    same_last, carries = case.recompute_carries(state.agent, rollout, 1)
    equal(carries, steps.carry, rtol=1e-4, atol=1e-5)
    equal(same_last, state.acting.carry, rtol=1e-4, atol=1e-5)
    other = moved(state.agent)
    last, carries = case.recompute_carries(other, rollout, 1)
    carry = jax.tree.map(lambda x: x[0], steps.carry)
    for t in range(T):
        equal(jax.tree.map(lambda x, t=t: x[t], carries), carry, rtol=1e-4, atol=1e-5)
        obs, reset = steps.obs[t : t + 1], steps.reset[t : t + 1]
        carry = case.unroll(other.policy, carry, obs, reset)[0]
    equal(last, carry, rtol=1e-4, atol=1e-5)
    last, every_fourth = case.recompute_carries(other, rollout, 4)
    equal(every_fourth, jax.tree.map(lambda x: x[::4], carries), rtol=1e-4, atol=1e-5)
    equal(last, carry, rtol=1e-4, atol=1e-5)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("carries, targets", [(True, True), (True, False), (False, True)])
def test_an_epoch_reads_what_the_parameters_remember_now(carries: bool, targets: bool) -> None:
    """Recomputed targets do, after truncated steps too; minibatches begin with it if told to."""
    case = learning(*SHARED)
    changed = compiled(
        dataclasses.replace(case.system, recompute_carries=carries, recompute_targets=targets)
    )
    state, rollout, batch = rollout_of(case)
    agent = moved(state.agent)
    last, remembered = case.recompute_carries(agent, rollout, 1)
    steps = dataclasses.replace(rollout.steps, carry=remembered)
    fresh = dataclasses.replace(rollout, carry=last, steps=steps)
    wanted = (batch_of(case, agent, fresh) if targets else batch).steps
    stale = batch_of(case, agent, rollout).steps
    assert not np.allclose(wanted.advantage, stale.advantage, rtol=1e-3)
    carry = sequences.first(remembered, 2) if carries else batch.carry
    found = changed.refresh_batch(rollout, agent, batch)
    equal(found.carry, carry, rtol=1e-4, atol=1e-4)
    of_targets = found.steps.advantage, found.steps.target
    equal(of_targets, (wanted.advantage, wanted.target), rtol=1e-4, atol=1e-4)
    stays = with_steps(found, advantage=batch.steps.advantage, target=batch.steps.target)
    equal(stays.steps, batch.steps, rtol=0.0)  # the acting policy is what it was


def test_an_epoch_after_the_end_recomputes_nothing() -> None:
    case = learning(*SHARED)
    system = dataclasses.replace(case.system, recompute_carries=True, stop_early=True)
    changed = compiled(system)
    state, rollout, batch = rollout_of(case)
    agent = moved(state.agent)
    fresh = changed.refresh_batch(rollout, agent, batch).carry

    def look(stopped: bool) -> Any:
        """The batch of an epoch of `guards.until_stopped`."""

        def one(step: Any, refresh: Any, _: Any) -> Any:
            return (agent, None), refresh((agent, jnp.asarray(stopped)), batch)

        return guards.until_stopped(system, one, ())((), make_refresh(system, rollout), agent)[1]

    for stopped, carry in ((False, fresh), (True, batch.carry)):
        equal(look(stopped).carry, carry, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_the_critics_memory_learns_by_the_critics_rate() -> None:
    case = learning(*WHOLE)
    agent = with_hyperparameters(case.start.agent, critic_lr=jnp.zeros(()))
    after, _ = case.update(dataclasses.replace(case.start, agent=agent))
    for name, part in agent.policy.params.items():
        learnt = after.agent.policy.params[name]
        same = all(map(np.array_equal, jax.tree.leaves(part), jax.tree.leaves(learnt)))
        assert same == name.startswith("critic"), name


@pytest.mark.long
@pytest.mark.parametrize("cell", ["lstm", "lru", "gtrxl"])
def test_memories_compute_in_float32_between_torsos_that_do_not(cell: str) -> None:
    settings = small_config(
        network=with_memory(cell), arch__precision="bf16", system__sequence_length=T
    )
    network = build(settings)[0].algorithm.network
    params = network.init(jax.random.key(0))
    obs, reset = jnp.ones((T, B, 2)), jnp.zeros((T, B), bool)
    start = network.initial_carry(B)
    carry, _ = network.unroll(params, start, obs, reset)
    kinds = {x.dtype.name for x in jax.tree.leaves((start, carry))}
    own = {"lstm": {"float32"}, "lru": {"complex64"}, "gtrxl": {"float32", "int32"}}
    assert kinds == own[cell]
    found = products_by_type(network.unroll, params, start, obs, reset)
    assert found["bfloat16"] == 2  # of the two torsos


def test_evaluated_episodes_open_with_an_empty_memory() -> None:
    case = learning(*WHOLE)
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
    evaluate(watched, case.state.agent.policy, jax.random.split(jax.random.key(0), 3))
    jax.effects_barrier()
    assert len(seen) == 5
    assert all(np.asarray(reset).all() == (i == 0) for i, (_, reset) in enumerate(seen))
    remembers = [any(np.any(x) for x in jax.tree.leaves(carry)) for carry, _ in seen]
    assert remembers == [False, True, True, True, True]


@pytest.mark.long
def test_the_kl_of_an_update_is_of_what_was_learnt_from() -> None:
    """After burn-in: what the first steps would say of the policy does not move the penalty."""
    case = learning(*WHOLE)
    penalty = {"objective": "penalty", "adapt_kl_coef": True, "burn_in": 3}
    settings = small_config(
        network=with_memory("lstm"), system={**SETTINGS, "sequence_length": T, **penalty}
    )
    phases = compiled(alone(*build(settings)[:2])[0])
    state, rollout = collect(phases, case.state)
    batch = batch_of(phases, state.agent, rollout)
    factors = []
    for first, rest in ((0.0, 0.0), (5.0, 0.0), (0.0, 5.0)):
        logits = batch.steps.distribution.logits.at[:3, :, 0].add(first).at[3:, :, 0].add(rest)
        adapted, _ = phases.finish(state.agent, with_steps(batch, distribution=categorical(logits)))
        factors.append(float(adapted.algorithm_state.kl_factor))
    assert factors == [0.5, 0.5, 2.0]


class Sideways(Nothing):
    """A memory that does not look at how many episodes it remembers."""

    @nn.nowrap
    def initial_carry(self, num: int) -> jax.Array:
        return jnp.zeros((1, 2))

    def __call__(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> Any:
        return carry + jnp.sum(x[-1], -1, keepdims=True), x


class Last(Nothing):
    """A memory that gives its last step alone."""

    def __call__(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> Any:
        return carry, x[-1:]


class Deaf(Nothing):
    """A memory whose first carry takes no number."""

    @nn.nowrap
    def initial_carry(self) -> jax.Array:  # type: ignore[override]
        return jnp.zeros((1, 0))


class Growing(Nothing):
    """A memory whose carry is of another form after a step."""

    def __call__(self, carry: jax.Array, x: jax.Array, reset: jax.Array) -> Any:
        return jnp.zeros((carry.shape[0], 1)), x


@pytest.mark.parametrize(
    "target, words",
    [
        ("test_recurrent.Growing", "its carry is"),
        ("test_recurrent.Sideways", "its carry is"),
        ("test_recurrent.Deaf", "positional argument"),
        (f"{LAYERS}.torsos.MLP", "is no memory"),
    ],
)
def test_what_is_no_memory_is_refused_in_one_line(target: str, words: str) -> None:
    network = {**NETWORK, "actor_memory": {"_target_": target}}
    with pytest.raises(ConfigError, match=f"network.actor_memory.*{words}") as error:
        build(small_config(network=network, system__sequence_length=T))
    assert "\n" not in str(error.value)


def test_an_output_that_is_not_one_a_step_is_refused() -> None:
    network = {**NETWORK, "actor_memory": {"_target_": "test_recurrent.Last"}}
    with pytest.raises(ConfigError, match=r"network\.actor_head: gives shape"):
        build(small_config(network=network, system__sequence_length=T))
