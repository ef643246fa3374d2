"""The YAML files against the dataclasses, and what `parse` and `plan` take and refuse."""

import dataclasses
import inspect
import re
import time
import typing
from typing import Any

import envs as small_envs
import jax
import jax.numpy as jnp
import pytest
from files import CONFIGS, commented, composed
from gymnax.environments import spaces
from hydra.utils import get_object
from omegaconf import OmegaConf

from jaxppo import envs
from jaxppo.algorithms.actor_critic import ActorCritic
from jaxppo.algorithms.metrics import NoMetrics
from jaxppo.algorithms.objectives import ESTIMATORS, OBJECTIVES, VALUE_LOSSES
from jaxppo.algorithms.ppo_settings import PPOSettings
from jaxppo.algorithms.pqn import PQNSettings
from jaxppo.config.fields import ConfigError, traced
from jaxppo.config.parse import (
    ELSEWHERE,
    RENAMED,
    algorithm_class,
    help_text,
    known_keys,
    parse,
    system_type,
    unknown_key,
)
from jaxppo.config.plan import plan
from jaxppo.config.schema import (
    ALGORITHMS,
    ArchConfig,
    CheckpointConfig,
    Config,
    EnvConfig,
    LoggerConfig,
    NetworkConfig,
    SystemConfig,
)
from jaxppo.launch.composing import compose as launched
from jaxppo.runtime.programs import compile
from jaxppo.runtime.programs.build import hyperparameters
from jaxppo.runtime.run.jobs import prepare
from jaxppo.types import Box

FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
HOMES = {  # the file that holds a group's defaults
    "arch/default.yaml": ArchConfig,
    "system/ppo.yaml": PPOSettings,
    "system/pqn.yaml": PQNSettings,
    "checkpoint/default.yaml": CheckpointConfig,
    "logger/default.yaml": LoggerConfig,
    "env/gymnax.yaml": EnvConfig,
}
NETWORKS = [file for file in FILES if re.fullmatch(r"network/\w+\.yaml", file)]
OF_IMAGES = ("cnn", "impala")  # networks that take nothing else
RECURRENT = (
    "gru",
    "gru_shared",
    "gtrxl",
    "gtrxl_shared",
    "lru",
    "lru_shared",
    "lstm",
    "lstm_shared",
)
LAYERS = [file for file in FILES if re.fullmatch(r"network/\w+/\w+\.yaml", file)]


def names(group: str) -> list[str]:
    """What `group=` offers."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls)}


@pytest.mark.parametrize("file, cls", HOMES.items(), ids=HOMES)
def test_file_holds_the_defaults(file: str, cls: Any) -> None:
    settings: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / file))
    defaults = dataclasses.asdict(cls())
    assert settings == defaults
    assert {k: type(x) for k, x in settings.items()} == {k: type(x) for k, x in defaults.items()}


@pytest.mark.parametrize("file, cls", HOMES.items(), ids=HOMES)
def test_file_explains_as_help_does(file: str, cls: Any) -> None:
    helps = {name: field.metadata["help"] for name, field in fields(cls).items()}
    assert dict(commented(file)) == helps


@pytest.mark.parametrize("file", NETWORKS)
def test_network_explains_as_help_does(file: str) -> None:
    comments = {key.split(".")[-1].split("@")[-1]: text for key, text in commented(file)}
    helps = {name: field.metadata["help"] for name, field in fields(NetworkConfig).items()}
    assert helps.items() >= {k: text for k, text in comments.items() if k in helps}.items()


@pytest.mark.parametrize("name", names("network"))
def test_network_sets_every_layer(name: str) -> None:
    assert set(composed(f"network={name}")["network"]) == set(fields(NetworkConfig))


@pytest.mark.parametrize("file", LAYERS)
def test_layer_offers_its_arguments_with_their_defaults(file: str) -> None:
    settings = typing.cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(CONFIGS / file)))
    parameters = inspect.signature(get_object(settings.pop("_target_"))).parameters
    given_later = {"action_space", "parent", "name"}  # by the composer, by flax
    assert set(settings) == set(parameters) - given_later
    if "cell" in settings:  # one class for five files
        assert settings.pop("cell") == file.rpartition("/")[2].removesuffix(".yaml")
    for key, value in settings.items():
        default = parameters[key].default
        if default is not inspect.Parameter.empty:
            assert value == (list(default) if isinstance(default, tuple) else default)


@pytest.mark.parametrize("file", FILES)
def test_every_key_has_a_comment(file: str) -> None:
    """Settings where they have their defaults; elsewhere `--help` knows them."""
    elsewhere = set(known_keys()) if file not in HOMES else set()
    unexplained = [
        key
        for key, comment in commented(file)
        if comment is None
        and key not in elsewhere
        and not key.startswith("defaults.")
        and not key.endswith("_target_")
    ]
    assert unexplained == []


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.startswith(("env/", "network/")) or "/" not in file]
)
def test_file_says_what_it_is(file: str) -> None:
    lines = (CONFIGS / file).read_text().splitlines()
    assert lines[0].removeprefix("# ") != lines[0]
    if lines[0] == "# @package _global_":
        assert re.fullmatch(r"# [A-Z].*\.", lines[1])


def shows_an_image(config: Config) -> bool:
    space = envs.make(config.env).observation_space
    return isinstance(space, Box) and len(space.shape) in (2, 3)


@pytest.mark.long
@pytest.mark.parametrize("env", names("env"))
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "mlp_shared" else name
        for name in names("network")
        if name not in RECURRENT
    ],
)
def test_choices_compose_and_fit(env: str, network: str) -> None:
    config = parse(composed(f"env={env}", f"network={network}"))
    if network in OF_IMAGES and not shows_an_image(config):
        with pytest.raises(ConfigError, match=r"network\.input_layer.*an image.*network=mlp"):
            prepare(config)
        return
    derived, system = prepare(config)
    assert system.env.name in (config.env.name, config.env.target)
    assert system.max_eval_steps > 0
    assert derived.total_steps >= (config.arch.total_timesteps or 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "env, network",
    [*(("t_maze", network) for network in RECURRENT), *((env, "gru") for env in names("env"))],
)
def test_memories_are_for_the_recurrent_executable(env: str, network: str) -> None:
    overrides = [f"env={env}", f"network={network}"]
    derived, system = prepare(parse(composed(*overrides, executable="rec_ppo")))
    assert derived.sequence_length == derived.rollout_length == system.sequence_length > 1
    names = ["shared_memory"] if "shared" in network else ["actor_memory", "critic_memory"]
    assert list(system.algorithm.network.initial_carry(1)) == names
    with pytest.raises(ConfigError) as refusal:
        prepare(parse(composed(*overrides)))
    (line,) = str(refusal.value).splitlines()
    for words in (f"network.{names[0]}", "jaxppo.rec_ppo", "network=mlp"):
        assert words in line


@pytest.mark.parametrize("env", ["cartpole", "breakout"])
def test_recurrent_executable_differs_in_network_and_sequences_alone(env: str) -> None:
    """Its network stays recurrent where an environment's file brings one of its own."""
    recurrent, plain = (composed(f"env={env}", executable=e) for e in ("rec_ppo", "ff_ppo"))
    assert recurrent.pop("network") == composed("network=lstm", executable="rec_ppo")["network"]
    assert (recurrent["system"].pop("sequence_length"), plain["system"].pop("sequence_length")) == (
        None, 1,
    )  # fmt: skip
    del plain["network"]
    assert recurrent == plain


