"""The YAML files against the dataclasses, and what `parse` and `plan` take and refuse."""

import dataclasses
import functools
import inspect
import re
import time
import typing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from files import CONFIGS, commented, composed
from hydra.utils import get_object
from omegaconf import OmegaConf

from jaxppo.algorithms.actor_critic import ActorCritic
from jaxppo.algorithms.metrics import NoMetrics
from jaxppo.algorithms.objectives import ESTIMATORS, OBJECTIVES, VALUE_LOSSES
from jaxppo.algorithms.ppo_settings import PPOSettings
from jaxppo.algorithms.pqn import PQNSettings
from jaxppo.algorithms.reppo import REPPOSettings
from jaxppo.config.fields import ConfigError, traced
from jaxppo.config.importing import is_installed
from jaxppo.config.parse import ELSEWHERE, RENAMED, help_text, known_keys, parse, unknown_key
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
from jaxppo.runtime.programs.build import hyperparameters, program_key
from jaxppo.runtime.run.jobs import prepare

FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
HOMES = {  # the file that holds a group's defaults
    "arch/default.yaml": ArchConfig,
    "system/ppo.yaml": PPOSettings,
    "system/pqn.yaml": PQNSettings,
    "system/reppo.yaml": REPPOSettings,
    "checkpoint/default.yaml": CheckpointConfig,
    "logger/default.yaml": LoggerConfig,
    "env/gymnax.yaml": EnvConfig,
}
LAYERS = [file for file in FILES if re.fullmatch(r"network/\w+/\w+\.yaml", file)]
BUILT_LAYERS = [x for x in LAYERS if x != "network/input_layer/fuse.yaml"]  # see tests/networks


def names(group: str) -> list[str]:
    """What `group=` offers."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


MEMORIES = ("gru", "gtrxl", "lru", "lstm")
RECURRENT = [*MEMORIES, *(f"{name}_shared" for name in MEMORIES)]
OF_IMAGES = ("board", "cnn", "impala")  # networks that take nothing else


def fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls)}


def file_settings(file: str) -> dict[str, Any]:
    found = OmegaConf.to_container(OmegaConf.load(CONFIGS / file))
    return typing.cast(dict[str, Any], found)


@functools.cache
def files_of(*groups: str, executable: str = "ff_ppo") -> dict[str, Any]:
    """Composed once; not to be written."""
    return composed(*groups, executable=executable)


@pytest.mark.parametrize("file, cls", HOMES.items(), ids=HOMES)
def test_file_holds_the_defaults(file: str, cls: Any) -> None:
    """And explains them as `--help` does."""
    settings, defaults = file_settings(file), dataclasses.asdict(cls())
    assert settings == defaults
    assert {k: type(x) for k, x in settings.items()} == {k: type(x) for k, x in defaults.items()}
    helps = {name: field.metadata["help"] for name, field in fields(cls).items()}
    assert dict(commented(file)) == helps


def test_every_key_of_a_file_is_known_or_has_a_comment() -> None:
    known = set(known_keys())
    for file in FILES:
        for key, comment in commented(file):
            aside = key.startswith("defaults.") or key.endswith("_target_")
            assert comment or aside or (file not in HOMES and key in known), (file, key)


@pytest.mark.parametrize("file", LAYERS)
def test_layer_offers_its_arguments_with_their_defaults(file: str) -> None:
    settings = file_settings(file)
    signature = inspect.signature(get_object(settings.pop("_target_")))
    parameters = {k: p for k, p in signature.parameters.items() if p.kind != p.VAR_KEYWORD}
    given_later = {"action_space", "parent", "name"}  # by the composer, by flax
    assert set(settings) == set(parameters) - given_later
    if "cell" in settings:  # one class for five files
        assert settings.pop("cell") == file.rpartition("/")[2].removesuffix(".yaml")
    for key, value in settings.items():
        default = parameters[key].default
        if default is not inspect.Parameter.empty:
            assert value == (list(default) if isinstance(default, tuple) else default)


@pytest.mark.long
@pytest.mark.parametrize("network", [x for x in names("network") if x not in RECURRENT])
def test_network_composes_and_fits(network: str) -> None:
    env = "breakout" if network in OF_IMAGES else "cartpole"
    raw = files_of(f"env={env}", f"network={network}")
    assert set(raw["network"]) == set(fields(NetworkConfig))
    derived, system = prepare(config := parse(raw))
    assert system.max_eval_steps > 0
    assert derived.total_steps >= (config.arch.total_timesteps or 0)


@pytest.mark.long
@pytest.mark.parametrize("network", RECURRENT)
def test_memories_are_for_the_recurrent_executable(network: str) -> None:
    overrides = ["env=t_maze", f"network={network}"]
    derived, system = prepare(parse(files_of(*overrides, executable="rec_ppo")))
    assert derived.sequence_length == derived.rollout_length == system.sequence_length > 1
    memories = ["shared_memory"] if "shared" in network else ["actor_memory", "critic_memory"]
    assert list(system.algorithm.network.initial_carry(1)) == memories
    with pytest.raises(ConfigError, match=rf"network\.{memories[0]}.*jaxppo\.rec_ppo"):
        prepare(parse(files_of(*overrides)))


def test_recurrent_executable_differs_in_network_and_sequences_alone() -> None:
    """Its network stays recurrent where an environment's file brings one of its own."""
    recurrent, plain = (composed("env=breakout", executable=e) for e in ("rec_ppo", "ff_ppo"))
    assert recurrent.pop("network") == files_of("network=lstm")["network"]
    lengths = [each["system"].pop("sequence_length") for each in (recurrent, plain)]
    assert lengths == [None, 1]
    del plain["network"]
    assert recurrent == plain


