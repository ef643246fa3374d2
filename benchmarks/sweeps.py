"""What many runs cost together and apart, and what selection is worth: part of `make bench`.

32 runs of CartPole (4 learning rates x 8 seeds, 4 environments x 128 steps, 100,000 steps) as one
program, as 32 commands one after another and as Hydra's basic launcher runs them, all with a warm
compile cache; 8 runs against 2; and population-based training from poor learning rates against the
same members without selection. Writes benchmarks/results/sweeps.json (ignored by git).
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.blocks import keep

SIZE = ["env=cartpole", "arch.total_num_envs=4", "arch.total_timesteps=1e5"]
SIZE += ["system.rollout_length=128", "system.num_minibatches=4", "system.epochs=4"]
RATES, SEEDS = ("1e-4", "3e-4", "1e-3", "3e-3"), range(1, 9)
GRID = ["-m", f"system.actor_lr={','.join(RATES)}", f"arch.seed={','.join(map(str, SEEDS))}"]
POOR = ["population=pbt", "population.size=16", "population.initialize=config"]
POOR += ["system.actor_lr=1e-6", "system.critic_lr=1e-6", "system.decay_learning_rates=false"]
POOR += ["population.hyperparameters.actor_lr=[1e-6,1e-1]"]
POOR += ["population.hyperparameters.critic_lr=[1e-6,1e-1]", "population.perturbation=3"]
POOR += ["arch.num_evaluation=30", "arch.num_eval_episodes=32"]


def run(*overrides: str, folder: Path) -> tuple[float, int, str]:
    """Wall seconds, programs compiled or read from the cache, and output of a command."""
    command = [sys.executable, "-m", "jaxppo.ff_ppo", *overrides, *SIZE]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return time.perf_counter() - start, 2 * done.stdout.count("compiled in"), done.stdout


def main() -> None:
    """Measure, and print as it goes."""
    results: dict[str, float] = {}

    def note(name: str, seconds: float, programs: int) -> None:
        results[name] = seconds
        print(f"{name:<40} {seconds:7.1f} s  {programs:3d} programs", flush=True)

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run(folder=folder)  # the cache
        for launcher in ("jaxppo", "basic"):
            grid = (*GRID, f"hydra/launcher={launcher}")
            if launcher == "jaxppo":
                run(*grid, folder=folder)  # the cache
            note(f"32 jobs, hydra/launcher={launcher}", *run(*grid, folder=folder)[:2])
        apart = [
            run(f"system.actor_lr={rate}", f"arch.seed={seed}", folder=folder)
            for rate in RATES
            for seed in SEEDS
        ]
        note("32 commands", sum(t for t, _, _ in apart), sum(n for _, n, _ in apart))
        eight = ("-m", "arch.seed=1,2,3,4,5,6,7,8")
        run(*eight, folder=folder)  # the cache
        note("8 jobs", *run(*eight, folder=folder)[:2])
        note("2 commands", sum(t for t, _, _ in apart[:2]), sum(n for _, n, _ in apart[:2]))
        for name in ("pbt", "none"):
            _, _, output = run(*POOR, f"population.selection={name}", folder=folder)
            evaluations = re.findall(r"evaluation: mean ([\d.]+), .* to ([\d.]+) over", output)
            (best,) = re.findall(r"best member: .* absolute metric ([\d.]+)", output)
            results[f"absolute metric, selection {name}"] = float(best)
            print(
                f"selection {name:<4}: means {' '.join(m for m, _ in evaluations[4::5])}, "
                f"absolute metric of the best {best}",
                flush=True,
            )
    print(
        f"one program is {results['32 commands'] / results['32 jobs, hydra/launcher=jaxppo']:.1f} "
        f"times faster than 32 commands, and 8 jobs cost "
        f"{2 * results['8 jobs'] / results['2 commands']:.2f} commands"
    )
    keep("sweeps.json", results)


if __name__ == "__main__":
    main()