@pytest.mark.long
@pytest.mark.parametrize("env", names("env"))
def test_environments_file_brings_a_network_that_fits(env: str) -> None:
    config = parse(composed(f"env={env}"))
    wanted = "cnn" if "MinAtar" in str(config.env.name) else "mlp"
    assert config.network == parse(composed(f"network={wanted}")).network


class Sight(small_envs.Copy):
    """`Copy` whose observation is a dict of what the example of network/input_layer=fuse takes."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, small_envs.State]:
        _, state = super().reset_env(key, params)
        return self.observation(state), state

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        _, state, reward, over, info = super().step_env(key, state, action, params)
        return self.observation(state), state, reward, over, info

    def observation(self, state: Any) -> dict[str, jax.Array]:
        vector = jax.nn.one_hot(state.value, self.num_values)
        return {"image": jnp.zeros((4, 5, 3), jnp.uint8), "vector": vector}

    def observation_space(self, params: Any) -> spaces.Dict:
        return spaces.Dict(
            {
                "image": spaces.Box(0, 255, (4, 5, 3), jnp.uint8),
                "vector": spaces.Box(0.0, 1.0, (self.num_values,)),
            }
        )


# Of each layer's file, an environment (and network) that it suits.
FITS = {
    "actor_head/auto": "env=pendulum",
    "actor_head/beta": "env=pendulum",
    "actor_head/categorical": "env=cartpole",
    "actor_head/multi_categorical": "env.name=null env.target=envs.Parts",
    "actor_head/normal": "env=pendulum",
    "actor_head/tanh_normal": "env=mountain_car_continuous",
    "critic_head/categorical": "env=cartpole",
    "critic_head/scalar": "env=cartpole",
    **dict.fromkeys(["q_head/categorical", "q_head/quantile", "q_head/scalar"], "env=cartpole"),
    "input_layer/concatenate": "env=cartpole env.extras=[step]",
    "input_layer/flatten": "env=cartpole",
    "input_layer/fuse": "env.name=null env.target=test_configs.Sight",
    "input_layer/image": "env=breakout",
    "input_layer/select": "env=cartpole env.extras=[step]",
    **dict.fromkeys(
        [
            f"memory/{name}"
            for name in ("gru", "gtrxl", "lru", "lstm", "mgu", "optimized_lstm", "simple")
        ],
        "env=cartpole network=lstm system.sequence_length=null",
    ),
    "torso/chain": "env=cartpole",
    "torso/cnn": "env=breakout",
    "torso/impala": "env=breakout network=impala",
    "torso/mlp": "env=cartpole network=mlp_shared",
    "torso/noisy_mlp": "env=cartpole network=mlp_shared",
}


@pytest.mark.long
@pytest.mark.parametrize("file", LAYERS)
def test_layer_builds_where_it_fits(file: str) -> None:
    kind, name = file.removeprefix("network/").removesuffix(".yaml").split("/")
    slot = {"torso": "shared_torso", "memory": "actor_memory"}.get(kind, kind)
    group = f"network/{kind}" if slot == kind else f"network/{kind}@network.{slot}"
    fits = FITS[f"{kind}/{name}"].split()
    if kind == "q_head":
        config = launched("ff_pqn", [*fits, f"network/q_head={name}"])
        assert "q_head" in jax.eval_shape(prepare(config)[1].algorithm.init, jax.random.key(0))
        return
    plain = composed(*fits)["network"]
    if plain[slot] is None:  # no default to override
        group = f"+{group}"
    config = parse(composed(*fits, f"{group}={name}"))
    settings = typing.cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(CONFIGS / file)))
    assert getattr(config.network, slot) == settings
    _, system = prepare(config)
    params = jax.eval_shape(system.algorithm.init, jax.random.key(0))
    assert {"actor_head", "critic_head"} <= set(params)


@pytest.mark.long_but(6)
@pytest.mark.parametrize("env", [name for name in names("env") if name != "gymnax"])
def test_environments_file_changes_known_settings(env: str) -> None:
    parse(composed(f"env={env}"))
    for key, _ in commented(f"env/{env}.yaml"):
        assert key in known_keys() or key.startswith(("defaults.", "env.kwargs."))


def test_what_is_typed_wins_over_an_environments_file() -> None:
    assert composed("env=cartpole")["system"]["gamma"] == 0.98
    for overrides in (["env=cartpole", "system.gamma=0.5"], ["system.gamma=0.5", "env=cartpole"]):
        assert composed(*overrides)["system"]["gamma"] == 0.5


def test_whole_configuration_is_the_dataclasses() -> None:
    config = parse(composed())
    cache = dataclasses.replace(ArchConfig(), compile_cache=None)
    assert (config.arch, config.system, config.env, config.logger) == (
        cache, PPOSettings(), EnvConfig(), LoggerConfig(),
    )  # fmt: skip
    assert parse({}) == Config(system=PPOSettings())


def test_help_text_has_every_key_once_with_its_default() -> None:
    shown = set()
    for algorithm, grad_norm in (("ppo", "[0.5]"), ("pqn", "[10.0]")):
        told = help_text(algorithm).splitlines()
        lines = [line.split() for line in told if line.startswith("  ")]
        keys = [words[0] for words in lines]
        own = {f"system.{name}" for name in fields(system_type({"algorithm": algorithm}))}
        others = {key for key in known_keys() if key.startswith("system.")} - own
        assert keys == [key for key in known_keys() if key not in others]
        shown |= set(keys)
        defaults = {words[0]: words[-1] for words in lines}
        assert defaults["system.gamma"] == "[0.99]"
        assert defaults["system.max_grad_norm"] == grad_norm
    assert shown == set(known_keys())
    assert (defaults["arch.num_updates"], defaults["arch.absolute_metric"]) == ("[null]", "[true]")
    assert (defaults["system.reward_clip"], defaults["env.frame_stack"]) == ("[.inf]", "[1]")


GROUPS = {
    name: PPOSettings if hint is SystemConfig else hint
    for name, hint in typing.get_type_hints(Config).items()
    if dataclasses.is_dataclass(hint)
}


@pytest.mark.parametrize("key", known_keys())
def test_every_setting_has_help_and_a_good_default(key: str) -> None:
    group, _, name = key.rpartition(".")
    cls = GROUPS[group] if group else Config
    own = {"algorithm": "pqn"} if cls is PPOSettings and name not in fields(cls) else {}
    cls = PQNSettings if own else cls
    field = fields(cls)[name]
    assert field.metadata["help"]
    assert not field.metadata["help"].endswith(".")
    assert set(field.metadata) <= {
        *("help", "low", "high", "above", "infinite", "choices", "importable", "rate", "tune"),
        *("traced", "follows", "coupled", "switch"),
    }
    default = getattr(cls(), name)
    parsed: Any = parse({group: {**own, name: default}} if group else {name: default})
    assert getattr(getattr(parsed, group) if group else parsed, name) == default


def test_defaults_are_not_shared() -> None:
    assert EnvConfig().kwargs is not EnvConfig().kwargs
    assert EnvConfig().extras is not EnvConfig().extras


def test_configuration_cannot_be_written() -> None:
    for value in (Config(), ArchConfig(), plan(Config(), 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, 1)


def setting(key: str, value: Any) -> Any:
    """`key=value` as `parse` takes it."""
    group, name = key.split(".")
    return getattr(getattr(parse({group: {name: value}}), group), name)


INTEGER, OPTIONAL_INTEGER = "system.epochs", "arch.num_updates"
NUMBER, FLAG = "system.gamma", "arch.plan_only"
TEXT, MAPPING, OPTIONAL_MAPPING = "env.name", "env.params", "network.actor_torso"
OPTIONAL_NUMBER, LIST, CHOICE = "system.clip_eps_high", "env.extras", "system.objective"
INTEGERS, MAPPINGS = "env.mask", "logger.sinks"
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "key, given, taken",
    [
        (INTEGER, 3, 3),
        (INTEGER, 1e7, 10_000_000),
        (INTEGER, 3.0, 3),
        (OPTIONAL_INTEGER, None, None),
        (OPTIONAL_INTEGER, 1e3, 1000),
        ("arch.total_timesteps", 2**53 + 1, 2**53 + 1),
        (NUMBER, 1, 1.0),
        (NUMBER, 0, 0.0),
        (NUMBER, 0.5, 0.5),
        ("system.max_grad_norm", INF, INF),
        ("system.reward_scale", -2, -2.0),
        (FLAG, True, True),
        (TEXT, "Catch-bsuite", "Catch-bsuite"),
        (TEXT, None, None),
        (MAPPING, {}, {}),
        (MAPPING, {"gravity": 9.0}, {"gravity": 9.0}),
        (OPTIONAL_MAPPING, None, None),
        (OPTIONAL_NUMBER, 1, 1.0),
        (OPTIONAL_NUMBER, None, None),
        (LIST, [], []),
        (LIST, ["step"], ["step"]),
        (LIST, ["step", "last_action"], ["step", "last_action"]),
        (INTEGERS, [], []),
        (INTEGERS, [1, 3], [1, 3]),
        (CHOICE, "dpo", "dpo"),
        (MAPPINGS, [], []),
        (MAPPINGS, [{"_target_": "a.B"}], [{"_target_": "a.B"}]),
        (CHOICE, "math.sqrt", "math.sqrt"),
        ("system.algorithm", "ppo", "ppo"),
        ("system.algorithm", ALGORITHMS["ppo"], ALGORITHMS["ppo"]),
    ],
)
def test_value_is_taken(key: str, given: Any, taken: Any) -> None:
    value = setting(key, given)
    assert value == taken
    assert type(value) is type(taken)


@pytest.mark.parametrize(
    "key, value, rule",
    [
        (INTEGER, 1.5, "an integer"),
        (INTEGER, "3", "an integer"),
        (INTEGER, True, "an integer"),
        (INTEGER, None, "an integer"),
        (INTEGER, NAN, "an integer"),
        (INTEGER, INF, "an integer"),
        (INTEGER, [3], "an integer"),
        (OPTIONAL_INTEGER, "none", "an integer (1e7 is one) or null"),
        (OPTIONAL_INTEGER, False, "or null"),
        (NUMBER, "0.9", "a number"),
        (NUMBER, True, "a number"),
        (NUMBER, None, "a number"),
        (NUMBER, {"value": 0.9}, "a number"),
        (NUMBER, NAN, "finite"),
        (NUMBER, INF, "finite"),
        (NUMBER, -INF, "finite"),
        ("system.max_grad_norm", NAN, "above 0"),
        ("system.max_grad_norm", -INF, "above 0"),
        ("system.reward_scale", NAN, "finite"),
        (FLAG, 1, "true or false"),
        (FLAG, "true", "true or false"),
        (FLAG, None, "true or false"),
        (TEXT, 5, "text or null"),
        (TEXT, True, "text or null"),
        (MAPPING, [1], "keys and values"),
        (MAPPING, None, "keys and values"),
        (MAPPING, "a", "keys and values"),
        (OPTIONAL_MAPPING, 64, "keys and values or null"),
        (OPTIONAL_NUMBER, "high", "a number or null"),
        (OPTIONAL_NUMBER, INF, "finite"),
        (LIST, "step", "a list of names, such as [one,two]"),
        (LIST, None, "a list of names, such as [one,two]"),
        (LIST, {"step": True}, "a list of names, such as [one,two]"),
        (LIST, 3, "a list of names, such as [one,two]"),
        (LIST, False, "a list of names, such as [one,two]"),
        (LIST, [3], "a list of names, such as [one,two]"),
        (INTEGERS, 1, "a list of integers, such as [1,3]"),
        (INTEGERS, None, "a list of integers, such as [1,3]"),
        (INTEGERS, ["1"], "a list of integers, such as [1,3]"),
        (INTEGERS, [True], "a list of integers, such as [1,3]"),
        (INTEGERS, [1.5], "a list of integers, such as [1,3]"),
        (LIST, ["step", None], "a list of names, such as [one,two]"),
        (LIST, [["step"]], "a list of names, such as [one,two]"),
        (MAPPINGS, ["a.B"], "a list of keys and values, such as [{_target_: my_module.MySink}]"),
        (MAPPINGS, {"_target_": "a.B"}, "a list of keys and values"),
        (CHOICE, None, "must be "),
        (CHOICE, 5, "must be "),
        (CHOICE, True, "must be "),
        (CHOICE, ["clip"], "must be "),
        (CHOICE, "", "text that is not empty"),
    ],
)
def test_value_is_refused(key: str, value: Any, rule: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        setting(key, value)
    (line,) = str(refusal.value).splitlines()
    assert line.startswith(f"{key}=")
    assert rule in line
    for name in ("NoneType", "<class"):
        assert name not in line


BOUNDED = [
    (f"{group}.{field.name}", side, field.metadata[side])
    for group, cls in GROUPS.items()
    for field in fields(cls).values()
    for side in ("low", "above", "high")
    if side in field.metadata
]


@pytest.mark.parametrize("key, side, bound", BOUNDED)
def test_bound_is_where_it_is_said_to_be(key: str, side: str, bound: float) -> None:
    within, beyond = {
        "low": (bound, bound - 1),
        "above": (bound + 1e-9, bound),
        "high": (bound, bound + 1),
    }[side]
    assert setting(key, within) == within
    with pytest.raises(ConfigError, match=re.escape(f"{key}=")) as refusal:
        setting(key, beyond)
    words = {"low": "at least", "above": "above", "high": "at most"}[side]
    assert f"{words} {bound}" in str(refusal.value)
    if side != "above":
        assert str(refusal.value).endswith(f"; the nearest that is: {bound}")


def test_settings_that_only_a_positive_number_makes_sense_for_have_a_bound() -> None:
    bounded = {key for key, _, _ in BOUNDED}
    numbers = {
        f"{group}.{name}"
        for group, cls in GROUPS.items()
        for name, hint in typing.get_type_hints(cls).items()
        if hint in (int, float, int | None, float | None)
    }
    assert numbers - bounded == {"system.reward_scale"}  # negative turns a cost into a reward


@pytest.mark.parametrize(
    "key",
    [
        f"{group}.{name}"
        for group, cls in GROUPS.items()
        for name, hint in typing.get_type_hints(cls).items()
        if hint in (float, float | None)
    ],
)
def test_infinity_is_taken_where_it_says_so(key: str) -> None:
    group, name = key.split(".")
    field = fields(GROUPS[group])[name]
    for value in (INF, "inf", ".inf"):  # text, as Hydra and YAML read these
        if "infinite" in field.metadata:
            assert ".inf" in field.metadata["help"]
            assert setting(key, value) == INF
        else:
            with pytest.raises(ConfigError, match=re.escape(f"{key}=")):
                setting(key, value)


CHOICES = {
    f"{group}.{field.name}": field.metadata["choices"]
    for group, cls in GROUPS.items()
    for field in fields(cls).values()
    if "choices" in field.metadata
}
EACH_CHOICE = [(key, choice) for key, choices in CHOICES.items() for choice in choices]


@pytest.mark.long
@pytest.mark.parametrize("key, choice", EACH_CHOICE)
def test_choice_is_taken_and_builds(key: str, choice: str) -> None:
    needs = ["system.recompute_targets=true"] if choice == "vtrace" else []
    needs = ["population=pbt"] if key.startswith("population.") else needs
    command = "ff_pqn" if choice == "pqn" else "ff_ppo"
    config = launched(command, [*needs, f"{key}={choice}", "arch.compile_cache=null"])
    group, name = key.split(".")
    assert getattr(getattr(config, group), name) == choice
    # Libraries of environments and Ray are extras, and some resets are not for all environments
    if group != "env" and choice != "ray":
        prepare(config)


@pytest.mark.parametrize("key, choice", EACH_CHOICE)
def test_misspelt_choice_is_refused_with_the_nearest_and_all(key: str, choice: str) -> None:
    group, name = key.split(".")
    importable = "importable" in fields(GROUPS[group])[name].metadata
    path = ", and no import path such as my_module.mine" if importable else ""
    wrong = (choice[:-1], f"{choice}s", choice.upper()[:1] + choice[1:])
    for typed in (each for each in wrong if each not in CHOICES[key]):  # adam of adamw
        with pytest.raises(ConfigError) as refusal:
            setting(key, typed)
        assert str(refusal.value) == (
            f"{key}={typed}: no such choice{path}; did you mean {choice}? "
            f"(of {', '.join(CHOICES[key])})"
        )


@pytest.mark.parametrize("key", CHOICES)
def test_choice_that_is_near_none_is_refused_with_one_and_all(key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        setting(key, "?")
    (suggested,) = re.findall(r"did you mean (.*)\?", str(refusal.value))
    assert suggested in CHOICES[key]
    assert str(refusal.value).endswith(f"(of {', '.join(CHOICES[key])})")


@pytest.mark.parametrize("key, choice", EACH_CHOICE)
def test_help_names_every_choice(key: str, choice: str) -> None:
    group, name = key.split(".")
    assert re.search(rf"\b{choice}\b", fields(GROUPS[group])[name].metadata["help"])


def test_an_import_path_is_no_name() -> None:
    with pytest.raises(ConfigError, match=r"system\.advantages=my_module\.mine: no such choice;"):
        setting("system.advantages", "my_module.mine")


def test_choices_are_what_there_is() -> None:
    assert CHOICES["system.algorithm"] == tuple(ALGORITHMS)
    assert CHOICES["system.objective"] == tuple(OBJECTIVES)
    assert CHOICES["system.advantages"] == tuple(ESTIMATORS)
    assert CHOICES["system.value_loss"] == tuple(VALUE_LOSSES)
    assert CHOICES["arch.compiler"] == tuple(compile.COMPILERS)


@pytest.mark.parametrize("raw", [{"arch": 3}, {"arch": None}, {"arch": [1]}, {"system": "ppo"}])
def test_group_without_keys_is_refused(raw: dict[str, Any]) -> None:
    (group,) = raw
    with pytest.raises(ConfigError) as refusal:
        parse(raw)
    assert str(refusal.value).startswith(f"{group}=")
    examples = re.findall(r"\w+\.\w+", str(refusal.value))
    assert all(example in known_keys() and example.startswith(group) for example in examples)


@pytest.mark.parametrize(
    "key, nearest",
    [
        ("system.gama", "system.gamma"),
        ("system.clip_epss", "system.clip_eps"),
        ("system.clip", "system.clip_eps"),
        ("system.gae_lamda", "system.gae_lambda"),
        ("system.minibatches", "system.num_minibatches"),
        ("arch.num_envs", "arch.total_num_envs"),
        ("arch.sed", "arch.seed"),
        ("arch.total_timestep", "arch.total_timesteps"),
        ("arch.num_eval_episode", "arch.num_eval_episodes"),
        ("logger.jsonl", "logger.json"),
        ("env.kwarg", "env.kwargs"),
        ("network.actor_tors", "network.actor_torso"),
        # the right name in the wrong group, or in none
        ("arch.gamma", "system.gamma"),
        ("system.seed", "arch.seed"),
        ("seed", "arch.seed"),
        ("clip_epss", "system.clip_eps"),
        ("SYSTEM.GAMMA", "system.gamma"),
    ],
)
def test_unknown_key_names_the_nearest(key: str, nearest: str) -> None:
    assert unknown_key(key) == f"{key}: no such key; did you mean {nearest}?"


@pytest.mark.parametrize("key", ["x", "system.", "q.q.q", "völlig", "", "network.mlp.units"])
def test_unknown_key_always_names_one(key: str) -> None:
    match = re.search(r"did you mean (.*)\?$", unknown_key(key))
    assert match is not None
    assert match[1] in known_keys()


def test_unknown_key_looks_at_further_keys() -> None:
    more = ["network.actor_torso.layer_sizes"]
    assert more[0] in unknown_key("network.actor_torso.layer_size", more)


@pytest.mark.parametrize("raw", [{"system": {"gama": 0.9}}, {"sytem": {"gamma": 0.9}}, {"foo": 1}])
def test_unknown_key_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no such key; did you mean \w+"):
        parse(raw)


@pytest.mark.parametrize("theirs, ours", ELSEWHERE.items())
def test_a_name_of_another_library_says_ours(theirs: str, ours: str) -> None:
    assert ours in known_keys()
    assert unknown_key(theirs) == f"{theirs}: no such key; did you mean {ours}?"


@pytest.mark.parametrize("old, new", RENAMED.items())
def test_a_renamed_key_says_its_new_name(old: str, new: str) -> None:
    assert new in known_keys()
    assert old not in known_keys()
    group, name = old.split(".")
    with pytest.raises(ConfigError, match=f"^{old}: is called {new} now$"):
        parse({group: {name: 1}})


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnSettings(SystemConfig):
    """An algorithm of a user's own."""

    learning_rate: float = traced(1e-3, "Adam step size", low=0)