@pytest.mark.long
def test_environments_file_changes_known_settings_and_brings_a_network_that_fits() -> None:
    for env in names("env"):
        config = parse(files_of(f"env={env}"))
        wanted = "cnn" if "MinAtar" in str(config.env.name) else "mlp"
        assert config.network == parse(files_of(f"network={wanted}")).network
        for key, _ in commented(f"env/{env}.yaml"):
            known = key in known_keys() or key.startswith(("defaults.", "env.kwargs."))
            assert known or env == "gymnax"


FITS = {  # of each layer's file, an environment (and network) that it suits, if not CartPole
    **dict.fromkeys([f"actor_head/{x}" for x in ("auto", "beta", "normal")], "env=pendulum"),
    "actor_head/multi_categorical": "env.name=null env.target=envs.Parts",
    "actor_head/tanh_normal": "env=mountain_car_continuous",
    "input_layer/concatenate": "env=cartpole env.extras=[step]",
    "input_layer/image": "env=breakout",
    "input_layer/select": "env=cartpole env.extras=[step]",
    "torso/cnn": "env=breakout",
    "torso/impala": "env=breakout network=impala",
    **dict.fromkeys(["torso/mlp", "torso/noisy_mlp"], "env=cartpole network=mlp_shared"),
}


@pytest.mark.long
@pytest.mark.parametrize("file", BUILT_LAYERS)
def test_layer_builds_where_it_fits(file: str) -> None:
    kind, name = file.removeprefix("network/").removesuffix(".yaml").split("/")
    slot = {"torso": "shared_torso", "memory": "actor_memory"}.get(kind, kind)
    fits = FITS.get(f"{kind}/{name}", "env=cartpole").split()
    if kind == "q_head":
        prepare(launched("ff_pqn", [*fits, f"network/q_head={name}"]))
        return
    raw = files_of(*fits)
    if kind == "memory":
        raw = {**raw, "system": {**raw["system"], "sequence_length": None}}
    config = parse({**raw, "network": {**raw["network"], slot: file_settings(file)}})
    assert getattr(config.network, slot) == file_settings(file)
    prepare(config)


