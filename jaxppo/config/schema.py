"""All settings, each with its default, help and rule. They are declared only here."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from jaxppo.config.fields import ConfigError, check_needs, setting, traced
from jaxppo.config.schedules import find_schedules

MAX_MEMBERS = 2**16  # of one program; each member has its own directory and configuration


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchConfig:
    """Seeds, budget, evaluation and compilation."""

    seed: int = setting(
        42,
        "seed of all random numbers; null: drawn when the run begins, and kept in its directory",
        low=0,
        high=2**32 - 1,
        drawn=True,
    )
    num_seeds: int = setting(
        1,
        "independent agents to train at once, with consecutive seeds from arch.seed",
        low=1,
        high=MAX_MEMBERS,
    )
    total_num_envs: int = setting(
        1024, "environments, summed over devices and update batches", low=1
    )
    update_batch_size: int = setting(
        1, "update batches per device; they share parameters and average gradients", low=1
    )
    actors: int = setting(
        0,
        "for environments that are not written in JAX: how many actors collect while the learner "
        "learns; 0: collect, then learn",
        low=0,
    )
    actors_on: str = setting(
        "threads",
        "where actors run: threads (of this process), or ray (processes of a Ray cluster)",
        choices=("threads", "ray"),
    )
    actors_wait: str = setting(
        "all",
        "with actors: whether an update waits for a rollout of each (all), or takes the ones that "
        "are ready first; such a run does not repeat bit for bit",
        choices=("all", "first"),
    )
    actors_per_update: int | None = setting(
        None,
        "with actors_wait=first: rollouts of an update, whose environments are total_num_envs; "
        "null: as many as actors",
        low=1,
    )
    max_policy_lag: int = setting(
        1,
        "with actors: updates by which the policy that collects is older than the learner's; with "
        "actors_wait=first at most, and older rollouts are discarded",
        low=0,
    )
    act_on: str = setting(
        "device",
        "for environments that are not written in JAX: where actions of training are computed: on "
        "the devices that learn (device), or on the host's CPU (cpu), which starts small networks "
        "sooner than an accelerator",
        choices=("device", "cpu"),
    )
    learn: bool = setting(
        True, "false: collect and evaluate, but change no parameters, to debug an environment"
    )
    total_timesteps: int | None = setting(
        1_000_000, "environment steps to train for, rounded up to whole updates", low=1, high=2**62
    )
    num_updates: int | None = setting(
        None, "updates to train for; if set, total_timesteps is ignored", low=1
    )
    num_evaluation: int = setting(
        10, "number of evaluations, evenly spaced over the updates", low=1
    )
    evaluate_first: bool = setting(
        True, "at step 0, evaluate the untrained policy, so that curves begin where learning does"
    )
    num_eval_episodes: int = setting(128, "episodes per evaluation", low=1)
    max_eval_steps: int | None = setting(
        None, "longest evaluation episode, in steps; null: the environment's time limit", low=1
    )
    eval_metric: str | None = setting(
        None,
        "a name of env.metrics, whose mean over the episodes of an evaluation chooses the best "
        "policy and is the absolute metric, the higher the better; null: the return",
    )
    evaluation_greedy: bool = setting(
        True, "true: evaluate the mode of the policy, without noise; false: sample actions"
    )
    absolute_metric: bool = setting(
        True, "at the end, evaluate the best parameters again, on 10 x num_eval_episodes episodes"
    )
    on_nonfinite: str = setting(
        "stop",
        "on NaN or infinity in training: stop (at the end of the block), or skip (and count) such "
        "gradient steps",
        choices=("stop", "skip"),
    )
    precision: str | None = setting(
        None,
        "of the networks' matrix products: float32 (as JAX does: TF32 on NVIDIA GPUs, bfloat16 on "
        "TPUs), tf32 (or better), highest (full float32), or bf16 (torsos in bfloat16; parameters, "
        "sums, losses and statistics stay float32); null: float32 on CPUs, tf32 on accelerators",
        choices=("float32", "tf32", "bf16", "highest"),
    )
    fused: bool | None = setting(
        None,
        "true: on GPUs, compute PPO's MLPs (of up to 128 units; tanh, relu or silu) with their "
        "heads in one kernel, and all steps of an lstm or gru (of up to 128 units) in one; not "
        "with precision=highest; false: layer by layer and step by step; null: where that was "
        "measured to be faster, so far nowhere",
    )
    compiler: str = setting(
        "thorough",
        "on CPUs: thorough, or quick (for runs of seconds, with jaxlib up to 0.11.0: programs "
        "compile in about two thirds of the time with 0.3 GB less memory, and run at 0.8 to 0.9 of "
        "the speed)",
        choices=("thorough", "quick"),
    )
    profile: str | None = setting(
        None,
        "folder for a profiler trace of two updates before the first block, whose phases are "
        "printed as a table; null: no trace",
    )
    distributed: dict[str, Any] | None = setting(
        {},
        "processes of a run on several hosts: coordinator (HOST:PORT of the first), num_processes "
        "and process_id; {}: detect the cluster (SLURM, Open MPI, torchrun, Kubernetes, Cloud "
        "TPU), otherwise one process; null: always one process",
    )
    compile_cache: str | None = setting(
        "~/.cache/jaxppo",
        "folder of compiled programs, shared by all runs (XDG_CACHE_HOME replaces ~/.cache); "
        "a run deletes the least recently read beyond 1 GiB; null: no cache",
    )

    @property
    def policy_lag(self) -> int:
        """Return the updates by which the policy that collects is older than the learner's."""
        return self.max_policy_lag if self.actors else 0

    @property
    def rollouts_per_update(self) -> int:
        """Return how many actors' rollouts make the batch of an update."""
        return self.actors_per_update or self.actors or 1


