"""Config -> System, and the first state of a run."""

import dataclasses
import hashlib
import math
import typing
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import devices, envs, pieces
from jaxppo.config import Config, ConfigError, LoggerConfig, Plan, SystemConfig, is_import_path
from jaxppo.distributions import ScalarValue
from jaxppo.learner import (
    BATCH_AXIS,
    MEMBER_AXIS,
    Metrics,
    init_acting,
    init_agent,
    zero_metrics,
)
from jaxppo.networks import heads
from jaxppo.networks.actor_critic import ACTOR, CRITIC, MEMORIES, SHARED, Composed, Network
from jaxppo.objectives import find_objective
from jaxppo.types import (
    ActingState,
    ActorCritic,
    Batch,
    Box,
    Environment,
    Hyperparameters,
    LearnerState,
    PyTree,
    System,
    is_space,
    zeros,
)

# Settings of `system` that are data of the program.
TRACED = [name for name in Hyperparameters.__dataclass_fields__ if name != "num_updates"]


def build(config: Config, plan: Plan) -> System:
    """The static part of a run; `ConfigError` where environment and network do not fit."""
    env = envs.make(config.env)
    max_eval_steps = config.arch.max_eval_steps or env.time_limit
    if max_eval_steps is None:
        raise ConfigError(
            f"arch.max_eval_steps=null: {env.name} has no time limit, so evaluation might not end; "
            "set it to a number of steps"
        )
    system, actor_critic = config.system, build_actor_critic(config, env)
    gradient_pieces, value_pieces = pieces.count(system.gradient_chunk, plan, actor_critic, env)
    built = System(
        env=env,
        actor_critic=actor_critic,
        num_envs=plan.num_envs,
        rollout_length=plan.rollout_length,
        sequence_length=plan.sequence_length,
        burn_in=system.burn_in,
        refresh_carries=system.refresh_carries,
        epochs=system.epochs,
        num_minibatches=system.num_minibatches,
        gradient_pieces=gradient_pieces,
        value_pieces=value_pieces,
        objective=find_objective(system.objective),
        advantages=system.advantages,
        value_loss=system.value_loss,
        standardize_advantages=system.standardize_advantages,
        recompute_advantages=system.recompute_advantages,
        adapt_kl_coef=system.adapt_kl_coef,
        stop_by_kl=math.isfinite(system.kl_stop),
        normalize_observations=system.normalize_observations,
        normalize_values=system.normalize_values,
        normalize_rewards=system.normalize_rewards,
        clip_value_loss=system.clip_value_loss,
        clip_together=system.clip_together,
        skip_nonfinite=config.arch.on_nonfinite == "skip",
        evaluation_greedy=config.arch.evaluation_greedy,
        max_eval_steps=max_eval_steps,
        axes=(
            *_if_several(BATCH_AXIS, plan.update_batch_size),
            *_if_several(devices.AXIS, plan.devices_per_member),
        ),
        member_axes=_if_several(MEMBER_AXIS, plan.members_per_device),
    )
    if is_import_path(system.objective):
        _try_objective(config, plan, built)
    return built


def _if_several(axis: str, size: int) -> tuple[str, ...]:
    """An axis that is mapped: where there is one alone, nothing is."""
    return (axis,) if size > 1 else ()


def _try_objective(config: Config, plan: Plan, built: System) -> None:
    """Trace the objective on a minibatch; `ConfigError` where it gives no loss for each step."""
    lead, path = (2, 3), config.system.objective  # L, M

    def objective(key: jax.Array) -> Any:
        agent = init_agent(built, hyperparameters(config, plan), key)
        obs, reset = zeros(built.env.observation_space, lead), jnp.ones(lead, bool)
        carry = built.actor_critic.initial_carry(lead[1])
        params, numbers = agent.policy.params, jnp.zeros(lead)
        _, distribution, _ = built.actor_critic.unroll(params, carry, obs, reset)
        action, log_prob = distribution.sample_and_log_prob(seed=key)
        batch = Batch(
            obs=obs,
            reset=reset,
            carry=carry,
            action=action,
            log_prob=log_prob,
            distribution=distribution,
            value=numbers,
            critic_value=numbers,
            advantage=numbers,
            target=numbers,
        )
        return built.objective(agent, batch, distribution, log_prob)

    try:
        loss = jax.eval_shape(objective, jax.random.key(0))
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(
            f"system.objective={path}: fails on a minibatch ({_brief(error)}); it is called as "
            "objective(agent, batch, distribution, log_prob)"
        ) from error
    if getattr(loss, "shape", None) != lead:
        raise ConfigError(
            f"system.objective={path}: gives {getattr(loss, 'shape', type(loss).__name__)} for "
            f"{lead} steps, where one loss a step is needed; let it not average"
        )


