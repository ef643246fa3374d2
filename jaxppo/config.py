"""Settings: plain containers -> `parse` -> frozen dataclasses -> `plan` -> derived numbers.

A field's metadata hold its help text and its rule; `--help`, the checks and the comments of the
YAML files are made from or tested against them. Nothing writes back into a configuration.
"""

import dataclasses
import difflib
import math
import re
import shlex
import types
import typing
from collections.abc import Sequence
from typing import Any


class ConfigError(ValueError):
    """A setting that cannot be: one line with key, value, rule and the way out."""


def setting(default: Any, help: str, **rule: Any) -> Any:
    """A field with its help and its rule.

    `low`, `high`, `above` and `infinite` are of numbers; `choices` are names, beside which
    `importable` takes import paths, such as my_module.my_choice.
    """
    if isinstance(default, dict | list):
        return dataclasses.field(
            default_factory=lambda: type(default)(default), metadata={"help": help, **rule}
        )
    return dataclasses.field(default=default, metadata={"help": help, **rule})


MAX_MEMBERS = 2**16  # of one program: each has a directory and a configuration of its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchConfig:
    """How much of what runs where."""

    seed: int = setting(42, "seed of everything random", low=0, high=2**32 - 1)
    num_seeds: int = setting(
        1,
        "independent agents trained at once, of seeds seed, seed + 1 and so on",
        low=1,
        high=MAX_MEMBERS,
    )
    total_num_envs: int = setting(1024, "environments over all devices and update batches", low=1)
    update_batch_size: int = setting(
        1, "update batches per device that share parameters and average gradients", low=1
    )
    total_timesteps: int | None = setting(
        1_000_000,
        "environment steps to train for, rounded up to whole updates",
        low=1,
        high=2**62,
    )
    num_updates: int | None = setting(
        None, "updates to train for; where set, total_timesteps is not read", low=1
    )
    num_evaluation: int = setting(10, "evaluations, evenly spaced over the updates", low=1)
    num_eval_episodes: int = setting(128, "episodes of one evaluation", low=1)
    max_eval_steps: int | None = setting(
        None, "steps after which evaluation stops; null: the environment's time limit", low=1
    )
    evaluation_greedy: bool = setting(
        True, "evaluate the mode of the policy, without noise; false: its samples"
    )
    absolute_metric: bool = setting(
        True, "at the end, evaluate the best parameters again over 10 x num_eval_episodes"
    )
    plan_only: bool = setting(False, "print the plan, compile, print cost and memory, and stop")
    on_nonfinite: str = setting(
        "stop",
        "NaN or infinity in training: stop at the block's end, or skip (and count) gradient steps",
        choices=("stop", "skip"),
    )
    precision: str = setting(
        "float32",
        "of torsos: float32, or bf16 (parameters, sums, heads, losses and statistics stay float32)",
        choices=("float32", "bf16"),
    )
    compiler: str = setting(
        "thorough",
        "on CPUs: thorough, or quick (for runs of seconds: programs compile in about two thirds of "
        "the time, with 0.3 GB less, and run at 0.8 to 0.9 of the speed)",
        choices=("thorough", "quick"),
    )
    profile: str | None = setting(
        None, "folder for a profiler trace of two updates before the first block; null: none"
    )
    compile_cache: str | None = setting(
        "~/.cache/jaxppo", "folder of compiled programs, shared by all runs; null: no cache"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """PPO."""

    actor_lr: float = setting(3e-4, "Adam step size of actor and shared parameters", low=0)
    critic_lr: float = setting(3e-4, "Adam step size of the critic's parameters", low=0)
    rollout_length: int = setting(32, "steps of every environment between two updates", low=1)
    sequence_length: int | None = setting(
        1,
        "steps in a row that a memory learns from together; null, as in rec_ppo: the rollout",
        low=1,
    )
    burn_in: int = setting(
        0, "first steps of each sequence that only bring its memory up to date", low=0
    )
    refresh_carries: bool = setting(
        False, "before every pass, memories at sequences' openings anew by the current parameters"
    )
    epochs: int = setting(4, "passes over each rollout", low=1)
    num_minibatches: int = setting(16, "gradient steps of each pass", low=1)
    gradient_chunk: int | None = setting(
        None,
        "transitions of a minibatch that are differentiated at a time, at most; null: as suits the "
        "machine",
        low=1,
    )
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    gae_lambda: float = setting(0.95, "decay of the advantage sum", low=0, high=1)
    advantages: str = setting(
        "gae", "estimator of advantages and value targets: gae, vtrace", choices=("gae", "vtrace")
    )
    rho_clip: float = setting(1.0, "vtrace: largest weight of a step's error", above=0)
    c_clip: float = setting(1.0, "vtrace: largest weight carried to earlier steps", above=0)
    recompute_advantages: bool = setting(
        False, "estimate advantages anew before every pass, by the parameters of that moment"
    )
    standardize_advantages: str = setting(
        "batch",
        "advantages to mean 0 and standard deviation 1 over the batch, each minibatch, or none",
        choices=("batch", "minibatch", "none"),
    )
    objective: str = setting(
        "clip",
        "of the policy: clip, penalty (KL), dpo (Lu et al. 2022), reinforce (with epochs=1), or an "
        "import path",
        choices=("clip", "penalty", "dpo", "reinforce"),
        importable=True,
    )
    clip_eps: float = setting(0.2, "the probability ratio is clipped below 1 - clip_eps", above=0)
    clip_eps_high: float | None = setting(
        None, "and above 1 + clip_eps_high; null: clip_eps", above=0
    )
    kl_coef: float = setting(1.0, "penalty: weight of KL(old || new)", low=0)
    adapt_kl_coef: bool = setting(
        False, "penalty: double or halve kl_coef where an update's KL leaves kl_target by half"
    )
    kl_target: float = setting(0.01, "nats an update at which adapt_kl_coef aims", above=0)
    dpo_alpha: float = setting(
        2.0, "dpo: scale of its drift where advantages are positive", above=0
    )
    dpo_beta: float = setting(0.6, "dpo: scale of its drift where they are negative", above=0)
    kl_stop: float = setting(
        math.inf,
        "nats of a minibatch's KL at which an update's passes end; .inf: never",
        above=0,
        infinite=True,
    )
    ent_coef: float = setting(0.01, "weight of the entropy bonus", low=0)
    vf_coef: float = setting(0.5, "weight of the value loss", low=0)
    value_loss: str = setting("squared", "squared or huber", choices=("squared", "huber"))
    huber_delta: float = setting(1.0, "huber: error from which the loss is linear", above=0)
    clip_value_loss: bool = setting(
        False, "clip the value's change by clip_eps too, and take the larger loss"
    )
    max_grad_norm: float = setting(
        0.5,
        "largest global norm of the actor's and of the critic's gradient; .inf: no clipping",
        above=0,
        infinite=True,
    )
    clip_together: bool = setting(
        False, "clip one norm of actor and critic together, instead of one each"
    )
    decay_learning_rates: bool = setting(True, "step sizes fall linearly to zero over the run")
    reward_scale: float = setting(1.0, "factor on rewards in training, not in reports")
    normalize_rewards: bool = setting(
        False, "divide them by the running standard deviation of their discounted sums"
    )
    reward_clip: float = setting(
        math.inf,
        "largest magnitude of a reward in training, after scaling; .inf: no clipping",
        above=0,
        infinite=True,
    )
    normalize_values: bool = setting(
        False, "the critic learns targets of running mean 0 and standard deviation 1"
    )
    value_norm_decay: float = setting(
        0.99, "an update, of the averages behind normalize_values", low=0, high=1
    )
    normalize_observations: bool = setting(
        False, "float observations to running mean 0 and standard deviation 1, clipped at 10"
    )
    obs_norm_warmup_steps: int = setting(
        0, "environment steps before training for the statistics alone, rounded up to rollouts",
        low=0,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment; `env=NAME` picks a file of configs/env with settings that suit it."""

    library: str = setting(
        "gymnax",
        "of name: gymnax, brax, craftax, jumanji, navix, pgx, playground, xminigrid",
        choices=(
            *("gymnax", "brax", "craftax", "jumanji", "navix", "pgx", "playground", "xminigrid"),
        ),
    )
    name: str | None = setting(
        "CartPole-v1", "a registered id of the library; where target is set, name is not read"
    )
    target: str | None = setting(
        None, "import path of a class of your own, of gymnax's contract or of jaxppo's"
    )
    module: str | None = setting(None, "module to import first, such as one that registers ids")
    kwargs: dict[str, Any] = setting({}, "arguments of the environment's constructor")
    params: dict[str, Any] = setting({}, "changes to the environment's default parameters")
    resets: str = setting(
        "each",
        "openings of further episodes: each its own, optimistic (one for reset_ratio environments, "
        "shared where more end at once), cached (those of the first episodes)",
        choices=("each", "optimistic", "cached"),
    )
    reset_ratio: int = setting(
        16, "optimistic: environments to one opening that a step makes", low=1
    )
    mask: list[int] = setting([], "entries of a vector observation that are hidden: they read 0")
    extras: list[str] = setting(
        [], "further entries of the observation: last_action, last_reward, step"
    )
    action_mask: str | None = setting(
        "action_mask", "entry of a dict observation that says which actions are legal; null: none"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Layers of the actor-critic, shared -> (actor, critic), as `_target_` and arguments."""

    input_layer: dict[str, Any] | None = setting(None, "from an observation to features")
    shared_torso: dict[str, Any] | None = setting(None, "before both branches; null: none")
    shared_memory: dict[str, Any] | None = setting(
        None, "memory of both branches, after shared_torso; null: none"
    )
    actor_torso: dict[str, Any] | None = setting(
        None, "before the actor's memory and head; null: none"
    )
    actor_memory: dict[str, Any] | None = setting(None, "the actor's memory; null: none")
    actor_post_torso: dict[str, Any] | None = setting(
        None, "between the actor's memory and its head; null: none"
    )
    critic_torso: dict[str, Any] | None = setting(
        None, "before the critic's memory and head; null: none"
    )
    critic_memory: dict[str, Any] | None = setting(None, "the critic's memory; null: none")
    critic_post_torso: dict[str, Any] | None = setting(
        None, "between the critic's memory and its head; null: none"
    )
    actor_head: dict[str, Any] | None = setting(
        None, "features to a distribution over actions; the default follows the action space"
    )
    critic_head: dict[str, Any] | None = setting(None, "features to a value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationConfig:
    """Members that differ in hyperparameters, and what becomes of the worse ones."""

    size: int | None = setting(
        None,
        "members, of seeds seed, seed + 1 and so on; null: none",
        low=2,
        high=MAX_MEMBERS,
    )
    selection: str = setting(
        "none",
        "after evaluations: pbt (worse members copy better ones and explore), halving (worse ones "
        "end), or none",
        choices=("none", "pbt", "halving"),
    )
    hyperparameters: dict[str, Any] = setting(
        {}, "numbers of system that differ, each with its bounds [low, high]"
    )
    initialize: str = setting(
        "sample",
        "their first values: sample (uniform between the bounds, in the logarithm where these are "
        "positive), or config (those of system)",
        choices=("sample", "config"),
    )
    interval: int = setting(1, "pbt: evaluations from one selection to the next", low=1)
    threshold: float = setting(
        0.2, "pbt: share of members that copy one of as many best ones", above=0, high=0.5
    )
    perturbation: float = setting(
        1.25, "pbt: factor that a copied number is multiplied or divided by", low=1
    )
    resample: float = setting(
        0.25, "pbt: probability that a number is drawn anew instead", low=0, high=1
    )
    reduction: int = setting(2, "halving: one of so many members goes on after a rung", low=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What a run goes on from after it was stopped; in checkpoints/ of the run directory."""

    enabled: bool = setting(
        True, "save what a killed run goes on from, after evaluations and at the end"
    )
    share: float = setting(
        0.02,
        "largest share of the run's time that goes into checkpoints; 1: one after every evaluation",
        low=0,
        high=1,
    )
    keep: int = setting(2, "latest ones that stay, beside the one that evaluated best", low=1)
    milestones: list[int] = setting(
        [], "environment steps; the first checkpoint at or after each stays too"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """What is written where; files go into the run directory (hydra.run.dir)."""

    console: bool = setting(True, "progress on standard output")
    json: bool = setting(True, "metrics.jsonl (an object an event) and summary.json")
    plot: bool = setting(True, "learning_curve.png")
    marl_eval: bool = setting(False, "marl_eval.json, the evaluations as MARL-eval reads them")
    tensorboard: bool = setting(False, "event files in tensorboard/; needs 'jaxppo[tensorboard]'")
    wandb: bool = setting(False, "Weights & Biases, with files in wandb/; needs 'jaxppo[wandb]'")
    wandb_mode: str | None = setting(
        None,
        "online, or offline (kept for `wandb sync`); null: WANDB_MODE, else online",
        choices=("online", "offline"),
    )
    wandb_project: str = setting("jaxppo", "its project")
    wandb_entity: str | None = setting(None, "its user or team; null: your default")
    wandb_group: str | None = setting(
        None, "its group; null: the directory of the sweep, else of the members, if any"
    )
    wandb_tags: list[str] = setting([], "its tags")
    wandb_members: int = setting(
        16, "members of one run, at most, that have W&B runs of their own beside their sum", low=0
    )
    sinks: list[dict[str, Any]] = setting(
        [], "your own, each an import path (_target_) and arguments; see docs/sinks.md"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    arch: ArchConfig = dataclasses.field(default_factory=ArchConfig)
    system: SystemConfig = dataclasses.field(default_factory=SystemConfig)
    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    population: PopulationConfig = dataclasses.field(default_factory=PopulationConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    logger: LoggerConfig = dataclasses.field(default_factory=LoggerConfig)
    resume: str | None = setting(
        None, "a run directory to go on in, to its budget or to a larger arch.total_timesteps"
    )
    resume_allow: list[str] = setting(
        [], "settings, or groups of them, that may differ from those of the run that is resumed"
    )
    trust: list[str] = setting(
        [], "import paths, such as my_package, that the settings of a resumed run may name"
    )


def parse(raw: dict[str, Any]) -> Config:
    """Plain containers to a `Config`; `ConfigError` on an unknown key, a wrong type or a rule."""
    return typing.cast(Config, _parse(Config, raw, ""))


def _parse(cls: type, raw: Any, prefix: str) -> Any:
    if not isinstance(raw, dict):
        example = next(key for key in known_keys() if key.startswith(prefix))
        raise ConfigError(f"{prefix.rstrip('.')}={raw!r}: must hold keys, such as {example}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if name not in fields:
            raise ConfigError(unknown_key(key))
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _parse(typing.cast(type, hints[name]), value, f"{key}.")
        else:
            values[name] = _check(key, value, hints[name], fields[name].metadata)
    return cls(**values)


def as_argument(key: str, value: Any) -> str:
    """How a user types a setting of text in a shell: quoted for Hydra, and for the shell."""
    text = str(value)
    plain = re.fullmatch(r"[\w./@%:+-]+", text, re.ASCII)
    return shlex.quote(f"{key}={text if plain else quoted(text)}")


def quoted(text: str) -> str:
    """Text in quotes as Hydra reads it: there a backslash counts before a quote alone."""
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"


def parse_as(cls: type, raw: dict[str, Any]) -> Any:
    """The same for another dataclass of settings, of one level."""
    names = [field.name for field in dataclasses.fields(cls)]
    for name in raw:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.0)
            raise ConfigError(f"{name}: no such key; did you mean {near[0]}?")
    return _parse(cls, raw, "")


def known_keys() -> list[str]:
    """Every settable key, such as `system.gamma`."""
    hints = typing.get_type_hints(Config)
    return [
        key
        for field in dataclasses.fields(Config)
        for key in (
            [f"{field.name}.{inner.name}" for inner in dataclasses.fields(hints[field.name])]
            if dataclasses.is_dataclass(hints[field.name])
            else [field.name]
        )
    ]


def unknown_key(key: str, more: Sequence[str] = ()) -> str:
    """The line that says that `key` does not exist, with the nearest that does (or of `more`)."""
    known = [*known_keys(), *more]
    lower = key.lower()
    groups = [field.name for field in dataclasses.fields(Config) if "help" not in field.metadata]
    if "." not in key and (alike := difflib.get_close_matches(lower, groups, 1, 0.7)):
        return f"{key}: no such key; did you mean {alike[0]}=NAME, or {alike[0]}.KEY=VALUE?"
    last = lower.rpartition(".")[2]
    by_name = {k.rpartition(".")[2]: k for k in known}
    near = [by_name[last]] if last in by_name else [k for k in known if k.startswith(lower)][:1]
    near = near or difflib.get_close_matches(lower, known, 1, 0.5)
    near = near or [by_name[n] for n in difflib.get_close_matches(last, list(by_name), 1, 0.0)]
    return f"{key}: no such key; did you mean {near[0]}?"


def _check(key: str, value: Any, hint: Any, rule: typing.Mapping[str, Any]) -> Any:
    """`value` as the annotated type, within the rule of its field."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    wanted = next(option for option in options if option is not type(None))
    if value is None:
        if type(None) in options:
            return None
        raise ConfigError(f"{key}=null: must be {_kind(wanted, rule)}")
    kind = typing.get_origin(wanted) or wanted
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if rule.get("infinite") and value in ("inf", ".inf"):  # text, as Hydra and YAML read these
        value = math.inf
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        optional = " or null" if type(None) in options else ""
        way_out = _group_of_layer(key) if isinstance(value, str) else ""
        if kind is str and isinstance(value, int | float):
            way_out = f"; in quotes it is text: \"{key}='{value}'\""
        raise ConfigError(
            f"{key}={value}: must be {_kind(wanted, rule)}{optional}, not {type(value).__name__}"
            f"{way_out}"
        )
    if kind in (int, float):
        _check_number(key, value, rule)
    if value == "":
        raise ConfigError(f"{key}='': must be text that is not empty")
    if kind is list:
        (inner,) = typing.get_args(wanted)
        wanted_item = typing.get_origin(inner) or inner
        if wanted_item is not Any and not all(type(item) is wanted_item for item in value):
            raise ConfigError(f"{key}={value}: must be {_kind(wanted, rule)}")
    choices = rule.get("choices")
    importable = bool(rule.get("importable"))
    if choices and value not in choices and not (importable and is_import_path(value)):
        near = difflib.get_close_matches(value, choices, 1, 0.0)[0]
        path = ", and no import path such as my_module.mine" if importable else ""
        raise ConfigError(
            f"{key}={value}: no such choice{path}; did you mean {near}? (of {', '.join(choices)})"
        )
    return value


def is_import_path(choice: str) -> bool:
    """Whether a choice is an import path, and none of the names."""
    return "." in choice


def _group_of_layer(key: str) -> str:
    """How the layer `key` is chosen by name; empty for other keys."""
    section, _, place = key.partition(".")
    if section != "network":
        return ""
    kind = place.rpartition("_")[2]
    group = f"network/{kind}@{key}" if kind in ("torso", "memory") else f"network/{place}"
    return f"; by name with a slash: {group}=NAME"


MAX_INT, MAX_FLOAT = 2**31 - 1, float.fromhex("0x1.fffffep+127")  # of int32 and float32


_TYPE_NAMES: dict[Any, str] = {
    int: "an integer (1e7 is one)",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict[str, Any]: "keys and values",
    list[str]: "a list of names, such as [one,two]",
    list[int]: "a list of integers, such as [1,3]",
    list[float]: "a list of numbers",
    list[Any]: "a list",
    list[dict[str, Any]]: "a list of keys and values, such as [{_target_: my_module.MySink}]",
}


def _kind(kind: Any, rule: typing.Mapping[str, Any]) -> str:
    choices = rule.get("choices")
    return f"one of {', '.join(choices)}" if choices else _TYPE_NAMES[kind]


def takes(hint: Any, rule: typing.Mapping[str, Any]) -> str:
    """What a setting of this annotation and rule takes, in words."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    wanted = next(option for option in options if option is not type(None))
    bounds = _bounds(rule)
    words = [
        _kind(wanted, rule) + (f", {bounds}" if bounds else ""),
        "an import path" if rule.get("importable") else "",
        ".inf" if rule.get("infinite") else "",
        "null" if type(None) in options else "",
    ]
    return "; or ".join(word for word in words if word)


def _bounds(rule: typing.Mapping[str, Any]) -> str:
    names = {"low": "at least", "above": "above", "high": "at most"}
    return " and ".join(
        f"{words} {rule[name]}" for name, words in names.items() if rule.get(name) is not None
    )


def _check_number(key: str, value: float, rule: typing.Mapping[str, Any]) -> None:
    low, high, above, rules = rule.get("low"), rule.get("high"), rule.get("above"), _bounds(rule)
    if math.isnan(value) or (math.isinf(value) and not rule.get("infinite")):
        raise ConfigError(f"{key}={value}: must be a finite number{', ' if rules else ''}{rules}")
    if (
        (low is not None and value < low)
        or (above is not None and value <= above)
        or (high is not None and value > high)
    ):
        nearest = high if high is not None and value > high else low if low is not None else None
        way_out = f"; the nearest that is: {nearest}" if nearest is not None else ""
        raise ConfigError(f"{key}={value}: must be {rules}{way_out}")
    most = high if high is not None else MAX_INT if isinstance(value, int) else MAX_FLOAT
    if abs(value) > most and not math.isinf(value):
        raise ConfigError(f"{key}={value}: must be at most {most}, what 32 bits hold")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Numbers that follow from a `Config` and the number of devices, in exact integers."""

    num_devices: int  # D
    num_members: int  # P, of all devices
    devices_per_member: int  # D: a member's environments are spread; 1: the members are
    update_batch_size: int  # U
    num_envs: int  # B, of one device, member and update batch
    rollout_length: int  # T
    sequence_length: int  # L
    steps_per_update: int  # of a member: devices_per_member * U * B * T
    minibatch_size: int  # transitions of one device, member and update batch in a gradient step
    minibatch_sequences: int  # that these are in
    num_updates: int
    updates_per_block: tuple[int, ...]  # one entry an evaluation
    total_steps: int  # of a member, that will run: num_updates * steps_per_update
    requested_steps: int | None  # total_timesteps, where that was the request
    warmup_rollouts: int
    eval_episodes_per_device: int  # of a member

    @property
    def spreads_members(self) -> bool:
        """Whether each device has members of its own, rather than a part of every member."""
        return self.devices_per_member < self.num_devices

    @property
    def members_per_device(self) -> int:
        """P of one device's program."""
        return self.num_members * self.devices_per_member // self.num_devices

    @property
    def warmup_steps(self) -> int:
        """Environment steps before training, on top of `total_steps`."""
        return self.warmup_rollouts * self.steps_per_update


def plan(config: Config, num_devices: int, members: int | None = None) -> Plan:
    """Derive every size; `ConfigError` where they do not fit each other.

    `members`: of the program, where it trains other jobs too; None: those of `config`.
    """
    arch, system = config.arch, config.system
    _check_combinations(system)
    sequence_length = _sequence_length(config)
    count = num_members(config) if members is None else members
    spread = count > 1 and count % num_devices == 0
    shards = 1 if spread else num_devices
    learners = shards * arch.update_batch_size
    devices = f"{shards} device{'s' if shards > 1 else ''}"
    if arch.total_num_envs % learners:
        down = arch.total_num_envs // learners * learners
        raise ConfigError(
            f"arch.total_num_envs={arch.total_num_envs} is not a multiple of {learners} learners "
            f"({devices} x arch.update_batch_size={arch.update_batch_size}); "
            f"the nearest that is: {down or learners}"
        )
    num_envs = arch.total_num_envs // learners
    batch = num_envs * system.rollout_length
    if batch > MAX_INT:
        raise ConfigError(
            f"arch.total_num_envs={arch.total_num_envs}: {num_envs:,} environments x "
            f"system.rollout_length={system.rollout_length} are {batch:,} transitions for each "
            f"device and update batch, and at most {MAX_INT:,} can be numbered; lower one of them"
        )
    num_sequences = batch // sequence_length
    if num_sequences % system.num_minibatches:
        of = (
            f"a batch of {batch} ({num_envs} environments x "
            if sequence_length == 1
            else f"{num_sequences} sequences of {sequence_length} steps ({num_envs} environments x "
        )
        raise ConfigError(
            f"system.num_minibatches={system.num_minibatches} does not divide {of}"
            f"system.rollout_length={system.rollout_length}); "
            f"the nearest that does: {_nearest_divisor(num_sequences, system.num_minibatches)}"
        )
    steps_per_update = learners * batch
    learnt = num_sequences * (sequence_length - system.burn_in)  # by one device and update batch
    if system.standardize_advantages == "minibatch" and learners * learnt == system.num_minibatches:
        raise ConfigError(
            "system.standardize_advantages=minibatch: a minibatch of one transition has no "
            f"spread; lower system.num_minibatches={system.num_minibatches}, or take batch"
        )
    if system.gradient_chunk is not None and system.gradient_chunk < learnt // num_sequences:
        raise ConfigError(
            f"system.gradient_chunk={system.gradient_chunk} is less than one sequence of "
            f"{learnt // num_sequences} transitions, which cannot be parted; at least that, or null"
        )
    num_updates = _num_updates(arch, steps_per_update)
    blocks = arch.num_evaluation
    if num_updates < blocks:
        raise_to = (
            f"arch.total_timesteps to {blocks * steps_per_update}"
            if arch.num_updates is None
            else f"arch.num_updates to {blocks}"
        )
        raise ConfigError(
            f"arch.num_evaluation={blocks} is more than {num_updates} updates of "
            f"{steps_per_update} steps; at most {num_updates}, or raise {raise_to}"
        )
    return Plan(
        num_devices=num_devices,
        num_members=count,
        devices_per_member=shards,
        update_batch_size=arch.update_batch_size,
        num_envs=num_envs,
        rollout_length=system.rollout_length,
        sequence_length=sequence_length,
        steps_per_update=steps_per_update,
        minibatch_size=learnt // system.num_minibatches,
        minibatch_sequences=num_sequences // system.num_minibatches,
        num_updates=num_updates,
        updates_per_block=tuple(
            (i + 1) * num_updates // blocks - i * num_updates // blocks for i in range(blocks)
        ),
        total_steps=num_updates * steps_per_update,
        requested_steps=arch.total_timesteps if arch.num_updates is None else None,
        warmup_rollouts=-(-system.obs_norm_warmup_steps // steps_per_update),
        eval_episodes_per_device=-(-arch.num_eval_episodes // shards),
    )


def num_members(config: Config) -> int:
    """How many agents a run trains."""
    return config.population.size or config.arch.num_seeds


def _check_combinations(system: SystemConfig) -> None:
    """`ConfigError` on settings that contradict each other."""
    if system.obs_norm_warmup_steps and not system.normalize_observations:
        raise ConfigError(
            f"system.obs_norm_warmup_steps={system.obs_norm_warmup_steps} needs "
            "system.normalize_observations=true; or set it to 0"
        )
    if system.adapt_kl_coef and system.objective != "penalty":
        raise ConfigError(
            f"system.adapt_kl_coef=true needs system.objective=penalty, not {system.objective}; "
            "or set it to false"
        )
    if system.adapt_kl_coef and not system.kl_coef:
        raise ConfigError(
            "system.adapt_kl_coef=true needs a system.kl_coef above 0, not 0.0, which no factor "
            "changes; or set it to false"
        )
    if system.advantages == "vtrace" and not system.recompute_advantages:
        raise ConfigError(
            "system.advantages=vtrace corrects for a policy that has moved since it acted, and "
            "advantages are estimated before it moves; add system.recompute_advantages=true, or "
            "use gae"
        )
    if system.recompute_advantages and system.normalize_values:
        raise ConfigError(
            "system.recompute_advantages=true would read values in units that the critic has not "
            "learnt yet, with system.normalize_values=true; set one of them to false"
        )
    takes_high = system.objective == "clip" or is_import_path(system.objective)
    if system.clip_eps_high is not None and not takes_high:
        raise ConfigError(
            f"system.clip_eps_high={system.clip_eps_high} needs system.objective=clip, not "
            f"{system.objective}; or set it to null"
        )


def memories(network: NetworkConfig) -> list[str]:
    """The names of the memories that a network has."""
    names = [field.name for field in dataclasses.fields(network)]
    return [name for name in names if name.endswith("_memory") and getattr(network, name)]


def _sequence_length(config: Config) -> int:
    """Steps of a sequence; `ConfigError` where they do not suit the rollout or the network."""
    system, found = config.system, memories(config.network)
    rollout = system.rollout_length
    length = rollout if system.sequence_length is None else system.sequence_length
    if rollout % length:
        raise ConfigError(
            f"system.sequence_length={length} does not divide system.rollout_length={rollout}; "
            f"the nearest that does: {_nearest_divisor(rollout, length)}"
        )
    if found and length == 1:
        way_out = (
            "raise system.rollout_length=1"
            if rollout == 1
            else "set system.sequence_length=null for whole rollouts, as jaxppo.rec_ppo does"
        )
        raise ConfigError(
            f"network.{found[0]}: a memory learns nothing from sequences of one step; {way_out}, "
            "or do without: network=mlp"
        )
    for key, off in (("burn_in", 0), ("refresh_carries", False)):
        value = getattr(system, key)
        if value and not found:
            raise ConfigError(
                f"system.{key}={str(value).lower()}: the network has no memory; set it to "
                f"{str(off).lower()}, or take network=lstm"
            )
    if system.refresh_carries and length == rollout:
        raise ConfigError(
            "system.refresh_carries=true has nothing to do where sequences are whole rollouts of "
            f"{rollout} steps: set a shorter system.sequence_length, or it to false"
        )
    if system.burn_in >= length:
        raise ConfigError(
            f"system.burn_in={system.burn_in} leaves nothing to learn from in sequences of "
            f"{length} steps; at most {length - 1}"
        )
    return length


def _nearest_divisor(number: int, wanted: int) -> int:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return min((*small, *(number // n for n in small)), key=lambda n: abs(n - wanted))


def _num_updates(arch: ArchConfig, steps_per_update: int) -> int:
    if arch.num_updates is not None:
        num_updates = arch.num_updates
        key = f"arch.num_updates={num_updates}"
    elif arch.total_timesteps is None:
        raise ConfigError(
            "arch.total_timesteps=null and arch.num_updates=null: one of them must be an integer"
        )
    elif arch.total_timesteps < steps_per_update:
        raise ConfigError(
            f"arch.total_timesteps={arch.total_timesteps} is less than one update of "
            f"{steps_per_update} steps (arch.total_num_envs x system.rollout_length); at least "
            f"{steps_per_update}, or lower one of those"
        )
    else:
        num_updates = -(-arch.total_timesteps // steps_per_update)
        key = f"arch.total_timesteps={arch.total_timesteps}"
    if num_updates >= 2**31:
        raise ConfigError(f"{key}: {num_updates} updates are more than {2**31 - 1}; ask for fewer")
    return num_updates


_SCALAR_GROUPS = ("arch", "system", "population", "checkpoint", "logger")


def help_text() -> str:
    """Every key with its default and meaning, for `--help`."""
    lines, hints = [], typing.get_type_hints(Config)
    alone = [field for field in dataclasses.fields(Config) if "help" in field.metadata]
    for group in dataclasses.fields(Config):
        cls = hints[group.name]
        if group in alone:
            continue
        lines.append(f"{group.name}: {(cls.__doc__ or '').strip()}")
        for field in dataclasses.fields(cls):
            default = f" [{getattr(cls(), field.name)}]" if group.name in _SCALAR_GROUPS else ""
            lines.append(f"  {group.name}.{field.name:<24} {field.metadata['help']}{default}")
        lines.append("")
    lines.append("Going on with an earlier run:")
    lines += [f"  {field.name:<24} {field.metadata['help']}" for field in alone]
    return "\n".join(lines)