class Own(ActorCritic):
    """As `system.algorithm=test_configs.Own`."""

    Settings = OwnSettings

    def targets(self, system: Any, agent: Any, rollout: Any) -> Any:
        return agent, rollout.steps, NoMetrics()

    def loss(self, system: Any, agent: Any, params: Any, minibatch: Any) -> Any:
        return jnp.zeros(()), NoMetrics()


class Incomplete(ActorCritic):
    """Without targets and a loss."""


class NoAlgorithm:
    """Has settings, and nothing else of an algorithm."""

    Settings = OwnSettings


OWN = {"algorithm": "test_configs.Own"}


def test_an_algorithm_of_ones_own_has_its_settings() -> None:
    system = parse({"system": {**OWN, "learning_rate": 0.1, "gamma": 0.9}}).system
    assert system == OwnSettings(algorithm="test_configs.Own", learning_rate=0.1, gamma=0.9)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"learning_rate": -1}, "system.learning_rate=-1.0: must be at least 0"),
        (
            {"learning_rat": 1},
            "system.learning_rat: no such key; did you mean system.learning_rate",
        ),
        (
            {"clip_eps": 0.1},
            "system.clip_eps: system.algorithm=test_configs.Own has no such setting; leave it out",
        ),
    ],
)
def test_what_an_algorithm_of_ones_own_has_not_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse({"system": {**OWN, **changes}})
    (line,) = str(refusal.value).splitlines()
    assert line.startswith(words)


