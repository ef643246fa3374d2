"""Numbers that change over a run: schedules, adapted learning rates; and the optimisers."""

import dataclasses
import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import alone, build, refused, small_config
from phases import compiled, flat, given, noise_like, of_system, with_hyperparameters
from runs import pqn

from jaxppo.algorithms.optimizers import optimizer
from jaxppo.algorithms.schedules import begin_update, scheduled
from jaxppo.runtime.programs.build import program_key
from jaxppo.types import Hyperparameters, LearnerState

UPDATES = 40


def expected(kind: str, start: float, end: float, share: float, warmup: float, u: int) -> float:
    """The value at update `u`, in float64."""
    done = u / UPDATES
    p = min(done / share, 1.0)
    if kind == "constant":
        return start
    if kind == "linear":
        return (1 - p) * start + p * end
    if kind == "cosine":
        return end + (start - end) * math.cos(math.pi * p / 2) ** 2
    if kind == "exponential":
        return math.exp((1 - p) * math.log(start) + p * math.log(end))
    if done < warmup:
        return start * done / warmup
    q = min((done - warmup) / (share - warmup), 1.0)
    return (1 - q) * start + q * end


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "exponential", "warmup_linear"])
def test_values_of_every_kind(kind: str, share: float) -> None:
    system: Any = types.SimpleNamespace(schedules=(("ent_coef", kind),))
    hp = Hyperparameters(
        ent_coef=jnp.float32(0.3),
        num_updates=jnp.int32(UPDATES),
        schedule_ent_coef_end=jnp.float32(0.01),
        schedule_ent_coef_share=jnp.float32(share),
        schedule_ent_coef_warmup=jnp.float32(0.2),
    )

    @dataclasses.dataclass
    class Agent:
        hyperparameters: Any
        update: Any

    def at(update: jax.Array) -> jax.Array:
        agent: Any = Agent(hp, update)
        found: jax.Array = scheduled(system, agent).hyperparameters.ent_coef
        return found

    found = jax.vmap(at)(jnp.arange(UPDATES + 5))
    wanted = [expected(kind, 0.3, 0.01, share, 0.2, u) for u in range(UPDATES + 5)]
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-7)


def with_factor(state: LearnerState, factor: float) -> LearnerState:
    """The state with another factor of its adapted learning rates."""
    own = dataclasses.replace(state.agent.algorithm_state, rate_factor=jnp.float32(factor))
    return dataclasses.replace(state, agent=dataclasses.replace(state.agent, algorithm_state=own))


def learnt(state: Any) -> np.ndarray:
    """All that an update changes."""
    return flat((state.agent.policy.params, state.agent.opt_state))


@pytest.mark.long
def test_an_update_learns_with_the_numbers_of_its_schedule() -> None:
    """As with constants, also gamma in the returns that scale rewards."""
    plain, state = of_system(normalize_rewards=True, decay_learning_rates=False)
    ends = {"ent_coef": 0.5, "gamma": 0.5, "reward_scale": 3.0, "actor_lr": 0.0}
    schedules = {name: {"kind": "linear", "end": end} for name, end in ends.items()}
    system, begun, _ = build(
        small_config(
            system={"normalize_rewards": True, "decay_learning_rates": False},
            system__schedules=schedules,
        )
    )
    system, begun = alone(system, begun)
    base = begun.agent.hyperparameters
    update = compiled(system).update
    first, _ = update(begun)
    second, found = update(first)
    values = {n: 0.75 * float(getattr(base, n)) + 0.25 * end for n, end in ends.items()}
    once = plain.update(state)[0]
    wanted = learnt(plain.update(given(once, **values))[0])
    np.testing.assert_allclose(learnt(second), wanted, rtol=1e-6, atol=1e-7)
    assert not np.allclose(learnt(second), learnt(plain.update(once)[0]), rtol=1e-4)
    for name, value in values.items():
        assert float(found.learn.scheduled[f"scheduled_{name}"]) == pytest.approx(value)
        assert getattr(second.agent.hyperparameters, name) == getattr(base, name)


def test_exploration_follows_a_schedule() -> None:
    schedules = {"epsilon_end": {"end": 0.4}}
    settings = {"epsilon_fraction": 0.0, "epsilon_end": 0.8, "schedules": schedules}
    system, state = alone(*build(pqn(system=settings))[:2])
    epsilons = [
        begin_update(
            system, dataclasses.replace(state.agent, update=jnp.int32(update))
        ).policy.exploration
        for update in (0, 1)
    ]
    np.testing.assert_allclose(epsilons, [0.8, 0.7], rtol=1e-6)


@pytest.mark.long
def test_a_number_that_follows_another_follows_its_schedule(small: Any) -> None:
    for changes, high in (({}, 0.15), ({"clip_eps_high": 0.3}, 0.3)):
        system, state = small(system={"schedules": {"clip_eps": {"end": 0.1}}, **changes})
        agent = dataclasses.replace(state.agent, update=jnp.int32(2))
        hp = scheduled(system, agent).hyperparameters
        np.testing.assert_allclose([hp.clip_eps, hp.clip_eps_high], [0.15, high], rtol=1e-6)


