"""Search hyperparameters with Optuna, which stops hopeless trials early.

`on_block` is called after every block of training and its evaluation. It reports the return to
Optuna and raises `optuna.TrialPruned` where Optuna asks for it. Install Optuna with
`pip install optuna`.
"""

import optuna

import jaxppo

NUM_TRIALS = 5
SETTINGS = {
    "env": "cartpole",
    "arch.total_timesteps": 4e4,
    "arch.total_num_envs": 32,
    "arch.num_evaluation": 5,
    "arch.num_eval_episodes": 16,
    "arch.compiler": "quick",  # compiles faster and runs slower: for runs of seconds
    "system.num_minibatches": 4,
    "system.gae_lambda": 0.95,
}


def objective(trial: optuna.Trial) -> float:
    """Train with the hyperparameters of a trial and return the absolute metric."""
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    tried = {
        "system.actor_lr": rate,
        "system.critic_lr": rate,
        "system.ent_coef": trial.suggest_float("ent_coef", 1e-4, 1e-1, log=True),
    }

    def on_block(block) -> None:
        trial.report(block.evaluation["episode_return"], step=block.steps)
        if trial.should_prune():
            raise optuna.TrialPruned

    return jaxppo.train({**SETTINGS, **tried}, on_block=on_block).absolute_metric


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    direction="maximize",
    sampler=optuna.samplers.TPESampler(seed=1),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=10_000),
)
study.optimize(objective, n_trials=NUM_TRIALS)
for trial in study.trials:
    numbers = ", ".join(f"{name} {value:.5f}" for name, value in trial.params.items())
    print(f"trial {trial.number}: {numbers}: {trial.state.name} with return {trial.value:.1f}")
print(f"best: trial {study.best_trial.number}, absolute metric {study.best_value:.1f}")
