"""Every setting, with its default, help and rule: the one place where they are declared."""

import dataclasses
import math
from typing import Any

from jaxppo.config.fields import ConfigError, setting, traced

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


ALGORITHMS = {"ppo": "jaxppo.algorithms.ppo.PPO"}  # the names of system.algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """What every algorithm has; each adds its own (`Settings` of the algorithm's class)."""

    algorithm: str = setting(
        "ppo",
        f"{', '.join(ALGORITHMS)}, or the import path of a class",
        choices=tuple(ALGORITHMS),
        importable=True,
    )
    rollout_length: int = setting(32, "steps of every environment between two updates", low=1)
    sequence_length: int | None = setting(
        1,
        "steps in a row that a memory learns from together; null, as in rec_ppo: the rollout",
        low=1,
    )
    burn_in: int = setting(
        0, "first steps of each sequence that only bring its memory up to date", low=0
    )
    recompute_carries: bool = setting(
        False, "recompute the memory at the start of each sequence before every epoch"
    )
    epochs: int = setting(4, "epochs over each rollout", low=1)
    num_minibatches: int = setting(16, "gradient steps of each epoch", low=1)
    microbatch_size: int | None = setting(
        None,
        "transitions of a minibatch that are differentiated at a time, at most; null: as suits the "
        "machine",
        low=1,
    )
    recompute_targets: bool = setting(
        False, "estimate the targets again before every epoch, with the parameters of that moment"
    )
    gamma: float = traced(0.99, "discount per step", low=0, high=1)
    max_grad_norm: float = traced(
        0.5,
        "largest global norm of each optimiser group's gradient (the actor's, the critic's); .inf: "
        "no clipping",
        above=0,
        infinite=True,
    )
    clip_together: bool = setting(False, "clip one norm of all groups, instead of one each")
    decay_learning_rates: bool = traced(True, "learning rates fall linearly to zero over the run")
    reward_scale: float = traced(1.0, "factor on rewards in training, not in reports")
    normalize_rewards: bool = setting(
        False, "divide them by the running standard deviation of their discounted sums"
    )
    reward_clip: float = traced(
        math.inf,
        "largest magnitude of a reward in training, after scaling; .inf: no clipping",
        above=0,
        infinite=True,
    )
    normalize_observations: bool = setting(
        False, "float observations to running mean 0 and standard deviation 1, clipped at 10"
    )
    obs_norm_warmup_steps: int = setting(
        0, "environment steps before training for the statistics alone, rounded up to rollouts",
        low=0,
    )  # fmt: skip

    def check(self) -> None:
        """`ConfigError` on settings that contradict each other; algorithms add their own."""
        if self.obs_norm_warmup_steps and not self.normalize_observations:
            raise ConfigError(
                f"system.obs_norm_warmup_steps={self.obs_norm_warmup_steps} needs "
                "system.normalize_observations=true; or set it to 0"
            )

    def check_sizes(self, minibatch_size: int) -> None:
        """`ConfigError` where a minibatch of so many transitions, of all learners, is too small."""


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