def test_a_layer_is_chosen_by_name_in_its_branch() -> None:
    network = composed("network=lstm", "network/memory@network.critic_memory=gru")["network"]
    assert network["critic_memory"] == file_settings("network/memory/gru.yaml")
    assert network["actor_memory"] == file_settings("network/memory/optimized_lstm.yaml")
    added = composed("+network/memory@network.actor_memory=lru")["network"]
    assert added["actor_memory"] == file_settings("network/memory/lru.yaml")


@pytest.mark.parametrize("command", ["ff_pqn", "ff_reppo"])
def test_schedules_of_an_environments_file_are_for_ppo(command: str) -> None:
    assert launched("ff_ppo", ["env=pgx/connect_four"]).system.schedules
    assert launched(command, ["env=pgx/connect_four"]).system.schedules == {}
    typed = launched(command, ["system.schedules.ent_coef.end=0"])  # which is refused later
    assert typed.system.schedules == {"ent_coef": {"end": 0}}


def test_what_is_typed_wins_over_an_environments_file() -> None:
    assert files_of("env=cartpole")["system"]["gamma"] == 0.98
    for overrides in (["env=cartpole", "system.gamma=0.5"], ["system.gamma=0.5", "env=cartpole"]):
        assert composed(*overrides)["system"]["gamma"] == 0.5


@pytest.mark.parametrize("command, env", [("ff_ppo", "cartpole"), ("rec_pqn", "breakout")])
def test_what_is_for_accelerators_replaces_an_environments_own_values(
    command: str, env: str
) -> None:
    config = launched(command, [f"env={env}", "arch=gpu"])
    assert config.arch.total_num_envs == 32768
    assert config.system.rollout_length == 8
    assert config.system.gamma == launched(command, [f"env={env}"]).system.gamma
    given = launched(command, ["arch=gpu", f"env={env}", "arch.total_num_envs=64"])
    assert given.arch.total_num_envs == 64


def test_whole_configuration_is_the_dataclasses() -> None:
    config = parse(files_of())
    cache = dataclasses.replace(ArchConfig(), compile_cache=None)
    assert (config.arch, config.system, config.env, config.logger) == (
        cache, PPOSettings(), EnvConfig(), LoggerConfig(),
    )  # fmt: skip
    assert parse({}) == Config(system=PPOSettings())


def test_help_text_has_every_key_of_its_algorithm_once() -> None:
    for algorithm in ALGORITHMS:
        lines = help_text(algorithm).splitlines()
        keys = [line.split()[0] for line in lines if line.startswith("  ")]
        assert keys == known_keys([algorithm])


GROUPS = {
    name: PPOSettings if hint is SystemConfig else hint
    for name, hint in typing.get_type_hints(Config).items()
    if dataclasses.is_dataclass(hint)
}


def test_every_setting_has_help_and_a_good_default() -> None:
    for key in known_keys():
        group, _, name = key.rpartition(".")
        cls = GROUPS[group] if group else Config
        own = {}
        if cls is PPOSettings and name not in fields(cls):
            cls = PQNSettings if name in fields(PQNSettings) else REPPOSettings
            own = {"algorithm": cls().algorithm}
        field = fields(cls)[name]
        assert field.metadata["help"], key
        assert set(field.metadata) <= {
            *("help", "low", "high", "above", "infinite", "choices", "importable", "rate", "tune"),
            *("steps", "drawn", "needs"),
            *("traced", "follows", "coupled", "switch"),
        }
        default = getattr(cls(), name)
        parsed: Any = parse({group: {**own, name: default}} if group else {name: default})
        assert getattr(getattr(parsed, group) if group else parsed, name) == default


def setting(key: str, value: Any) -> Any:
    """`key=value` as `parse` takes it."""
    group, name = key.split(".")
    return getattr(getattr(parse({group: {name: value}}), group), name)