@pytest.mark.parametrize(
    "value, rule",
    [
        ("nope", "no such choice, and no import path such as my_module.mine; did you mean p"),
        ("PPO", "no such choice, and no import path such as my_module.mine; did you mean ppo?"),
        (None, "must be one of ppo, pqn, or an import path"),
        (5, "must be one of ppo, pqn, or an import path"),
        ("", "must be text that is not empty"),
        (".mine", "an import path such as my_module.my_name is needed"),
        ("no_such_module.Mine", "no_such_module cannot be imported"),
        ("os.path", "module os has no class path; give the path of one that is there, or one of"),
        ("json.Nothing", "module json has no class Nothing; give the path of one that is there"),
        ("json.JSONDecoder", "must be a class that extends jaxppo.algorithms.algorithm.Algorithm"),
        ("os.getcwd", "must be a class that extends jaxppo.algorithms.algorithm.Algorithm"),
        ("test_configs.Incomplete", "has no loss, targets; define what"),
        ("test_configs.NoAlgorithm", "must be a class that extends jaxppo.algorithms.algorithm."),
    ],
)
def test_what_is_no_algorithm_is_refused(value: Any, rule: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse({"system": {"algorithm": value}})
    (line,) = str(refusal.value).splitlines()
    shown = {None: "null", "": "''"}.get(value, value)
    assert line.startswith(f"system.algorithm={shown}: {rule}")
    if isinstance(value, str) and value:
        assert "ppo" in line or "such as" in line or "PYTHONPATH" in line  # a way out


# What a plan of 8 environments x 6 steps refuses: settings, devices, words, and the ways out.
ENVS, UPDATES, WARM_UP = "arch.total_num_envs", "arch.num_updates", "system.obs_norm_warmup_steps"
STEPS, BLOCKS, PARTS = "arch.total_timesteps", "arch.num_evaluation", "system.num_minibatches"
SHARED, NORMALIZE = "arch.update_batch_size", "system.normalize_observations"
OBJECTIVE, KL_COEF, ADAPT = "system.objective", "system.kl_coef", "system.adapt_kl_coef"
HIGH, LENGTH, BURN_IN = "system.clip_eps_high", "system.sequence_length", "system.burn_in"
MEMORY, ROLLOUT = "network.actor_memory", "system.rollout_length"
OVER = "system.standardize_advantages"
LSTM = {"_target_": "jaxppo.networks.memory.Recurrent"}
Settings = dict[str, Any]
PLANS: list[tuple[Settings, int, str, Settings]] = [
    ({ENVS: 10}, 4, "is not a multiple of 4 learners (4 devices x", {ENVS: 8}),
    ({ENVS: 3}, 4, "is not a multiple of 4 learners", {ENVS: 4}),
    ({ENVS: 9, SHARED: 2}, 1, "2 learners (1 device x arch.update_batch_size=2)", {ENVS: 8}),
    ({ENVS: 20, SHARED: 3}, 2, "is not a multiple of 6 learners", {ENVS: 18}),
    ({PARTS: 5}, 1, "does not divide a batch of 48 (8 environments x", {PARTS: 6}),
    ({PARTS: 7}, 2, "does not divide a batch of 24 (4 environments x", {PARTS: 8}),
    ({PARTS: 1000}, 1, "does not divide a batch of 48", {PARTS: 48}),
    ({STEPS: 47}, 1, "is less than one update of 48 steps", {STEPS: 48}),
    ({STEPS: 96, BLOCKS: 3}, 1, "is more than 2 updates", {BLOCKS: 2}),
    ({STEPS: 96, BLOCKS: 3}, 1, "is more than 2 updates", {STEPS: 144}),
    ({UPDATES: 2, BLOCKS: 3}, 1, "is more than 2 updates", {BLOCKS: 2}),
    ({UPDATES: 2, BLOCKS: 3}, 1, "is more than 2 updates", {UPDATES: 3}),
    ({WARM_UP: 9}, 1, "system.obs_norm_warmup_steps=9 needs", {NORMALIZE: True}),
    ({WARM_UP: 9}, 1, "system.obs_norm_warmup_steps=9 needs", {WARM_UP: 0}),
    ({ADAPT: True}, 1, "needs system.objective=penalty, not clip", {OBJECTIVE: "penalty"}),
    ({ADAPT: True}, 1, "system.adapt_kl_coef=true needs", {ADAPT: False}),
    ({ADAPT: True, OBJECTIVE: "dpo"}, 1, "penalty, not dpo", {OBJECTIVE: "penalty"}),
    *(
        ({ADAPT: True, OBJECTIVE: "penalty", KL_COEF: 0}, 1, "kl_coef above 0, not 0.0", way_out)
        for way_out in ({ADAPT: False}, {KL_COEF: 0.1})
    ),
    *(
        ({HIGH: 0.3, OBJECTIVE: objective}, 1, f"clip, not {objective}", way_out)
        for objective in ("penalty", "dpo", "reinforce")
        for way_out in ({HIGH: None}, {OBJECTIVE: "clip"})
    ),
    ({LENGTH: 4}, 1, "=4 does not divide system.rollout_length=6", {LENGTH: 3}),
    ({LENGTH: 9}, 1, "=9 does not divide system.rollout_length=6", {LENGTH: 6}),
    ({LENGTH: None, PARTS: 12}, 1, "8 sequences of 6 steps (8 environments x", {PARTS: 8}),
    ({LENGTH: 3, PARTS: 3}, 4, "4 sequences of 3 steps (2 environments x", {PARTS: 2}),
    ({MEMORY: LSTM, LENGTH: None, BURN_IN: 6}, 1, "sequences of 6 steps", {BURN_IN: 5}),
    ({LENGTH: None, BURN_IN: 2}, 1, "the network has no memory", {BURN_IN: 0}),
    ({"system.recompute_carries": True}, 1, "no memory", {"system.recompute_carries": False}),
    *(
        (
            {MEMORY: LSTM, LENGTH: None, "system.recompute_carries": True},
            1,
            "whole rollouts of 6",
            way,
        )
        for way in ({LENGTH: 3}, {"system.recompute_carries": False})
    ),
    *(
        ({ENVS: 1, ROLLOUT: 1, OVER: over}, 1, f"={over}: a batch of one transition", way_out)
        for over in ("batch", "minibatch")
        for way_out in ({ENVS: 2}, {ROLLOUT: 2}, {OVER: "none"})
    ),
    ({PARTS: 48, OVER: "minibatch"}, 1, "a minibatch of one transition", {PARTS: 24}),
    ({PARTS: 48, OVER: "minibatch"}, 1, "a minibatch of one transition", {OVER: "batch"}),
    (
        {MEMORY: LSTM, LENGTH: None, ENVS: 1, ROLLOUT: 2, BURN_IN: 1, OVER: "minibatch"},
        1,
        "a minibatch of one transition",
        {OVER: "batch"},
    ),
]


def test_a_memory_that_sees_one_step_at_a_time_is_refused() -> None:
    for changes, way_out in (
        ({}, "set system.sequence_length=null for whole rollouts, as jaxppo.rec_ppo does"),
        ({LENGTH: None, ROLLOUT: 1}, "raise system.rollout_length=1"),
    ):
        with pytest.raises(ConfigError, match=rf"network\.actor_memory.*{way_out}.*network=mlp"):
            planned({MEMORY: LSTM, **changes}, 1)
    planned({MEMORY: LSTM, LENGTH: None}, 1)


def test_advantages_are_standardised_over_all_learners() -> None:
    """So one transition of each of two learners is enough."""
    for over in ("batch", "minibatch"):
        planned({ENVS: 2, ROLLOUT: 1, SHARED: 2, OVER: over}, 1)
        planned({ENVS: 2, ROLLOUT: 1, OVER: over}, 2)
    batch = {MEMORY: LSTM, LENGTH: None, ENVS: 1, ROLLOUT: 2, BURN_IN: 1, OVER: "batch"}
    assert planned(batch, 1).minibatch_size == 1


def test_minibatches_are_counted_without_burn_in() -> None:
    for burn_in, size in ((0, 24), (2, 16)):
        result = planned({MEMORY: LSTM, LENGTH: None, BURN_IN: burn_in, PARTS: 2}, 1)
        assert result.minibatch_size == size


def test_sequences_are_whole_rollouts_unless_said() -> None:
    lengths = [planned({LENGTH: length}, 1).sequence_length for length in (None, 1, 3)]
    assert lengths == [6, 1, 3]


def planned(changes: Settings, num_devices: int) -> Any:
    raw: dict[str, Any] = {
        "arch": {"total_num_envs": 8, "num_evaluation": 1},
        "system": {"rollout_length": 6, "num_minibatches": 1},
        "network": {},
    }
    for key, value in changes.items():
        group, name = key.split(".")
        raw[group][name] = value
    return plan(parse(raw), num_devices)


@pytest.mark.parametrize("changes, num_devices, words, way_out", PLANS)
def test_plan_refuses_and_its_way_out_works(
    changes: Settings, num_devices: int, words: str, way_out: Settings
) -> None:
    with pytest.raises(ConfigError) as refusal:
        planned(changes, num_devices)
    (line,) = str(refusal.value).splitlines()
    assert words in line
    for key, value in way_out.items():
        assert key in line
        said = {
            KL_COEF: "above 0",
            LENGTH: "shorter" if "shorter" in line else value,
            PARTS: "lower" if "lower" in line else value,
        }.get(key, value)
        said = "null" if value is None else said
        assert re.search(rf"\b{said}\b", line, re.IGNORECASE)
    planned({**changes, **way_out}, num_devices)


@pytest.mark.parametrize("num_minibatches", [999_999_937, 2**31 - 1])
def test_nearest_divisor_of_a_large_batch_is_found_at_once(num_minibatches: int) -> None:
    started = time.perf_counter()
    with pytest.raises(ConfigError, match="does not divide"):
        planned({ENVS: 2**20, "system.rollout_length": 2**10, PARTS: num_minibatches}, 1)
    assert time.perf_counter() - started < 1.0


def test_plan_without_a_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"arch\.total_timesteps=null and arch\.num_updates=null"):
        planned({STEPS: None}, 1)


