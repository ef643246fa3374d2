"""Numbers that change over a run: schedules, adapted learning rates; and the optimisers."""

import dataclasses
import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import phases
import pytest
from conftest import build, small_config

from jaxppo.algorithms.optimizers import optimizer
from jaxppo.algorithms.ppo import PPO
from jaxppo.algorithms.schedules import scheduled
from jaxppo.config.fields import ConfigError
from jaxppo.config.plan import plan
from jaxppo.config.schema import OPTIMIZERS
from jaxppo.runtime.programs.build import program_key
from jaxppo.types import Hyperparameters

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


def update_of(system: Any, state: Any, **numbers: float) -> Any:
    """An update with other hyperparameters."""
    changes = {name: jnp.float32(x) for name, x in numbers.items()}
    agent = state.agent
    agent = dataclasses.replace(agent, hyperparameters=agent.hyperparameters.replace(**changes))
    return phases.compiled(system).update(dataclasses.replace(state, agent=agent))


def learnt(state: Any) -> list[np.ndarray]:
    """All that an update changes."""
    agent = state.agent
    return [np.asarray(x) for x in jax.tree.leaves((agent.policy.params, agent.opt_state))]


def test_an_update_learns_with_the_numbers_of_its_schedule(small: Any) -> None:
    """Bit for bit as with constants, also gamma in the returns that scale rewards."""
    plain, state = small(system__normalize_rewards=True, system__decay_learning_rates=False)
    forms = {"ent_coef": 0.5, "gamma": 0.5, "reward_scale": 3.0, "actor_lr": 0.0}
    schedules = {name: {"kind": "linear", "end": end} for name, end in forms.items()}
    system, begun = small(
        system__schedules=schedules,
        system__normalize_rewards=True,
        system__decay_learning_rates=False,
    )
    base = begun.agent.hyperparameters
    one = phases.compiled(system).update
    first, _ = one(begun)
    second, found = one(first)
    values = {n: 0.75 * float(getattr(base, n)) + 0.25 * end for n, end in forms.items()}
    wanted, _ = update_of(plain, update_of(plain, state)[0], **values)
    for x, y in zip(learnt(second), learnt(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)
    before = learnt(update_of(plain, update_of(plain, state)[0])[0])
    assert any(
        not np.allclose(x, y, rtol=1e-4) for x, y in zip(learnt(second), before, strict=True)
    )
    for name, value in values.items():
        assert float(found.learn.scheduled[f"scheduled_{name}"]) == pytest.approx(value)
    kept = second.agent.hyperparameters
    assert all(getattr(kept, name) == getattr(base, name) for name in forms)


def test_exploration_follows_a_schedule() -> None:
    settings = small_config(
        system={
            "algorithm": "pqn",
            "epsilon_fraction": 0.0,
            "epsilon_end": 0.8,
            "schedules": {"epsilon_end": {"end": 0.4}},
        },
        network={"actor_torso": None, "critic_torso": None, "critic_head": None},
    )
    system, state, _ = build(settings)
    system = dataclasses.replace(system, axes=())
    state = dataclasses.replace(
        state,
        agent=jax.tree.map(lambda x: x[0, 0], state.agent),
        acting=jax.tree.map(lambda x: x[0, 0, 0], state.acting),
    )
    one = phases.compiled(system).update
    state, first = one(state)
    _, second = one(state)
    epsilons = [float(found.learn.finish.epsilon) for found in (first, second)]
    np.testing.assert_allclose(epsilons, [0.8, 0.7], rtol=1e-6)


def test_a_number_that_follows_another_follows_its_schedule(small: Any) -> None:
    schedules = {"clip_eps": {"end": 0.1}}
    system, state = small(system__schedules=schedules)
    hp = scheduled(system, dataclasses.replace(state.agent, update=jnp.int32(2))).hyperparameters
    np.testing.assert_allclose([hp.clip_eps, hp.clip_eps_high], [0.15, 0.15], rtol=1e-6)
    system, state = small(system__schedules=schedules, system__clip_eps_high=0.3)
    hp = scheduled(system, dataclasses.replace(state.agent, update=jnp.int32(2))).hyperparameters
    np.testing.assert_allclose([hp.clip_eps, hp.clip_eps_high], [0.15, 0.3], rtol=1e-6)


def test_ends_of_schedules_share_a_program() -> None:
    def key(end: float, kind: str = "linear") -> Any:
        return program_key(small_config(system__schedules={"gamma": {"kind": kind, "end": end}}))

    assert key(0.5) == key(0.7)
    assert key(0.5) != key(0.5, "cosine")


WRONG = [
    ({"ent_cof": {}}, "system.schedules.ent_cof: no number that can follow a schedule; did you"),
    ({"decay_learning_rates": {}}, "no number that can follow a schedule"),
    ({"gamma": 0.5}, "system.schedules.gamma=0.5: must hold keys"),
    ({"gamma": {"kind": "line"}}, "did you mean linear?"),
    ({"gamma": {"stop": 1}}, "system.schedules.gamma.stop: no such key; did you mean"),
    ({"gamma": {"end": 1.5}}, "system.schedules.gamma.end=1.5: must be at least 0 and at most 1"),
    ({"clip_eps": {}}, "system.schedules.clip_eps: needs an end, as end=0.0: must be above 0"),
    ({"gamma": {"end": 0.9, "warmup": 0.5}}, "gamma.warmup: has no effect with kind=linear"),
    ({"gamma": {"kind": "constant", "end": 0.9}}, "gamma.end: has no effect with kind=constant"),
    ({"gamma": {"share": 0.0}}, "system.schedules.gamma.share=0.0: must be above 0"),
    ({"reward_clip": {"end": 1.0}}, "system.reward_clip=inf is its start"),
    ({"ent_coef": {"kind": "exponential"}}, "exponential needs a start and an end above zero"),
    ({"ent_coef": {"kind": "warmup_linear", "share": 0.05}}, "must be below share=0.05"),
    ({"clip_eps": {"kind": "warmup_linear", "end": 0.1}}, "starts at 0, which system.clip_eps may"),
    ({"actor_lr": {"end": 0.0}}, "needs system.decay_learning_rates=false"),
]


@pytest.mark.parametrize(("schedules", "message"), WRONG, ids=[str(wrong) for wrong, _ in WRONG])
def test_wrong_schedules_are_named(schedules: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(small_config(system__schedules=schedules), 1)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# Learning rates adapted to the KL

ADAPTED = {"adapt_learning_rates": True, "decay_learning_rates": False}


@pytest.mark.parametrize(
    ("kl", "factor", "wanted"),
    [
        (0.021, 1.0, 1 / 1.5),
        (0.0199, 1.0, 1.0),
        (0.0051, 1.0, 1.0),
        (0.0049, 1.0, 1.5),
        (-0.001, 1.0, 1.5),  # an estimate may be below zero by rounding
        (1.0, 0.011, 0.01),  # lr_min = 1e-5 for actor_lr = 1e-3
        (0.0, 9.0, 10.0),  # lr_max = 1e-2
        (math.nan, 2.0, 2.0),
    ],
)
def test_rule_of_adapted_rates(small: Any, kl: float, factor: float, wanted: float) -> None:
    system, state = small(system=ADAPTED)
    algorithm: PPO = system.algorithm
    of_state = dataclasses.replace(state.agent.algorithm_state, rate_factor=jnp.float32(factor))
    agent = dataclasses.replace(state.agent, algorithm_state=of_state)
    metrics: Any = types.SimpleNamespace(approximate_kl=jnp.float32(kl))
    agent = algorithm.adapt(agent, metrics)
    np.testing.assert_allclose(agent.algorithm_state.rate_factor, wanted, rtol=1e-6)
    rates = algorithm.rates(agent)
    np.testing.assert_allclose(rates["actor"], 1e-3 * wanted, rtol=1e-6)
    np.testing.assert_allclose(rates["critic"], 1e-3 * wanted, rtol=1e-6)


def test_adapted_rates_stay_in_their_bounds_with_the_factor_of_another_member(small: Any) -> None:
    """Selection copies the factor, and changes `actor_lr`; so may a resume."""
    system, state = small(system=ADAPTED)
    for factor, wanted in ((100.0, 1e-2), (1e-4, 1e-5)):
        of_state = dataclasses.replace(state.agent.algorithm_state, rate_factor=jnp.float32(factor))
        rates = system.algorithm.rates(dataclasses.replace(state.agent, algorithm_state=of_state))
        np.testing.assert_allclose(rates["actor"], wanted, rtol=1e-6)
        np.testing.assert_allclose(rates["critic"], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "more", [{}, {"target_kl": 1e6}], ids=["plain", "with epochs that may end"]
)
def test_every_gradient_step_adapts_the_rates(small: Any, more: dict[str, Any]) -> None:
    """With a target that no KL reaches, 8 steps multiply the rates by 1.5 each."""
    system, state = small(system={**ADAPTED, **more, "lr_kl_target": 1e3, "lr_max": 1e6})
    after, found = phases.compiled(system).update(state)
    np.testing.assert_allclose(after.agent.algorithm_state.rate_factor, 1.5**8, rtol=1e-5)
    np.testing.assert_allclose(found.learn.learning_rate, 1e-3 * 1.5**8, rtol=1e-5)
    again, _ = phases.compiled(system).update(after)
    np.testing.assert_allclose(again.agent.algorithm_state.rate_factor, 1.5**16, rtol=1e-5)


@pytest.mark.parametrize("target", [1e-9, 10.0])
def test_the_minibatch_that_ends_the_epochs_lowers_the_rates(small: Any, target: float) -> None:
    """Otherwise rates could only rise, if its KL is too large or too small by the other rule."""
    changes = {"target_kl": 1e-9, "lr_kl_target": target}
    system, state = small(system={**ADAPTED, **changes})
    after, found = phases.compiled(system).update(state)
    steps = int(found.learn.gradient_steps)
    assert 0 < steps < 8  # the first has no KL yet
    np.testing.assert_allclose(
        after.agent.algorithm_state.rate_factor, 1.5 ** (steps - 1), rtol=1e-5
    )


def test_adapted_rates_scale_the_steps(small: Any) -> None:
    """With a factor of zero change, an adapted run is a plain one bit for bit."""
    system, state = small(system={**ADAPTED, "lr_factor": 1.0})
    plain, begun = small(system={"decay_learning_rates": False})
    for x, y in zip(
        learnt(phases.compiled(system).update(state)[0]),
        learnt(phases.compiled(plain).update(begun)[0]),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)
    halved = dataclasses.replace(state.agent.algorithm_state, rate_factor=jnp.float32(0.5))
    agent = dataclasses.replace(state.agent, algorithm_state=halved)
    slower, _ = phases.compiled(system).update(dataclasses.replace(state, agent=agent))
    other, _ = update_of(plain, begun, actor_lr=5e-4, critic_lr=5e-4)
    for x, y in zip(learnt(slower), learnt(other), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_step_is_taken_with_the_rates_that_its_minibatch_gave(small: Any) -> None:
    """The first minibatch raises them to their maximum, so all steps are those of a plain run."""
    low, high = 2.0**-10, 1.5 * 2.0**-10  # whose ratio is exact
    rates = {"actor_lr": low, "critic_lr": low, "lr_max": high, "lr_kl_target": 1e3}
    system, state = small(system={**ADAPTED, **rates})
    plain, begun = small(system={"decay_learning_rates": False})
    adapted = phases.compiled(system).update(state)[0]
    fast, _ = update_of(plain, begun, actor_lr=high, critic_lr=high)
    for x, y in zip(learnt(adapted), learnt(fast), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapt_learning_rates": True}, "needs system.decay_learning_rates=false"),
        (
            {**ADAPTED, "actor_lr": 0.1},
            "must be between system.lr_min=1e-05 and system.lr_max=0.01",
        ),
        ({**ADAPTED, "lr_factor": 0.5}, "must be at least 1"),
        ({**ADAPTED, "epochs": 1, "num_minibatches": 1}, "with one gradient step an update"),
        (
            {**ADAPTED, "schedules": {"critic_lr": {"end": 1e-4}}},
            "system.schedules.critic_lr: system.adapt_learning_rates=true sets the rates",
        ),
    ],
)
def test_wrong_adaptations_are_named(changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(small_config(system=changes), 1)


# Optimisers

KWARGS: dict[str, Any] = {"adamw": {"weight_decay": 0.1}, "rmsprop": {"decay": 0.5}}


@pytest.mark.parametrize("name", [*OPTIMIZERS, "optax.adabelief"])
def test_optimisers_are_those_of_optax(small: Any, name: str) -> None:
    """Three steps of each, in both groups with their own rates, as optax's own function."""
    kwargs = KWARGS.get(name, {})
    changes = {"optimizer": name, "optimizer_kwargs": kwargs, "decay_learning_rates": False}
    system, state = small(system={**changes, "max_grad_norm": math.inf, "critic_lr": 1e-2})
    params = state.agent.policy.params
    rng = np.random.default_rng(0)
    gradient = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)
    labels = system.algorithm.groups(params)
    transform = optimizer(system, state.agent)
    found, opt_state = params, state.agent.opt_state
    for _ in range(3):
        change, opt_state = transform.update(gradient, opt_state, found)
        found = optax.apply_updates(found, change)
    make = getattr(optax.contrib if name == "muon" else optax, name.removeprefix("optax."))
    extra = {"eps": 1e-5} if name == "adam" else kwargs
    for part, group in labels.items():
        alone = make(learning_rate=1e-2 if group == "critic" else 1e-3, **extra)
        wanted, its_state = params[part], alone.init(params[part])
        for _ in range(3):
            change, its_state = alone.update(gradient[part], its_state, wanted)
            wanted = optax.apply_updates(wanted, change)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), found[part], wanted
        )