def build_actor_critic(config: Config, env: Environment) -> ActorCritic:
    """Compose the layers of `config.network` for the spaces of `env`; check that they take them."""
    layers = config.network
    for name in ("input_layer", "critic_head"):
        if not getattr(layers, name):
            raise ConfigError(
                f"network.{name}=null: every network needs one; see configs/network/mlp.yaml"
            )
    actor_head = layers.actor_head or {"_target_": f"{heads.__name__}.follow"}
    names = ("input_layer", *SHARED, *ACTOR, *CRITIC, "critic_head")
    settings = {name: getattr(layers, name) for name in names}
    parts: dict[str, Any] = {name: _layer(name, s) if s else None for name, s in settings.items()}
    for name in MEMORIES:
        if parts[name] is not None and not hasattr(parts[name], "initial_carry"):
            raise ConfigError(
                f"network.{name} ({settings[name]['_target_']}): is no memory, since it has no "
                "initial_carry; choose one of configs/network/memory, or null"
            )
    network = Network(
        **parts,
        actor_head=_layer("actor_head", actor_head, action_space=env.action_space),
        dtype=_DTYPES[config.arch.precision],
    )
    actor_critic = Composed(
        network, env.observation_space, env.action_space, _action_mask(config, env)
    )
    _try_out(config, env, actor_critic)
    return actor_critic


_DTYPES = {"float32": jnp.float32, "bf16": jnp.bfloat16}


def _action_mask(config: Config, env: Environment) -> str | None:
    """The entry of the observation that masks actions, if it has it."""
    key, space = config.env.action_mask, env.observation_space
    if key is None or not isinstance(space, dict) or key not in space:
        return None
    leaves = jax.tree.leaves(space[key], is_leaf=is_space)
    if not all(isinstance(x, Box) and x.dtype.startswith(("bool", "int", "uint")) for x in leaves):
        raise ConfigError(
            f"env.action_mask={key}: is {space[key]} in the observation of {env.name}; a mask "
            "holds booleans or integers; null: it is none"
        )
    if len(space) == 1:
        raise ConfigError(
            f"env.action_mask={key}: is all that {env.name} shows; add another entry to the "
            "observation, or env.extras=[step]"
        )
    return key


def _try_out(config: Config, env: Environment, actor_critic: Composed) -> None:
    """Trace a short unroll; `ConfigError` where layers and spaces do not fit."""
    lead = (2, 3)  # L, S

    def unroll(key: jax.Array) -> Any:
        params = actor_critic.init(key)
        _, obs = env.reset(key[None])
        obs = jax.tree.map(lambda x: jnp.broadcast_to(x, (*lead, *x.shape[1:])), obs)
        carry = actor_critic.initial_carry(lead[1])
        after, distribution, estimate = actor_critic.unroll(
            params, carry, obs, jnp.ones(lead, bool)
        )
        raw, log_prob = distribution.sample_and_log_prob(seed=key)
        outputs = distribution.to_action(raw), log_prob, estimate.mean(), estimate
        return *outputs, carry, after, actor_critic.empty_masks(obs)

    try:
        action, log_prob, value, estimate, carry, after, _ = jax.eval_shape(
            unroll, jax.random.key(0)
        )
    except Exception as error:  # a user's layer may raise anything on shapes it does not take
        name = _culprit(actor_critic)
        target = (getattr(config.network, name) or {}).get("_target_", name)
        raise ConfigError(
            f"network.{name} ({target}): does not fit {env.name}, whose observation is "
            f"{_form(env.observation_space)}: {_brief(error)}; choose another, or network=mlp, "
            "which takes any observation"
        ) from error
    for name, output in (("actor_head", log_prob), ("critic_head", value)):
        if output.shape != lead:
            raise ConfigError(
                f"network.{name}: gives shape {output.shape} of {lead} steps where one number a "
                "step is needed; choose a head that does"
            )
    for name in carry:
        before, then = (
            jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", c[name]) for c in (carry, after)
        )
        if (jax.tree.structure(before), before) != (jax.tree.structure(then), then):
            raise ConfigError(
                f"network.{name}: its carry is {before} for {lead[1]} episodes at first and {then} "
                "later; let initial_carry give what a call gives"
            )
    wanted = jax.eval_shape(lambda: zeros(env.action_space, lead))
    if jax.tree.map(jnp.shape, action) != jax.tree.map(jnp.shape, wanted):
        raise ConfigError(
            f"network.actor_head: gives actions {jax.tree.map(jnp.shape, action)} where "
            f"{env.name} takes {env.action_space}; network/actor_head=auto follows it"
        )
    if not isinstance(estimate, ScalarValue):
        for key in ("clip_value_loss", "value_loss"):
            value = getattr(config.system, key)
            if value not in (False, "squared"):
                raise ConfigError(
                    f"system.{key}={str(value).lower()}: is of scalar values; a critic head that "
                    "predicts a distribution has a loss of its own; network/critic_head=scalar"
                )