def test_num_updates_goes_before_total_timesteps() -> None:
    result = planned({UPDATES: 3, STEPS: 1}, 1)
    assert (result.num_updates, result.total_steps, result.requested_steps) == (3, 144, None)


@pytest.mark.parametrize(
    "changes", [{HIGH: 0.3}, {HIGH: 0.3, OBJECTIVE: "math.sqrt"}, {HIGH: None}]
)
def test_upper_clip_bound_is_the_lower_unless_given(changes: Settings) -> None:
    derived = planned({**changes, "system.clip_eps": 0.1}, 1)
    system = {key.removeprefix("system."): value for key, value in changes.items()}
    hp = hyperparameters(parse({"system": {"clip_eps": 0.1, **system}}), derived)
    assert float(hp.clip_eps) == pytest.approx(0.1)
    assert float(hp.clip_eps_high) == pytest.approx(changes[HIGH] or 0.1)


@pytest.mark.parametrize("name", ["target_kl", "reward_clip", "max_grad_norm"])
def test_infinite_settings_reach_the_learner_as_infinity(name: str) -> None:
    config = parse({"system": {name: ".inf"}})
    assert getattr(hyperparameters(config, plan(config, 1)), name) == INF


@pytest.mark.parametrize(
    "num_updates, blocks, spread",
    [(10, 10, [1] * 10), (10, 4, [2, 3, 2, 3]), (7, 3, [2, 2, 3]), (5, 1, [5]), (11, 2, [5, 6])],
)
def test_updates_are_spread_over_the_blocks(
    num_updates: int, blocks: int, spread: list[int]
) -> None:
    result = planned({UPDATES: num_updates, BLOCKS: blocks}, 1)
    assert list(result.updates_per_block) == spread


