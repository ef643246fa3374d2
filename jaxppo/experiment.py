"""A run: blocks of training and evaluations, the best policy, and the absolute metric."""

import dataclasses
import math
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo import compile, devices, sinks, system
from jaxppo.config import Config, ConfigError, Plan, plan
from jaxppo.evaluation import Episodes, evaluate
from jaxppo.learner import Metrics, train_block, warm_up
from jaxppo.types import LearnerState, Policy, PyTree, System


class TrainingError(RuntimeError):
    """A run that cannot go on (NaN, infinity, nothing legal to do): one line, where and when."""


def prepare(config: Config) -> tuple[Plan, System]:
    """Check all of a configuration without compiling anything; `ConfigError` on what cannot be."""
    compile.use_cache(config.arch.compile_cache)
    derived = plan(config, jax.local_device_count())
    return derived, system.build(config, derived)


def check_run_dir(key: str, run_dir: Path) -> None:
    """`ConfigError` where a run cannot be written to `run_dir`, which need not exist yet."""
    if (run_dir / "metrics.jsonl").exists():
        raise ConfigError(f"{key}={run_dir}: holds a run already; choose another directory")
    existing = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{key}={run_dir}: {existing} is not a directory; choose another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={run_dir}: {existing} cannot be written to; choose another")


def run(config: Config, run_dir: Path) -> float:
    """Train as `config` says, write below `run_dir`, and return the absolute metric.

    Without `arch.absolute_metric` that is the best mean return of an evaluation. Raises
    `ConfigError` before anything compiles and `TrainingError` at the end of a block.
    """
    derived, built = prepare(config)
    outputs = sinks.make(
        dataclasses.replace(config.logger, json=False, plot=False)
        if config.arch.plan_only
        else config.logger,
        run_dir,
    )
    try:
        return _Run(config, derived, built, outputs).execute()
    finally:
        for sink in outputs:
            sink.close()


@dataclasses.dataclass(frozen=True)
class Programs:
    """What a run compiles, before its first step."""

    train: compile.Program
    evaluate: compile.Program