def _culprit(actor_critic: Composed) -> str:
    """The first layer that does not take what comes before it."""
    network = actor_critic.network
    obs, mask = actor_critic.split(zeros(actor_critic.observation_space, (1, 1)))
    reset = jnp.ones((1, 1), bool)

    def output(name: str, x: Any) -> Any:
        layer = getattr(network, name)
        if layer is None:
            return x

        def start(x: Any) -> Any:
            key = jax.random.key(0)
            if name in MEMORIES:
                _, features = layer.init_with_output(key, layer.initial_carry(1), x, reset)[0]
                return features
            masks = (mask,) if name == "actor_head" and mask is not None else ()
            return layer.init_with_output(key, x, *masks)[0]

        return jax.eval_shape(start, x)

    features = obs
    for path in (("input_layer", *SHARED), (*ACTOR, "actor_head"), (*CRITIC, "critic_head")):
        inner = features
        for name in path:
            try:
                inner = output(name, inner)
            except Exception:  # whatever it is, the caller has it
                return name
        if path[0] == "input_layer":
            features = inner
    return "input_layer"


def _form(space: PyTree) -> PyTree:
    """A space in short: shapes and data types."""
    return jax.tree.map(
        lambda s: f"{s.dtype}{list(s.shape)}" if isinstance(s, Box) else s, space, is_leaf=is_space
    )


def _layer(name: str, settings: dict[str, Any], **arguments: Any) -> Any:
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    if "_target_" not in settings:
        raise ConfigError(
            f"network.{name}: has no _target_, the import path of a layer; see configs/network"
        )
    try:
        layer = instantiate({"_convert_": "all", "_partial_": True, **settings})
        return layer(**arguments)
    except (InstantiationException, TypeError, ValueError) as error:
        raise ConfigError(
            f"network.{name} ({settings['_target_']}): {_brief(error.__cause__ or error)}"
        ) from error


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def hyperparameters(config: Config, plan: Plan) -> Hyperparameters:
    """The traced numbers of a run, scalars."""
    numbers: Hyperparameters = jax.tree.map(lambda x: x[0], stacked_hyperparameters([config], plan))
    return numbers


def stacked_hyperparameters(members: Sequence[Config], plan: Plan) -> Hyperparameters:
    """The traced numbers of members, `[P]`."""

    def number(name: str, system: SystemConfig) -> float:
        if name == "clip_eps_high" and system.clip_eps_high is None:
            return system.clip_eps
        return float(getattr(system, name))

    return Hyperparameters(
        **{
            name: jnp.asarray([number(name, each.system) for each in members], jnp.float32)
            for name in TRACED
        },
        num_updates=jnp.full(len(members), plan.num_updates, jnp.int32),
    )


def program_key(config: Config) -> Config:
    """What shapes the program: runs of equal keys can be members of one."""
    neutral = {name: getattr(SystemConfig(), name) for name in TRACED}
    if math.isfinite(config.system.kl_stop):
        neutral["kl_stop"] = 1.0  # any number: that it may end an update's passes
    return dataclasses.replace(
        config,
        arch=dataclasses.replace(config.arch, seed=0, num_seeds=1, profile=None),
        system=dataclasses.replace(config.system, **neutral),
        logger=LoggerConfig(),
        resume=None,
        resume_allow=[],
        trust=[],
    )


def random_streams(seeds: Sequence[int]) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Keys `[P]` of the agent's initialisation, acting, evaluations and the absolute metric."""
    keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
    agent, acting, evaluation, absolute = jnp.moveaxis(
        jax.vmap(partial(jax.random.split, num=4))(keys), 1, 0
    )
    return agent, acting, evaluation, absolute