INTEGER, OPTIONAL_INTEGER = "system.epochs", "arch.num_updates"
NUMBER, FLAG = "system.gamma", "arch.absolute_metric"
TEXT, MAPPING, OPTIONAL_MAPPING = "env.name", "env.params", "network.actor_torso"
OPTIONAL_NUMBER, LIST, CHOICE = "system.clip_eps_high", "env.extras", "system.objective"
INTEGERS, MAPPINGS = "env.mask", "logger.sinks"
NAN, INF = float("nan"), float("inf")


TAKEN: dict[str, list[tuple[Any, Any]]] = {
    INTEGER: [(3, 3), (1e7, 10_000_000)],
    OPTIONAL_INTEGER: [(None, None)],
    "arch.total_timesteps": [(2**53 + 1, 2**53 + 1)],
    NUMBER: [(1, 1.0)],
    "system.max_grad_norm": [(INF, INF)],
    "system.reward_scale": [(-2, -2.0)],
    FLAG: [(True, True)],
    TEXT: [(None, None)],
    MAPPING: [({"gravity": 9.0}, {"gravity": 9.0})],
    OPTIONAL_MAPPING: [(None, None)],
    OPTIONAL_NUMBER: [(1, 1.0), (None, None)],
    LIST: [([], []), (["step", "last_action"], ["step", "last_action"])],
    INTEGERS: [([1, 3], [1, 3])],
    MAPPINGS: [([{"_target_": "a.B"}], [{"_target_": "a.B"}])],
    CHOICE: [("math.sqrt", "math.sqrt")],
    "system.algorithm": [(ALGORITHMS["ppo"], ALGORITHMS["ppo"])],
}


@pytest.mark.parametrize("key", TAKEN)
def test_value_is_taken(key: str) -> None:
    for given, taken in TAKEN[key]:
        value = setting(key, given)
        assert value == taken
        assert type(value) is type(taken)


def test_a_seed_that_is_not_given_is_drawn() -> None:
    found = {setting("arch.seed", None) for _ in range(8)}
    assert len(found) > 1
    assert all(type(seed) is int and 0 <= seed < 2**32 for seed in found)


def test_a_number_that_is_off_is_in_no_program() -> None:
    off, on, other = (
        parse({"system": {"clip_value_loss": True, "value_clip_eps": value}})
        for value in (None, 0.2, 0.3)
    )
    keys = [program_key(config) for config in (off, on, other)]
    assert keys[0] != keys[1] == keys[2]
    assert "value_clip_eps" not in vars(hyperparameters(off, plan(off, 1)))
    assert hyperparameters(other, plan(other, 1)).value_clip_eps == np.float32(0.3)


REFUSED: dict[str, list[Any]] = {
    INTEGER: [1.5, "3", True, None, NAN, INF, [3], 10**12],
    OPTIONAL_INTEGER: ["none", False, 10**12],
    "arch.max_eval_steps": [10**12],
    "arch.seed": [-1, 2**32],
    NUMBER: ["0.9", True, None, {"value": 0.9}, NAN, INF, -INF],
    "system.actor_lr": [-1e-3, NAN, 1e39],
    "system.max_grad_norm": [NAN, -INF, 0],
    "system.reward_scale": [NAN, INF, 1e39],
    FLAG: [1, "true", None],
    TEXT: [5, True, ""],
    "env.module": [""],
    MAPPING: [[1], None, "a"],
    OPTIONAL_MAPPING: [64, "gru"],
    OPTIONAL_NUMBER: ["high", INF, 0],
    LIST: ["step", None, {"step": True}, 3, False, [3], ["step", None], [["step"]]],
    INTEGERS: [1, None, ["1"], [True], [1.5]],
    MAPPINGS: [["a.B"], {"_target_": "a.B"}],
    CHOICE: [None, 5, True, ["clip"], "", "clipped"],
    "system.advantages": ["my_module.mine"],  # no import path there
    "population.size": [1],
}