class _Run:
    """The host's loop. Steps are Python integers: exact at any size."""

    def __init__(
        self, config: Config, derived: Plan, built: System, outputs: list[sinks.Sink]
    ) -> None:
        self.config, self.plan, self.system, self.outputs = config, derived, built, outputs
        self.started = time.perf_counter()
        self.compile_seconds = 0.0
        self.speeds: list[float] = []  # steps per second of each block
        self.devices = jax.local_devices()[: derived.num_devices]
        _, _, self.evaluation_key, self.absolute_key = system.random_streams(config.arch.seed)

    def execute(self) -> float:
        state = system.init(self.system, self.config, self.plan)
        self.write("start", **self.describe(state))
        programs = self.compile(state)
        if self.config.arch.plan_only:
            return math.nan
        state = self.warm_up(state)
        best_policy: Policy | None = None
        best: dict[str, Any] = {"episode_return": -math.inf}
        steps = 0
        for block, num_updates in enumerate(self.plan.updates_per_block):
            start = time.perf_counter()
            state, metrics = programs.train.call(state, self.replicated(np.int32(num_updates)))
            totals = jax.tree.map(lambda x: x.item(), devices.first(metrics))
            seconds = time.perf_counter() - start
            steps += num_updates * self.plan.steps_per_update
            self.write("train", **self.summarize(totals, num_updates, steps, seconds))
            self.check_finite(totals, steps, best)
            episodes = self.evaluate(
                programs, state.agent.policy, jax.random.fold_in(self.evaluation_key, block), 1
            )
            self.check_masks(int(np.sum(episodes.empty_masks)), steps, best)
            last = block + 1 == len(self.plan.updates_per_block)
            scores = {**self.score(episodes, steps), "last": last}
            self.write("eval", **scores)
            score = scores["episode_return"]
            if math.isfinite(score) and score > best["episode_return"]:
                best, best_policy = scores, devices.first(state.agent.policy)
        if best_policy is None:
            reason = "no evaluation returned a finite number; look at the environment's rewards"
            self.end(reason, best, None, steps)
            raise TrainingError(reason)
        result = best["episode_return"]
        if self.config.arch.absolute_metric:
            episodes = self.evaluate(
                programs, devices.replicate(best_policy, self.devices), self.absolute_key, 10
            )
            self.check_masks(int(np.sum(episodes.empty_masks)), steps, best)
            scores = self.score(episodes, best["steps"])
            self.write("absolute", **scores)
            result = scores["episode_return"]
        self.end("finished", best, result, steps)
        return float(result)

    def write(self, event: str, **values: Any) -> None:
        for sink in self.outputs:
            sink.write({"event": event, **values})

    def replicated(self, tree: PyTree) -> PyTree:
        return devices.replicate(tree, self.devices)

    def describe(self, state: LearnerState) -> dict[str, Any]:
        params = jax.tree.leaves(state.agent.policy.params)
        return {
            "environment": self.system.env.name,
            "platform": self.devices[0].platform,
            "seed": self.config.arch.seed,
            "num_parameters": sum(math.prod(x.shape[1:]) for x in params),
            "num_eval_episodes": self.config.arch.num_eval_episodes,
            "max_eval_steps": self.system.max_eval_steps,
            "warmup_steps": self.plan.warmup_steps,
            **dataclasses.asdict(self.plan),
        }

    def compile(self, state: LearnerState) -> Programs:
        train = compile.compile_program(
            partial(train_block, self.system), state, self.replicated(np.int32(0)), donate=(0,)
        )
        keys = self.episode_keys(self.evaluation_key, 1)[0]
        evaluation = compile.compile_program(
            partial(evaluate, self.system), state.agent.policy, keys
        )
        self.compile_seconds = train.seconds + evaluation.seconds
        self.write(
            "compile",
            seconds=self.compile_seconds,
            train_seconds=train.seconds,
            evaluate_seconds=evaluation.seconds,
            gflop_per_update=train.gflop,
            peak_bytes=train.peak_bytes,
            total_steps=self.plan.total_steps,
            plan_only=self.config.arch.plan_only,
        )
        return Programs(train=train, evaluate=evaluation)

    def warm_up(self, state: LearnerState) -> LearnerState:
        if not self.plan.warmup_rollouts:
            return state
        count = self.replicated(np.int32(self.plan.warmup_rollouts))
        program = compile.compile_program(partial(warm_up, self.system), state, count, donate=(0,))
        return program.call(state, count)

    def episode_keys(self, key: jax.Array, times: int) -> list[jax.Array]:
        """For each of `times` calls, keys `[D, E]` of its episodes, by their number."""
        per_call = self.plan.num_devices * self.plan.eval_episodes_per_device
        rows = []
        for call in range(times):
            numbers = call * self.config.arch.num_eval_episodes + np.arange(per_call)
            keys = jax.vmap(partial(jax.random.fold_in, key))(numbers)
            rows.append(devices.shard(keys.reshape(self.plan.num_devices, -1), self.devices))
        return rows

    def evaluate(self, programs: Programs, policy: Policy, key: jax.Array, times: int) -> Episodes:
        """Exactly `times * num_eval_episodes` episodes, leaves NumPy `[episodes]`."""
        wanted = self.config.arch.num_eval_episodes
        parts = [
            jax.tree.map(
                lambda x: np.asarray(x).reshape(-1)[:wanted], programs.evaluate.call(policy, keys)
            )
            for keys in self.episode_keys(key, times)
        ]
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    def score(self, episodes: Episodes, steps: int) -> dict[str, Any]:
        returns = np.asarray(episodes.returns, np.float64)
        with np.errstate(invalid="ignore"):  # an infinite return has no spread
            spread = float(returns.std())
        return {
            "steps": steps,
            "seconds": time.perf_counter() - self.started,
            "episodes": returns.size,
            "episode_return": float(returns.mean()),
            "episode_return_std": spread,
            "episode_return_min": float(returns.min()),
            "episode_return_max": float(returns.max()),
            "episode_length": float(np.mean(episodes.lengths)),
            "unfinished": int(np.sum(~np.asarray(episodes.finished))),
            "max_eval_steps": self.system.max_eval_steps,
        }

    def summarize(
        self, totals: Metrics, num_updates: int, steps: int, seconds: float
    ) -> dict[str, Any]:
        """A block's `train` event: means over its updates, and over the episodes that ended."""
        episodes = totals.num_episodes
        self.speeds.append(num_updates * self.plan.steps_per_update / seconds)
        losses = {
            name: value if name in ("ratio_min", "ratio_max") else value / num_updates
            for name, value in dataclasses.asdict(totals.losses).items()
        }
        return {
            "steps": steps,
            "updates": steps // self.plan.steps_per_update,
            "seconds": time.perf_counter() - self.started,
            "steps_per_second": self.speeds[-1],
            "episodes": episodes,
            "episode_return": totals.episode_return / episodes if episodes else None,
            "episode_length": totals.episode_length / episodes if episodes else None,
            **losses,
            "gradient_steps": totals.gradient_steps / num_updates,
            **{
                name: getattr(totals, name) / num_updates
                for name in (
                    *("explained_variance", "advantage_std", "parameter_norm"),
                    *("kl_coef", "learning_rate"),
                )
            },
        }

    def check_finite(self, totals: Metrics, steps: int, best: dict[str, Any]) -> None:
        found = {
            "reward": totals.nonfinite_reward,
            "observation": totals.nonfinite_observation,
            "loss or gradient": totals.nonfinite_loss,
            "parameter": totals.nonfinite_parameter,
        }
        bad = ", ".join(f"{what} ({count})" for what, count in found.items() if count)
        if bad:
            reason = (
                f"NaN or infinity in {bad} in the block that ended at step {steps}; stopped; "
                "try lower system.actor_lr and critic_lr, or look at the environment's rewards"
            )
            self.end(reason, best, None, steps)
            raise TrainingError(reason)
        self.check_masks(int(totals.empty_mask), steps, best)

    def check_masks(self, num_empty: int, steps: int, best: dict[str, Any]) -> None:
        if not num_empty:
            return
        reason = (
            f"no legal action: {num_empty} observations up to step {steps} carry "
            f"an {self.config.env.action_mask} of false alone; stopped; mend the environment's "
            "mask, or env.action_mask=null to do without"
        )
        self.end(reason, best, None, steps)
        raise TrainingError(reason)

    def end(self, status: str, best: dict[str, Any], result: float | None, steps: int) -> None:
        self.write(
            "end",
            status=status,
            environment=self.system.env.name,
            seed=self.config.arch.seed,
            absolute_metric=result if self.config.arch.absolute_metric else None,
            best_episode_return=best["episode_return"],
            best_steps=best.get("steps"),
            steps=steps,
            seconds=time.perf_counter() - self.started,
            compile_seconds=self.compile_seconds,
            steps_per_second=statistics.median(self.speeds),
        )