def init(system: System, members: Sequence[Config], plan: Plan) -> LearnerState:
    """The first state of members, where the program has it: `place` of `begin`."""
    return place(begin(system, members, plan), plan)


def begin(system: System, members: Sequence[Config], plan: Plan) -> LearnerState:
    """The first state of members: agents `[P, ...]`, acting `[P, D, U, ...]`.

    Each differs in seed and hyperparameters, and begins as it would alone. `D` are the devices of
    one member, which is 1 where each device has members of its own.
    """
    agent_keys, acting_keys, _, _ = random_streams([m.arch.seed for m in members])
    grid = (plan.devices_per_member, plan.update_batch_size)

    def start(member: tuple[Hyperparameters, jax.Array, jax.Array]) -> LearnerState:
        hp, agent_key, acting_key = member
        acting = jax.vmap(jax.vmap(partial(init_acting, system)))(
            jax.random.split(acting_key, grid)
        )
        return LearnerState(agent=init_agent(system, hp, agent_key), acting=acting)

    # Member by member: orthogonal initialisation of several at once (a batched QR decomposition)
    # blocks for ever on CPUs of few cores with jax 0.10.2.
    def one_by_one(members: PyTree) -> LearnerState:
        states: LearnerState = jax.tree.map(_strong, jax.lax.map(start, members))
        return states

    numbers = stacked_hyperparameters(members, plan)
    return jax.jit(one_by_one)((numbers, agent_keys, acting_keys))


def place(state: LearnerState, plan: Plan) -> LearnerState:
    """What `begin` gives, to agents `[D, P, ...]` and acting `[D, P, U, ...]` on their devices."""
    if plan.spreads_members:
        acting = place_agents(jax.tree.map(lambda x: x[:, 0], state.acting), plan)
    else:
        local = jax.local_devices()[: plan.num_devices]
        acting = devices.shard(jax.tree.map(lambda x: x.swapaxes(0, 1), state.acting), local)
    return LearnerState(agent=place_agents(state.agent, plan), acting=acting)


def no_metrics(plan: Plan) -> Metrics:
    """What the metrics of a block begin from, `[D, P]` where the program has them."""
    one: Metrics = jax.tree.map(lambda x: jnp.broadcast_to(x, (plan.num_members,)), zero_metrics())
    return place_agents(one, plan)


def place_agents(tree: PyTree, plan: Plan) -> PyTree:
    """Leaves `[P, ...]` of agents, or what belongs to them, where the program has them."""
    local = jax.local_devices()[: plan.num_devices]
    return devices.place(tree, local, spread=plan.spreads_members)


def gather(state: LearnerState, plan: Plan) -> LearnerState:
    """The inverse of `place`, in NumPy; keys of random streams are their data."""
    if plan.spreads_members:
        acting = jax.tree.map(lambda x: x[:, None], gather_agents(state.acting, plan))
    else:
        acting = jax.tree.map(lambda x: x.swapaxes(0, 1), devices.host(state.acting))
    return LearnerState(agent=gather_agents(state.agent, plan), acting=acting)


def gather_agents(tree: PyTree, plan: Plan) -> PyTree:
    """Of leaves `[D, P, ...]` of agents or their policies: `[P, ...]`, as `gather` does."""
    if plan.spreads_members:
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), devices.host(tree))
    return jax.tree.map(lambda x: x[0], devices.host(tree))


def spread_anew(acting: ActingState, plan: Plan) -> ActingState:
    """Environments `[P, D, U, ...]` on another number of devices, in their order.

    Each device and update batch gets a random stream that no other has, and none had before.
    """
    shards = (plan.devices_per_member, plan.update_batch_size)

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], *shards, -1, *x.shape[4:])

    key, numbers = acting.key[:, 0, 0], jnp.arange(math.prod(shards))
    keys = jax.vmap(lambda k: jax.vmap(partial(jax.random.fold_in, k))(numbers))(key)
    without = dataclasses.replace(acting, key=None)  # type: ignore[arg-type]
    return dataclasses.replace(jax.tree.map(split, without), key=keys.reshape(-1, *shards))