@pytest.mark.parametrize("key", REFUSED)
def test_value_is_refused(key: str) -> None:
    for value in REFUSED[key]:
        with pytest.raises(ConfigError) as refusal:
            setting(key, value)
        (line,) = str(refusal.value).splitlines()
        assert line.startswith(f"{key}=")
        for name in ("NoneType", "<class"):
            assert name not in line


BOUNDED = [
    (f"{group}.{field.name}", side, field.metadata[side])
    for group, cls in GROUPS.items()
    for field in fields(cls).values()
    for side in ("low", "above", "high")
    if side in field.metadata
]


def test_bound_is_where_it_is_said_to_be() -> None:
    for key, side, bound in BOUNDED:
        step = {"low": -1, "above": 0, "high": 1}[side]
        within = bound + 1e-9 if side == "above" else bound
        assert setting(key, within) == within
        with pytest.raises(ConfigError, match=rf"^{re.escape(key)}=.* {bound}"):
            setting(key, bound + step)


def test_numbers_have_bounds_and_infinity_is_taken_where_it_says_so() -> None:
    hints = {
        f"{group}.{name}": hint
        for group, cls in GROUPS.items()
        for name, hint in typing.get_type_hints(cls).items()
        if hint in (int, float, int | None, float | None)
    }
    # Of the others only a positive number makes sense; a negative one turns a cost into a reward
    assert hints.keys() - {key for key, _, _ in BOUNDED} == {"system.reward_scale"}
    for key in (key for key, hint in hints.items() if hint in (float, float | None)):
        group, name = key.split(".")
        for value in (INF, "inf", ".inf"):  # text, as Hydra and YAML read these
            if "infinite" in fields(GROUPS[group])[name].metadata:
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
# Libraries of environments and Ray are extras, and some resets are not for all environments
ACTORS = ("arch.actors_on", "arch.actors_wait", "arch.act_on")
BUILT = [key for key in CHOICES if key.partition(".")[0] != "env" and key not in ACTORS]


@pytest.mark.parametrize("number", range(max(len(CHOICES[key]) for key in BUILT)))
def test_choice_is_taken_and_builds(number: int) -> None:
    """Of each setting its choice of this number."""
    raw: dict[str, Any] = {**files_of("env=cartpole")}
    for key in BUILT:
        group, name = key.split(".")
        choice = CHOICES[key][number % len(CHOICES[key])]
        if key != "system.algorithm":  # whose settings and networks differ
            raw[group] = {**raw[group], name: choice}
    raw["system"]["recompute_targets"] = raw["system"]["advantages"] == "vtrace"
    raw["system"]["importance_weights"] = raw["system"]["objective"] == "reinforce"
    if raw["population"]["selection"] != "none":
        raw["population"] |= {"size": 4, "hyperparameters": {"gamma": [0.9, 0.99]}}
    config = parse(raw)
    for key in BUILT:
        group, name = key.split(".")
        assert getattr(getattr(config, group), name) == raw[group][name]
    prepare(config)


def test_misspelt_choice_is_refused_with_the_nearest_and_all() -> None:
    for key, choices in CHOICES.items():
        for choice in choices:
            with pytest.raises(ConfigError) as refusal:
                setting(key, f"{choice}s")
            assert f"did you mean {choice}?" in str(refusal.value)
        with pytest.raises(ConfigError, match=rf"^{key}=\?") as refusal:
            setting(key, "?")
        assert ", ".join(choices) in str(refusal.value)


def test_choices_are_what_there_is() -> None:
    assert CHOICES["system.algorithm"] == tuple(ALGORITHMS)
    assert CHOICES["system.objective"] == tuple(OBJECTIVES)
    assert CHOICES["system.advantages"] == tuple(ESTIMATORS)
    assert CHOICES["system.value_loss"] == tuple(VALUE_LOSSES)
    assert CHOICES["arch.compiler"] == tuple(compile.COMPILERS)