ALGORITHMS = {  # the names of system.algorithm
    "ppo": "jaxppo.algorithms.ppo.PPO",
    "pqn": "jaxppo.algorithms.pqn.PQN",
    "reppo": "jaxppo.algorithms.reppo.REPPO",
}
COMMANDS = tuple(f"{kind}_{name}" for name in ALGORITHMS for kind in ("ff", "rec"))  # that train


OPTIMIZERS = {  # the names of system.optimizer
    "adam": "optax.adam",  # Kingma and Ba 2015, arXiv 1412.6980
    "adamw": "optax.adamw",  # Loshchilov and Hutter 2019, arXiv 1711.05101
    "radam": "optax.radam",  # Liu et al. 2020, arXiv 1908.03265
    "rmsprop": "optax.rmsprop",
    "lion": "optax.lion",  # Chen et al. 2023, arXiv 2302.06675
    "muon": "optax.contrib.muon",  # Jordan et al. 2024; Adam for parameters that are no matrices
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemNumbers:
    """The traced settings that all algorithms share: floats here, arrays in an agent."""

    gamma: float = traced(0.99, "discount factor per step", low=0, high=1, tune=(0.9, 0.999))
    reward_scale: float = traced(1.0, "factor on training rewards; reported returns are not scaled")
    reward_clip: float = traced(
        math.inf,
        "clip training rewards to this magnitude, after scaling; .inf: no clipping",
        above=0,
        infinite=True,
    )
    max_grad_norm: float = traced(
        0.5,
        "clip the gradient of each optimiser group (PPO: actor and critic; PQN: one group; REPPO: "
        "actor, critic and multipliers) to this global norm; .inf: no clipping",
        above=0,
        infinite=True,
        tune=(0.1, 10.0),
    )
    min_loss_change: float | None = traced(
        None,
        "end an update's epochs once the mean loss of one differs from that of the one before by "
        "less than this; null: never",
        above=0,
        switch=True,
        coupled=True,
    )
    adam_b1: float | None = traced(
        None,
        "adam, adamw: decay rate of the mean of gradients; null: 0.9, a constant of the program",
        low=0,
        high=0.99999,
        switch=True,
        coupled=True,
    )
    adam_b2: float | None = traced(
        None,
        "adam, adamw: decay rate of the mean of squared gradients; null: 0.999, a constant",
        low=0,
        high=0.99999,
        switch=True,
        coupled=True,
    )
    adam_eps: float | None = traced(
        None,
        "adam, adamw: number added to the root of that mean; null: 1e-5 (adamw 1e-8), a constant",
        above=0,
        switch=True,
        coupled=True,
    )
    decay_learning_rates: bool = traced(True, "decay learning rates linearly to zero over the run")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemConfig(SystemNumbers):
    """Settings that all algorithms share. An algorithm adds its own in its `Settings`."""

    algorithm: str = setting(
        "ppo",
        f"{', '.join(ALGORITHMS)}, or the import path of a class",
        choices=tuple(ALGORITHMS),
        importable=True,
    )
    rollout_length: int = setting(32, "steps of each environment per update", low=1)
    sequence_length: int | None = setting(
        1,
        "steps of a training sequence, for networks with memory; null (as in rec_ppo and rec_pqn): "
        "the whole rollout",
        low=1,
    )
    burn_in: int = setting(
        0, "first steps of each sequence that only update the memory and add no loss", low=0
    )
    recompute_carries: bool = setting(
        False, "before every epoch, recompute the memory at the start of each sequence"
    )
    epochs: int = setting(4, "epochs per rollout", low=1)
    num_minibatches: int = setting(16, "minibatches per epoch; each gives one gradient step", low=1)
    microbatch_size: int | None = setting(
        None,
        "largest number of transitions to differentiate at once; null: chosen for this machine",
        low=1,
    )
    recompute_targets: bool = setting(
        False, "before every epoch, recompute the targets with the current parameters"
    )
    optimizer: str = setting(
        "adam",
        f"{', '.join(OPTIMIZERS)} (of optax; adam with eps=1e-5), or the import path of a function "
        "of learning_rate, such as optax.adabelief",
        choices=tuple(OPTIMIZERS),
        importable=True,
    )
    optimizer_kwargs: dict[str, Any] = setting(
        {}, "further arguments of the optimiser, such as {b2: 0.99}"
    )
    clip_together: bool = setting(
        False,
        "clip the gradients of all optimiser groups together, by one global norm, instead of each "
        "group by its own",
    )
    schedules: dict[str, Any] = setting(
        {},
        "numbers of system that change over the run, such as {ent_coef: {kind: linear, end: 0.0}}; "
        "kind: constant, linear, cosine, exponential or warmup_linear; see docs/schedules.md",
    )
    normalize_rewards: bool = setting(
        False, "divide rewards by the running standard deviation of their discounted sums"
    )
    normalize_observations: bool = setting(
        False, "normalise float observations to running mean 0 and standard deviation 1"
    )
    normalize_entries: list[str] = setting(
        [],
        "entries of a dict observation that normalize_observations normalises, with dots if they "
        "are nested; []: all",
        needs={"normalize_observations": (True,)},
    )
    obs_clip: float = setting(
        10.0,
        "clip normalised observations to this magnitude; .inf: no clipping",
        above=0,
        infinite=True,
    )
    obs_min_std: float = setting(
        0.0,
        "least standard deviation that normalize_observations divides by, so that noise of a "
        "feature that hardly changes is not blown up",
        low=0,
    )
    obs_max_std: float = setting(
        math.inf,
        "greatest standard deviation that normalize_observations divides by; .inf: no bound",
        above=0,
        infinite=True,
    )
    obs_norm_share: float = setting(
        1.0,
        "share of the run's updates, from the first, in which observation statistics are updated; "
        "then they are frozen",
        above=0,
        high=1,
    )
    obs_norm_warmup_steps: int = setting(
        0,
        "environment steps before training that only fill the observation statistics, rounded up "
        "to rollouts",
        low=0,
        needs={"normalize_observations": (True,)},
    )

    def searched(self) -> dict[str, tuple[float, float]]:
        """Return the settings that `jaxppo.tune` searches, with their bounds.

        Algorithms leave out those that change nothing in their program.
        """
        fields = dataclasses.fields(self)
        return {f.name: f.metadata["tune"] for f in fields if "tune" in f.metadata}

    def check(self) -> None:
        """Raise `ConfigError` if settings contradict each other; algorithms add checks."""
        check_needs("system", self)
        find_schedules(self)
        for name in self.adam_numbers():
            if self.optimizer not in ("adam", "adamw") or name in self.optimizer_kwargs:
                raise ConfigError(
                    f"system.adam_{name}={getattr(self, f'adam_{name}')}: needs "
                    f"system.optimizer=adam or adamw, and no {name} in system.optimizer_kwargs; "
                    "mend one of them, or set it to null"
                )
        if self.min_loss_change is not None and self.epochs < 3:
            raise ConfigError(
                f"system.min_loss_change={self.min_loss_change}: compares two epochs before a "
                f"third, which system.epochs={self.epochs} lacks; raise that to 3, or set it to "
                "null"
            )
        if not self.obs_min_std < self.obs_max_std:
            raise ConfigError(
                f"system.obs_min_std={self.obs_min_std} must be below "
                f"system.obs_max_std={self.obs_max_std}; lower the first or raise the second"
            )

    def adam_numbers(self) -> list[str]:
        """Return those of b1, b2 and eps that are traced."""
        return [x for x in ("b1", "b2", "eps") if getattr(self, f"adam_{x}") is not None]

    def check_sizes(self, minibatch_size: int) -> None:
        """Raise `ConfigError` if a minibatch, summed over all learners, is too small."""


# How a number of `env.metrics` adds up over an episode
METRIC_KINDS = ("last", "sum", "mean", "max", "share")
TOLD = "env/"  # before its name in events; no metric of an algorithm has such a name
TEAM_RETURN = "team_return"  # of worlds with several agents, besides those of `env.metrics`


def key_of(name: str) -> str:
    """Return the name that a number of `env.metrics` has in events."""
    return f"{TOLD}{name}"


# Settings of `env` that change how simulators are run, and no result
HOW_RUN = ("processes", "isolated", "on_error", "step_timeout")
# The names of `env.opponent`; other values are import paths of players and directories of runs
OPPONENTS = ("random", "self", "pool", "baseline")
BOTH_SEATS = ("self", "pool")  # with which the policy that learns plays both in some games
# Settings of `env` for games of two players
OF_GAMES = ("opponent", "evaluation_opponent", "num_opponents", "opponent_share", "random_moves")


def is_player(opponent: str) -> bool:
    """Return whether an opponent is the import path of a function, and not a run's directory."""
    names = opponent.split(".")
    return len(names) > 1 and all(map(str.isidentifier, names)) and not Path(opponent).is_dir()


LIBRARIES = (  # the choices of env.library
    *("gymnax", "brax", "craftax", "jumanji", "navix", "pgx", "playground", "xminigrid"),
    *("gymnasium", "envpool"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The environment; `env=NAME` selects a file of configs/env with settings that suit it."""

    library: str = setting(
        "gymnax",
        "written in JAX: gymnax, brax, craftax, jumanji, navix, pgx, playground, xminigrid; "
        "not in JAX: gymnasium, envpool",
        choices=LIBRARIES,
    )
    name: str | None = setting(
        "CartPole-v1", "a registered id of the library; ignored if target is set"
    )
    target: str | None = setting(
        None, "import path of your own class, with the interface of gymnax, jaxppo or Gymnasium"
    )
    module: str | None = setting(None, "module to import first, for example one that registers ids")
    kwargs: dict[str, Any] = setting({}, "arguments of the environment's constructor")
    params: dict[str, Any] = setting({}, "changes to the environment's default parameters")
    randomize: dict[str, Any] = setting(
        {},
        "gymnax, and classes with params: parameters to draw uniformly, each with its bounds: "
        "{gravity: [8, 12]}",
    )
    randomize_per: str = setting(
        "episode",
        "draw the parameters anew for each episode, or once for each environment",
        choices=("episode", "environment"),
    )
    randomize_evaluation: str = setting(
        "random",
        "in evaluations: random (each episode draws its parameters), or fixed (they have their "
        "defaults, or the values in env.params)",
        choices=("random", "fixed"),
    )
    curriculum: dict[str, Any] = setting(
        {},
        "gymnax, and classes with params: parameters that change linearly over a share of the "
        "updates, from a number or bounds to others: {gravity: {start: 5, end: 9.8, share: 0.5}}; "
        "evaluations are at the end",
    )
    gymnax_legacy: bool = setting(
        False,
        "target was written for gymnax 0.0.x: done of its step_env holds the time limit too, which "
        "we tell apart",
    )
    resets: str = setting(
        "each",
        "start of later episodes: each (its own reset), optimistic (one reset for reset_ratio "
        "environments, shared if several end at once), cached (one of the first episodes' starts), "
        "pool (the next of pool_size starts that are made before each rollout)",
        choices=("each", "optimistic", "cached", "pool"),
    )
    pool_size: int | None = setting(
        None,
        "pool: starts for the environments of one device and update batch, for a rollout; "
        "null: one for every 128 environment steps of a rollout",
        low=1,
    )
    reset_ratio: int = setting(16, "optimistic: environments per reset", low=1)
    mask: list[int] = setting([], "indices of a vector observation to hide: they read 0")
    frame_stack: int = setting(
        1,
        "last observations of the episode that the policy sees, concatenated along the last axis",
        low=1,
    )
    extras: list[str] = setting(
        [], "entries to add to the observation: last_action, last_reward, step, agent"
    )
    metrics: list[str] = setting(
        [],
        "numbers that the environment tells besides the reward, each with how it adds up over an "
        "episode: last (default), sum, mean, max, or share (last, of a number that is 0 or 1; "
        "evaluations add its 95% interval), such as [success:share, x_position:mean]",
    )
    action_mask: str | None = setting(
        "action_mask", "key of a dict observation that holds the mask of legal actions; null: none"
    )
    opponent: str = setting(
        "random",
        "games of two players: who has the other seat: random (uniform legal moves), self (the "
        "policy that learns has both seats), pool (self, and in opponent_share of the games an "
        "older policy of the run), baseline (Pgx's network for the game), the directory of another "
        "run (its best policy; DIR@STEPS: that of a checkpoint), or the import path of a function "
        "(observation, key) -> action",
    )
    num_opponents: int = setting(
        8,
        "opponent=pool: how many older policies; all are the untrained one at first, and after "
        "every num_updates // num_evaluation updates the current policy replaces the oldest",
        low=1,
        high=1024,
    )
    opponent_share: float = setting(
        0.5, "opponent=pool: share of the games against an older policy", above=0, high=1
    )
    evaluation_opponent: str | None = setting(
        None,
        "games: the opponent of evaluations: random, baseline, a run or a function; null: that of "
        "training, and random for self and pool",
    )
    random_moves: int = setting(
        0,
        "games: training games start after 0 to this many random legal moves, drawn for each game",
        low=0,
    )
    batch: bool = setting(
        False,
        "gymnasium: one object steps all worlds at once: gymnasium.make_vec of name, or what "
        "target(num_envs=N) makes",
    )
    wrappers: list[Any] = setting(
        [],
        "gymnasium: import paths of wrappers, from the inside to the outside; with arguments: "
        "{_target_: PATH, ...}",
    )
    processes: int = setting(
        0,
        "gymnasium: number of processes that share the environments: the run's own and new ones; "
        "1: a new one; 0: only the run's own",
        low=0,
    )
    isolated: bool = setting(
        False,
        "gymnasium: all env.processes, at least 1, are new ones, and no environment steps in the "
        "run's own; env.on_error=restart, env.step_timeout and actors in threads set it too",
    )
    on_error: str = setting(
        "stop",
        "gymnasium: if an environment fails, stop (with a checkpoint) or restart (make it anew, "
        "and count it)",
        choices=("stop", "restart"),
    )
    step_timeout: float | None = setting(
        None,
        "gymnasium: seconds after which the step of a process has failed, with env.processes",
        above=0,
    )

    @property
    def metric_kinds(self) -> dict[str, str]:
        """Return how each number of `metrics` adds up; `ConfigError` for what is none."""
        found: dict[str, str] = {}
        for entry in self.metrics:
            name, _, kind = entry.rpartition(":") if ":" in entry else (entry, "", "last")
            if not name or kind not in METRIC_KINDS:
                raise ConfigError(
                    f"env.metrics=[{entry}]: must be a name, or NAME:KIND with one of "
                    f"{', '.join(METRIC_KINDS)}"
                )
            if name in found:
                raise ConfigError(f"env.metrics: has {name} twice; leave one of them out")
            found[name] = kind
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Layers, shared -> (actor, critic), as `_target_` and arguments; a Q-network has no actor."""

    input_layer: dict[str, Any] | None = setting(None, "maps an observation to features")
    shared_torso: dict[str, Any] | None = setting(None, "layers before both branches; null: none")
    shared_memory: dict[str, Any] | None = setting(
        None, "memory of both branches, after shared_torso; null: none"
    )
    actor_torso: dict[str, Any] | None = setting(
        None, "layers before the actor's memory and head; null: none"
    )
    actor_memory: dict[str, Any] | None = setting(None, "the actor's memory; null: none")
    actor_post_torso: dict[str, Any] | None = setting(
        None, "layers between the actor's memory and its head; null: none"
    )
    critic_input: dict[str, Any] | None = setting(
        None,
        "the critic's own input layer, for what only the critic may see: an entry of a dict "
        "observation; null: the critic continues after input_layer and the shared layers",
    )
    critic_torso: dict[str, Any] | None = setting(
        None, "layers before the critic's memory and head; null: none"
    )
    critic_memory: dict[str, Any] | None = setting(None, "the critic's memory; null: none")
    critic_post_torso: dict[str, Any] | None = setting(
        None, "layers between the critic's memory and its head; null: none"
    )
    actor_head: dict[str, Any] | None = setting(
        None, "maps features to a distribution over actions; the default follows the action space"
    )
    critic_head: dict[str, Any] | None = setting(None, "maps features to a value")
    q_head: dict[str, Any] | None = setting(
        None, "of a Q-network: maps features to a Q-value for each action; null: scalar"
    )
    initialization: dict[str, Any] = setting(
        {},
        "initial weights of layers, such as {actor_head: {kind: orthogonal, gain: 0.1}}; without "
        "a rule a layer keeps its own; see docs/networks.md",
    )


NETWORK_LAYERS = tuple(n for n in NetworkConfig.__dataclass_fields__ if n != "initialization")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationConfig:
    """A population of members with different hyperparameters, and the selection among them."""

    size: int | None = setting(
        None,
        "number of members, with consecutive seeds from arch.seed; null: no population",
        low=2,
        high=MAX_MEMBERS,
    )
    selection: str = setting(
        "none",
        "after evaluations: pbt (worse members copy better ones and explore), halving (worse "
        "members stop), or none",
        choices=("none", "pbt", "halving"),
    )
    hyperparameters: dict[str, Any] = setting(
        {}, "settings of system that differ between members, each with its bounds [low, high]"
    )
    initialize: str = setting(
        "sample",
        "first values: sample (uniform between the bounds; log-uniform if they are positive; of "
        "fractions with bounds of at least 0.5, such as gamma, the distance to 1 is log-uniform), "
        "or config (the values of system)",
        choices=("sample", "config"),
    )
    start: list[dict[str, Any]] = setting(
        [],
        "first values that are known to be good, of as many members: [{actor_lr: 1e-3}]; other "
        "values and members are as initialize says",
    )
    interval: int = setting(1, "pbt: number of evaluations between two selections", low=1)
    threshold: float = setting(
        0.2,
        "pbt: share of members that are replaced, by copies of the same number of best members",
        above=0,
        high=0.5,
    )
    perturbation: float = setting(
        1.25,
        "pbt: a copied hyperparameter is multiplied or divided by this; of a fraction with bounds "
        "of at least 0.5, such as gamma, the distance to 1 is",
        low=1,
    )
    resample: float = setting(
        0.25, "pbt: probability that a copied hyperparameter is sampled anew instead", low=0, high=1
    )
    reduction: int = setting(
        2, "halving: each selection divides the number of members by this, rounded up", low=2
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints from which a stopped run resumes, in checkpoints/ of the run directory."""

    enabled: bool = setting(True, "save checkpoints after evaluations and at the end")
    share: float = setting(
        0.02,
        "largest share of the run's time for checkpoints; 1: a checkpoint after every evaluation",
        low=0,
        high=1,
    )
    every_seconds: float | None = setting(
        None,
        "save whenever so many seconds have passed since the last checkpoint, whatever share of "
        "the time it takes; null: as share says, and within a block at most once a minute",
        above=0,
    )
    keep: int = setting(
        2, "number of latest checkpoints to keep, besides the one with the best evaluation", low=1
    )
    milestones: list[int] = setting(
        [], "environment steps; the first checkpoint at or after each is kept too"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Outputs of a run; files go into the run directory (hydra.run.dir)."""

    console: bool = setting(True, "print progress on standard output")
    every: int | None = setting(
        None,
        "updates between two train events; there is one before each evaluation too, and counting "
        "starts anew after it; null: only those",
        low=1,
    )
    details: bool = setting(
        False,
        "add to train events what each update computes only for this: extremes and histograms of "
        "advantages, values and targets, changes of policy and values; also waits and memory",
    )
    alarm_loss: float | None = setting(
        None,
        "write an alarm event if the mean loss since the last check, about a second ago, is above "
        "this or NaN; null: never",
        above=0,
    )
    json: bool = setting(True, "write metrics.jsonl (one object per event) and summary.json")
    plot: bool = setting(True, "draw learning_curve.png")
    marl_eval: bool = setting(
        False, "write marl_eval.json, the evaluations in the format of MARL-eval"
    )
    tensorboard: bool = setting(False, "write event files in tensorboard/; needs tensorboardX")
    wandb: bool = setting(False, "log to Weights & Biases, with files in wandb/; needs wandb")
    wandb_mode: str | None = setting(
        None,
        "online, or offline (kept for `wandb sync`); null: WANDB_MODE, or online if it is not set",
        choices=("online", "offline"),
    )
    wandb_project: str = setting("jaxppo", "W&B project")
    wandb_entity: str | None = setting(None, "W&B user or team; null: your default")
    wandb_group: str | None = setting(
        None,
        "W&B group; null: the name of the sweep's directory, or of the run's if it has members",
    )
    wandb_tags: list[str] = setting([], "W&B tags")
    wandb_members: int = setting(
        16,
        "if a run has at most this many members, each has its own W&B run besides the summary",
        low=0,
    )
    sinks: list[dict[str, Any]] = setting(
        [], "your own sinks, each with an import path (_target_) and arguments; see docs/sinks.md"
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
        None,
        "directory of a run to resume, up to its budget, or further with a larger "
        "arch.total_timesteps or arch.num_updates; on a command line also true: that of "
        "hydra.run.dir or hydra.sweep.dir, if it has begun",
    )
    init_from: str | None = setting(
        None,
        "directory of a run whose policy a new run begins with: parameters and observation "
        "statistics; the optimiser and the budget are new",
    )
    init_which: str = setting(
        "best",
        "the policy of init_from: best, latest, or the environment steps of a checkpoint",
        steps=True,
    )
    init_parts: list[str] = setting(
        [],
        "parts of it to take, such as actor_torso and obs_statistics; []: all. The others begin "
        "anew",
    )
    resume_allow: list[str] = setting(
        [], "settings or groups of settings that may differ from those of the resumed run"
    )
    trust: list[str] = setting(
        [], "import paths, such as my_package, that the settings of the resumed run may name"
    )