def test_ends_of_schedules_share_a_program() -> None:
    def key(end: float, kind: str = "linear") -> Any:
        return program_key(small_config(system__schedules={"gamma": {"kind": kind, "end": end}}))

    assert key(0.5) == key(0.7)
    assert key(0.5) != key(0.5, "cosine")


# Learning rates adapted to the KL

ADAPTED = {"adapt_learning_rates": True, "decay_learning_rates": False}


def test_rule_of_adapted_rates() -> None:
    phases, state = of_system(**ADAPTED)
    algorithm = phases.system.algorithm
    for kl, factor, wanted in (
        (0.021, 1.0, 1 / 1.5),
        (0.0199, 1.0, 1.0),
        (0.0051, 1.0, 1.0),
        (0.0049, 1.0, 1.5),
        (-0.001, 1.0, 1.5),  # an estimate may be below zero by rounding
        (1.0, 0.011, 0.01),  # lr_min = 1e-5 for actor_lr = 1e-3
        (0.0, 9.0, 10.0),  # lr_max = 1e-2
        (math.nan, 2.0, 2.0),
    ):
        metrics: Any = types.SimpleNamespace(approximate_kl=jnp.float32(kl))
        agent = algorithm.adapt(with_factor(state, factor).agent, metrics)
        np.testing.assert_allclose(agent.algorithm_state.rate_factor, wanted, rtol=1e-6)
        for rate in algorithm.rates(agent).values():
            np.testing.assert_allclose(rate, 1e-3 * wanted, rtol=1e-6)
    # Selection copies the factor of another member, and changes `actor_lr`; so may a resume
    for factor, wanted in ((100.0, 1e-2), (1e-4, 1e-5)):
        for rate in algorithm.rates(with_factor(state, factor).agent).values():
            np.testing.assert_allclose(rate, wanted, rtol=1e-6)