@pytest.mark.parametrize("raw", [{"arch": 3}, {"arch": None}, {"arch": [1]}, {"system": "ppo"}])
def test_group_without_keys_is_refused(raw: dict[str, Any]) -> None:
    (group,) = raw
    with pytest.raises(ConfigError, match=f"^{group}=.* {group}\\.") as refusal:
        parse(raw)
    assert set(re.findall(r"\w+\.\w+", str(refusal.value))) <= set(known_keys())


NEAREST = {
    "system.gama": "system.gamma",
    "system.clip": "system.clip_eps",
    "system.minibatches": "system.num_minibatches",
    "logger.jsonl": "logger.json",
    "network.actor_tors": "network.actor_torso",
    # the right name in the wrong group, or in none
    "arch.gamma": "system.gamma",
    "seed": "arch.seed",
    "clip_epss": "system.clip_eps",
    "SYSTEM.GAMMA": "system.gamma",
    **ELSEWHERE,  # names of other libraries
}


def test_unknown_key_names_the_nearest() -> None:
    for key, nearest in NEAREST.items():
        assert {*re.findall(r"\w+\.[\w.]+", nearest)} <= {*known_keys()}
        assert unknown_key(key).endswith(f" {nearest}?")
    for key in ("x", "system.", "q.q.q", "völlig", "", "network.mlp.units"):
        assert unknown_key(key).rpartition(" ")[2].removesuffix("?") in known_keys()
    more = ["network.actor_torso.layer_sizes"]
    assert more[0] in unknown_key("network.actor_torso.layer_size", more)
    for raw in ({"system": {"gama": 0.9}}, {"sytem": {"gamma": 0.9}}, {"foo": 1}):
        with pytest.raises(ConfigError, match="no such key"):
            parse(raw)


@pytest.mark.parametrize("old, new", RENAMED.items())
def test_a_renamed_key_says_its_new_name(old: str, new: str) -> None:
    assert new in known_keys() or new.startswith("python -m")
    assert old not in known_keys()
    group, name = old.split(".")
    with pytest.raises(ConfigError, match=f"^{old}: .*{new}"):
        parse({group: {name: 1}})