@pytest.mark.parametrize(
    "asked, num_devices, rollouts", [(0, 1, 0), (1, 1, 1), (48, 1, 1), (49, 1, 2), (49, 2, 2)]
)
def test_warm_up_is_rounded_up_to_rollouts(asked: int, num_devices: int, rollouts: int) -> None:
    result = planned({WARM_UP: asked, NORMALIZE: True}, num_devices)
    assert (result.warmup_rollouts, result.warmup_steps) == (rollouts, rollouts * 48)


@pytest.mark.parametrize(
    "episodes, num_devices, each", [(8, 1, 8), (8, 4, 2), (9, 4, 3), (1, 4, 1)]
)
def test_no_episode_is_lost_to_the_number_of_devices(
    episodes: int, num_devices: int, each: int
) -> None:
    result = planned({"arch.num_eval_episodes": episodes}, num_devices)
    assert result.eval_episodes_per_device == each


@pytest.mark.long_but(4)
@pytest.mark.parametrize("command", ["ff_ppo", "rec_ppo", "ff_pqn", "rec_pqn"])
@pytest.mark.parametrize("env", ["cartpole", "breakout", "t_maze"])
def test_what_is_for_accelerators_replaces_an_environments_own_values(
    command: str, env: str
) -> None:
    usual, config = (launched(command, [f"env={env}", *more]) for more in ([], ["arch=gpu"]))
    assert config.arch.total_num_envs == 32768 > usual.arch.total_num_envs
    assert config.system.rollout_length == 8
    assert config.system.gamma == usual.system.gamma
    given = launched(command, ["arch=gpu", f"env={env}", "arch.total_num_envs=64"])
    assert given.arch.total_num_envs == 64


@pytest.mark.parametrize("algorithm", ["ppo", "pqn"])
def test_a_number_that_an_agent_lacks_is_not_that_of_the_settings(algorithm: str) -> None:
    """Its class declares names and types alone, without the defaults."""
    made = algorithm_class(algorithm).hyperparameters_type(gamma=0.5, num_updates=1)
    assert made.gamma == 0.5
    for name in fields(system_type({"algorithm": algorithm})):
        if name != "gamma":
            with pytest.raises(AttributeError, match=f"no hyperparameter {name}; there are gamma"):
                getattr(made, name)