@pytest.mark.long_but(2)
@pytest.mark.parametrize("name", ["adamw", "rmsprop", "lion", "muon"])
def test_optimisers_run_over_members(name: str) -> None:
    """Two members with their own rates; the parameters stay finite and differ."""
    settings = small_config(system__optimizer=name)
    system, state, _ = build(settings)
    system = dataclasses.replace(system, axes=())
    one = jax.tree.map(lambda x: x[0, 0], state.agent)
    acting = jax.tree.map(lambda x: x[0, 0, 0], state.acting)

    def run(rate: jax.Array) -> Any:
        hp = one.hyperparameters.replace(actor_lr=rate)
        agent = dataclasses.replace(one, hyperparameters=hp)
        begun = dataclasses.replace(state, agent=agent, acting=acting)
        return phases.compiled(system).update(begun)[0].agent.policy.params

    found = jax.vmap(run)(jnp.asarray([1e-3, 1e-2]))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
    assert any((x[0] != x[1]).any() for x in jax.tree.leaves(found))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adamm"}, "did you mean adam?"),
        ({"optimizer": "optax.nothing"}, "module optax has no function nothing"),
        ({"optimizer_kwargs": {"beta": 1}}, "unexpected keyword argument 'beta'"),
        ({"optimizer": "math.sqrt"}, "it must give an optax.GradientTransformation"),
        ({"optimizer": "optax.lbfgs"}, "whose update takes gradients, state and parameters"),
    ],
)
def test_wrong_optimisers_are_named(small: Any, changes: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        small(system=changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