def test_a_folder_of_a_packages_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that in which W&B keeps its files."""
    (tmp_path / "wandbox").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("wandbox")
    assert is_installed("omegaconf")


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


def test_an_algorithm_of_ones_own_has_its_settings() -> None:
    own = {"algorithm": "test_configs.Own"}
    system = parse({"system": {**own, "learning_rate": 0.1, "gamma": 0.9}}).system
    assert system == OwnSettings(algorithm="test_configs.Own", learning_rate=0.1, gamma=0.9)
    for name, value in {"learning_rate": -1, "learning_rat": 1, "clip_eps": 0.1}.items():
        with pytest.raises(ConfigError, match=rf"^system\.{name}\b"):
            parse({"system": {**own, name: value}})


@pytest.mark.parametrize(
    "value, words",
    [
        ("PPO", "ppo"),
        (None, "ppo, pqn, reppo"),
        ("", "system.algorithm"),
        (".mine", "an import path"),
        ("no_such_module.Mine", "no_such_module"),
        ("json.Nothing", "Nothing"),
        ("json.JSONDecoder", "jaxppo.algorithms.algorithm.Algorithm"),
        ("os.getcwd", "class"),
        ("test_configs.Incomplete", "loss, targets"),
        ("test_configs.NoAlgorithm", "jaxppo.algorithms.algorithm.Algorithm"),
    ],
)
def test_what_is_no_algorithm_is_refused(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=r"^system\.algorithm=") as refusal:
        parse({"system": {"algorithm": value}})
    (line,) = str(refusal.value).splitlines()
    assert words in line


# What a plan of 8 environments x 6 steps refuses: settings, devices, and the ways out.
ENVS, UPDATES, WARM_UP = "arch.total_num_envs", "arch.num_updates", "system.obs_norm_warmup_steps"
STEPS, BLOCKS, PARTS = "arch.total_timesteps", "arch.num_evaluation", "system.num_minibatches"
SHARED, NORMALIZE = "arch.update_batch_size", "system.normalize_observations"
OBJECTIVE, ADAPT = "system.objective", "system.adapt_kl_coef"
HIGH, LENGTH, BURN_IN = "system.clip_eps_high", "system.sequence_length", "system.burn_in"
MEMORY, ROLLOUT, RECOMPUTE = (
    "network.actor_memory", "system.rollout_length", "system.recompute_carries",
)  # fmt: skip
OVER, TARGETS = "system.standardize_advantages", "system.recompute_targets"
VALUES, MICROBATCH = "system.normalize_values", "system.microbatch_size"
Settings = dict[str, Any]
LSTM = {"_target_": "jaxppo.networks.memory.Recurrent"}
WHOLE: Settings = {MEMORY: LSTM, LENGTH: None}
PLANS: list[tuple[Settings, int, list[Settings]]] = [
    ({ENVS: 10}, 4, [{ENVS: 8}]),
    ({ENVS: 3}, 4, [{ENVS: 4}]),
    ({ENVS: 20, SHARED: 3}, 2, [{ENVS: 18}]),
    ({ENVS: 2**27, ROLLOUT: 32}, 1, [{ENVS: 2**20}, {ROLLOUT: 1}]),  # more than int32 numbers
    ({PARTS: 5}, 1, [{PARTS: 6}]),
    ({PARTS: 7}, 2, [{PARTS: 8}]),
    ({PARTS: 1000}, 1, [{PARTS: 48}]),
    ({STEPS: 47}, 1, [{STEPS: 48}]),
    ({STEPS: 96, BLOCKS: 3}, 1, [{BLOCKS: 2}, {STEPS: 144}, {ENVS: 4}]),
    ({UPDATES: 2, BLOCKS: 3}, 1, [{BLOCKS: 2}, {UPDATES: 3}]),
    ({WARM_UP: 9, NORMALIZE: False}, 1, [{NORMALIZE: True}, {WARM_UP: 0}]),
    ({ADAPT: True, OBJECTIVE: "dpo"}, 1, [{OBJECTIVE: "penalty"}, {ADAPT: False}]),
    ({HIGH: 0.3, OBJECTIVE: "dpo"}, 1, [{HIGH: None}, {OBJECTIVE: "clip"}]),
    ({"system.advantages": "vtrace"}, 1, [{TARGETS: True}]),
    ({TARGETS: True, VALUES: True}, 1, [{TARGETS: False}, {VALUES: False}]),
    ({LENGTH: 4}, 1, [{LENGTH: 3}]),
    ({LENGTH: 9}, 1, [{LENGTH: 6}]),
    ({LENGTH: None, PARTS: 12}, 1, [{PARTS: 8}]),
    ({LENGTH: 3, PARTS: 3}, 4, [{PARTS: 2}]),
    ({MEMORY: LSTM}, 1, [{LENGTH: None}]),  # it sees one step at a time
    ({**WHOLE, ROLLOUT: 1}, 1, [{ROLLOUT: 2}]),
    ({**WHOLE, BURN_IN: 6}, 1, [{BURN_IN: 5}]),
    ({LENGTH: None, BURN_IN: 2}, 1, [{BURN_IN: 0}]),
    ({RECOMPUTE: True}, 1, [{RECOMPUTE: False}]),
    ({**WHOLE, RECOMPUTE: True}, 1, [{LENGTH: 3}, {RECOMPUTE: False}]),
    ({MEMORY: LSTM, LENGTH: 3, BURN_IN: 1, MICROBATCH: 1}, 1, [{MICROBATCH: 2}]),
    ({ENVS: 1, ROLLOUT: 1, OVER: "batch"}, 1, [{ENVS: 2}, {ROLLOUT: 2}, {OVER: "none"}]),
    ({PARTS: 48, OVER: "minibatch"}, 1, [{PARTS: 24}, {OVER: "batch"}]),
    ({**WHOLE, ENVS: 1, ROLLOUT: 2, BURN_IN: 1, OVER: "minibatch"}, 1, [{OVER: "batch"}]),
]


def planned(changes: Settings, num_devices: int) -> Any:
    raw: dict[str, Any] = {
        "arch": {"total_num_envs": 8, "num_evaluation": 1, "total_timesteps": 10**9},
        "system": {"rollout_length": 6, "num_minibatches": 1},
        "network": {},
    }
    for key, value in changes.items():
        group, name = key.split(".")
        raw[group][name] = value
    return plan(parse(raw), num_devices)


@pytest.mark.parametrize("changes, num_devices, ways_out", PLANS)
def test_plan_refuses_and_its_ways_out_work(
    changes: Settings, num_devices: int, ways_out: list[Settings]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        planned(changes, num_devices)
    (line,) = str(refusal.value).splitlines()
    for way_out in ways_out:
        for key, value in way_out.items():
            assert key in line
            if key in (*(STEPS, UPDATES, BLOCKS, BURN_IN), *([ENVS, PARTS] * (len(ways_out) < 2))):
                assert value is None or re.search(rf"\b{value}\b", line)  # the nearest that is
        planned({**changes, **way_out}, num_devices)


def test_advantages_are_standardised_over_all_learners() -> None:
    """So one transition of each of two learners is enough."""
    for over in ("batch", "minibatch"):
        planned({ENVS: 2, ROLLOUT: 1, SHARED: 2, OVER: over}, 1)
        planned({ENVS: 2, ROLLOUT: 1, OVER: over}, 2)
    batch = {**WHOLE, ENVS: 1, ROLLOUT: 2, BURN_IN: 1, OVER: "batch"}
    assert planned(batch, 1).minibatch_size == 1


def test_sequences_are_whole_rollouts_unless_said_and_minibatches_go_without_burn_in() -> None:
    lengths = [planned({LENGTH: length}, 1).sequence_length for length in (None, 1, 3)]
    assert lengths == [6, 1, 3]
    for burn_in, size in ((0, 24), (2, 16)):
        assert planned({**WHOLE, BURN_IN: burn_in, PARTS: 2}, 1).minibatch_size == size


def test_nearest_divisor_of_a_large_batch_is_found_at_once() -> None:
    started = time.perf_counter()
    for num_minibatches in (999_999_937, 2**31 - 1):
        with pytest.raises(ConfigError, match=PARTS):
            planned({ENVS: 2**20, ROLLOUT: 2**10, PARTS: num_minibatches}, 1)
    assert time.perf_counter() - started < 2.0


def test_num_updates_goes_before_total_timesteps_and_one_of_them_is_needed() -> None:
    with pytest.raises(ConfigError, match=f"{STEPS}=null and {UPDATES}=null"):
        planned({STEPS: None}, 1)
    result = planned({UPDATES: 3, STEPS: 1}, 1)
    assert (result.num_updates, result.total_steps, result.requested_steps) == (3, 144, None)


def test_upper_clip_bound_is_the_lower_unless_given() -> None:
    for high, objective in ((0.3, "clip"), (0.3, "math.sqrt"), (None, "clip")):
        derived = planned({HIGH: high, OBJECTIVE: objective, "system.clip_eps": 0.1}, 1)
        system = {"clip_eps": 0.1, "clip_eps_high": high, "objective": objective}
        hp = hyperparameters(parse({"system": system}), derived)
        assert float(hp.clip_eps) == pytest.approx(0.1)
        assert float(hp.clip_eps_high) == pytest.approx(high or 0.1)


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