def plain(config: Config) -> dict[str, Any]:
    """Containers that JSON and YAML have words for, and `parse` takes."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [one(inner) for inner in value]
        return str(value) if isinstance(value, float) and math.isinf(value) else value

    return typing.cast(dict[str, Any], one(dataclasses.asdict(config)))


def keep_config(config: Config, folder: Path) -> None:
    """Write config.yaml, of which `read_config` is the inverse, whole or not at all."""
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml(OmegaConf.create(plain(config)))
    partial_file = folder / f"{CONFIG}.partial"
    partial_file.write_text(f"{_SEAL}{_digest(text)}\n{text}", "utf-8")
    partial_file.replace(folder / CONFIG)


_SEAL = "# SHA-256 of the lines below: "


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of a run in plain containers; nothing in them is looked up or called.

    `ConfigError` where the file is not as it was written.
    """
    from omegaconf import OmegaConf

    file = folder / CONFIG
    try:
        seal, _, text = file.read_text("utf-8").partition("\n")
        if seal != f"{_SEAL}{_digest(text)}":
            raise ConfigError(
                f"{file}: is not as the run wrote it (SHA-256 differs); put that in its place. "
                "Settings change on the command line, with resume_allow=[...]"
            )
        found = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({_brief(error)})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: holds no settings of a run")
    return typing.cast(dict[str, Any], found)


CONFIG = "config.yaml"
TRUSTED = ("jaxppo.envs", "jaxppo.networks", "flax.linen", "optax", "gymnax")


def check_trust(config: Config, trust: Sequence[str]) -> None:
    """`ConfigError` where settings name something to import that is not within `trust`.

    For settings that come with a run, perhaps of a stranger. A path is looked up only where its
    beginning is trusted, and what it leads to has to come from there too: not from a module that
    a trusted one has imported. Of this project and its libraries it has to be a class, since a
    function may do anything with the arguments that it is given.
    """
    allowed = (*TRUSTED, *trust)
    settings = dataclasses.asdict(config)
    for key, value in _texts(settings):
        if "${" in value:
            raise ConfigError(f"{key}={value}: a stored run looks nothing up; write the value")
    for key, path in _named(settings):
        if not (_within(path, allowed) and (key == "env.module" or _is_what_it_says(path, trust))):
            raise ConfigError(
                f"{key}={path}: is not among what a stored run may name (classes of "
                f"{', '.join(allowed)}); if you trust it, add trust=[{path.partition('.')[0]}]"
            )


def _within(path: str, allowed: Sequence[str]) -> bool:
    return any(f"{path}.".startswith(f"{prefix.rstrip('.')}.") for prefix in allowed)


def _is_what_it_says(path: str, trust: Sequence[str]) -> bool:
    """Whether a path leads to what was defined under a trusted one."""
    from hydra.utils import get_object

    try:
        found = get_object(path)
        home = f"{found.__module__}.{found.__qualname__}"
    except Exception:  # whatever an import raises
        return False
    if _within(path, trust) and _within(home, (*TRUSTED, *trust)):
        return True
    return _within(home, TRUSTED) and (isinstance(found, type) or path in _FUNCTIONS)


_PATHS = ("env.target", "env.module", "system.objective")
_FUNCTIONS = (f"{heads.__name__}.follow",)  # that make a layer


def _named(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every import path in settings, by its key."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            inner = f"{key}.{name}".lstrip(".")
            if name == "_target_" or inner in _PATHS:
                if value is not None and (inner != "system.objective" or is_import_path(value)):
                    yield inner, str(value)
            else:
                yield from _named(value, inner)
    elif isinstance(settings, list):
        for value in settings:
            yield from _named(value, key)


def _texts(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in settings, keys too, by its key."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            yield key, str(name)
            yield from _texts(value, f"{key}.{name}".lstrip("."))
    elif isinstance(settings, list):
        for value in settings:
            yield from _texts(value, key)
    elif isinstance(settings, str):
        yield key, settings


# Settings that say what this machine is to do, and not what the run is
LOCAL = (
    *("arch.compile_cache", "arch.profile", "logger.sinks"),
    *(f"logger.{name}" for name in LoggerConfig.__dataclass_fields__ if name.startswith("wandb")),
)


def with_local(stored: Config, here: Config) -> Config:
    """The settings of a stored run, but for those of `LOCAL`, which are as `here`."""
    for key in LOCAL:
        group, _, name = key.partition(".")
        section = dataclasses.replace(
            getattr(stored, group), **{name: getattr(getattr(here, group), name)}
        )
        stored = dataclasses.replace(stored, **{group: section})
    return stored


def _strong(x: jax.Array) -> jax.Array:
    """Without JAX's weak type, which the program's own outputs do not have."""
    return jax.lax.convert_element_type(x, x.dtype)