@pytest.mark.long
def test_every_gradient_step_adapts_the_rates() -> None:
    """With a target that no KL reaches, 8 steps multiply the rates by 1.5 each."""
    for changes in ({}, {"target_kl": 1e6}):  # also with epochs that may end
        phases, state = of_system(**ADAPTED, **changes)
        for update in (1, 2):
            state, found = phases.update(given(state, lr_kl_target=1e3, lr_max=1e6))
            factor = state.agent.algorithm_state.rate_factor
            np.testing.assert_allclose(factor, 1.5 ** (8 * update), rtol=1e-5)
            np.testing.assert_allclose(found.learn.learning_rate, 1e-3 * factor, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("target", [1e-9, 10.0])
def test_the_minibatch_that_ends_the_epochs_lowers_the_rates(target: float) -> None:
    """Otherwise rates could only rise, if its KL is too large or too small by the other rule."""
    phases, state = of_system(**ADAPTED, target_kl=1e6)
    after, found = phases.update(given(state, target_kl=1e-9, lr_kl_target=target))
    steps = int(found.learn.gradient_steps)
    assert 0 < steps < 8  # the first has no KL yet
    factor = after.agent.algorithm_state.rate_factor
    np.testing.assert_allclose(factor, 1.5 ** (steps - 1), rtol=1e-5)


@pytest.mark.long
def test_adapted_rates_scale_the_steps() -> None:
    """With a factor of no change, an adapted run is a plain one bit for bit."""
    adapted, state = of_system(**ADAPTED)
    plain, begun = of_system(decay_learning_rates=False)

    def pair(numbers: dict[str, float], factor: float, rate: float) -> list[np.ndarray]:
        rates = {"actor_lr": rate, "critic_lr": rate}
        one = adapted.update(with_factor(given(state, **numbers), factor))[0]
        return [learnt(one), learnt(plain.update(given(begun, **rates))[0])]

    np.testing.assert_array_equal(*pair({"lr_factor": 1.0}, 1.0, 1e-3))
    np.testing.assert_array_equal(*pair({"lr_factor": 1.0}, 0.5, 5e-4))
    # A step is taken with the rates that its minibatch gave: the first raises them to their maximum
    low, high = 2.0**-10, 1.5 * 2.0**-10  # whose ratio is exact
    rates = {"actor_lr": low, "critic_lr": low, "lr_max": high, "lr_kl_target": 1e3}
    np.testing.assert_array_equal(*pair(rates, 1.0, high))


# Optimisers

KWARGS: dict[str, Any] = {"adamw": {"weight_decay": 0.1}, "rmsprop": {"decay": 0.5}}


@pytest.mark.long
@pytest.mark.parametrize("name", ["adam", "rmsprop", "muon", "optax.adabelief"])
def test_optimisers_are_those_of_optax(name: str) -> None:
    """Three steps of each, in both groups with their own rates, as optax's own function."""
    kwargs = KWARGS.get(name, {})
    changes = {"optimizer": name, "optimizer_kwargs": kwargs, "decay_learning_rates": False}
    settings = small_config(system={**changes, "max_grad_norm": math.inf, "critic_lr": 1e-2})
    system, state = alone(*build(settings)[:2])
    params = state.agent.policy.params
    gradient = noise_like(params)

    def three_steps(transform: Any, part: Any, gradient: Any) -> Any:
        opt_state, step = transform.init(part), jax.jit(transform.update)
        for _ in range(3):
            change, opt_state = step(gradient, opt_state, part)
            part = jax.tree.map(jnp.add, part, change)
        return part

    found = three_steps(optimizer(system, state.agent), params, gradient)
    make = getattr(optax.contrib if name == "muon" else optax, name.removeprefix("optax."))
    extra = {"eps": 1e-5} if name == "adam" else kwargs
    labels = system.algorithm.groups(params)
    for group, rate in (("actor", 1e-3), ("critic", 1e-2)):
        own = [part for part, label in labels.items() if label == group]
        wanted = three_steps(
            make(learning_rate=rate, **extra),
            *({part: x[part] for part in own} for x in (params, gradient)),
        )
        for part in own:
            np.testing.assert_allclose(flat(found[part]), flat(wanted[part]), rtol=1e-5, atol=1e-7)


@pytest.mark.long
def test_numbers_of_adam_are_hyperparameters() -> None:
    """Members with other ones take the steps of optax's function with these."""
    settings = small_config(
        system={
            **{"optimizer": "adamw", "decay_learning_rates": False, "max_grad_norm": math.inf},
            **{"adam_b1": 0.9, "adam_b2": 0.99, "adam_eps": 1e-3},
        }
    )
    system, state = alone(*build(settings)[:2])
    params = state.agent.policy.params
    gradient = noise_like(params)
    rows = [(0.9, 0.99, 1e-3), (0.5, 0.9, 1e-1)]

    def steps(transform: Any) -> Any:
        part, opt_state = params, transform.init(params)
        for _ in range(3):
            change, opt_state = transform.update(gradient, opt_state, part)
            part = jax.tree.map(jnp.add, part, change)
        return part

    def run(b1: jax.Array, b2: jax.Array, eps: jax.Array) -> Any:
        numbers = {"adam_b1": b1, "adam_b2": b2, "adam_eps": eps}
        return steps(optimizer(system, with_hyperparameters(state.agent, **numbers)))

    found = jax.vmap(run)(*jnp.asarray(rows).T)
    for row, (b1, b2, eps) in enumerate(rows):
        wanted = steps(optax.adamw(1e-3, b1=b1, b2=b2, eps=eps))
        member = jax.tree.map(lambda x, row=row: x[row], found)
        np.testing.assert_allclose(flat(member), flat(wanted), rtol=1e-5, atol=1e-7)


# Mistakes

WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        ({"schedules": schedules}, f"system.schedules.{words}")
        for schedules, words in (
            ({"ent_cof": {}}, "ent_cof: .*did you mean"),
            ({"decay_learning_rates": {}}, "decay_learning_rates: no number"),
            ({"gamma": {"kind": "line"}}, "gamma.kind=line.*did you mean linear"),
            ({"gamma": {"end": 1.5}}, "gamma.end=1.5"),
            ({"clip_eps": {}}, "clip_eps.end=0.0: must be"),
            ({"gamma": {"end": 0.9, "warmup": 0.5}}, "gamma.warmup"),
            ({"reward_clip": {"end": 1.0}}, "reward_clip.*system.reward_clip=inf"),
            ({"ent_coef": {"kind": "exponential"}}, "ent_coef.*above zero"),
            ({"ent_coef": {"kind": "warmup_linear", "share": 0.05}}, "ent_coef.*share=0.05"),
            ({"clip_eps": {"kind": "warmup_linear", "end": 0.1}}, "clip_eps.*starts at 0"),
            ({"actor_lr": {"end": 0.0}}, "actor_lr.*decay_learning_rates=false"),
        )
    ),
    ({"adapt_learning_rates": True}, "system.decay_learning_rates=false"),
    ({**ADAPTED, "actor_lr": 0.1}, "system.lr_max=0.01"),
    ({**ADAPTED, "schedules": {"critic_lr": {"end": 1e-4}}}, "system.schedules.critic_lr"),
    ({"optimizer_kwargs": {"beta": 1}}, "optimizer_kwargs=.*'beta'"),
    ({"optimizer": "math.sqrt"}, "system.optimizer=math.sqrt"),
    ({"optimizer": "optax.lbfgs"}, "system.optimizer=optax.lbfgs"),
    ({"optimizer": "lion", "adam_b1": 0.9}, "system.adam_b1=0.9: .*adam"),
    ({"optimizer_kwargs": {"b2": 0.9}, "adam_b2": 0.9}, "system.adam_b2=0.9: .*optimizer_kwargs"),
]


@pytest.mark.parametrize("changes, key", WRONG, ids=[str(changes) for changes, _ in WRONG])
def test_mistakes_are_named_in_one_line(changes: dict[str, Any], key: str) -> None:
    with refused(key):
        build(small_config(system=changes))
