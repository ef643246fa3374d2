"""List the commands: `python -m jaxppo`."""

from jaxppo.launch.command_line import attempt
from jaxppo.runtime.sinks.console import print_lines

COMMANDS = """python -m jaxppo.COMMAND, each with --help and --version:

  ff_ppo       train PPO: python -m jaxppo.ff_ppo env=cartpole
  rec_ppo      train PPO with memory: python -m jaxppo.rec_ppo env=t_maze network=gru
  ff_pqn       train PQN: python -m jaxppo.ff_pqn env=cartpole
  rec_pqn      train PQN with memory: python -m jaxppo.rec_pqn env=memory_chain network=gru
  ff_reppo     train REPPO: python -m jaxppo.ff_reppo env=pendulum
  rec_reppo    train REPPO with memory: python -m jaxppo.rec_reppo env=memory_chain network=gru
  evaluate     play episodes with a trained policy: python -m jaxppo.evaluate run=DIR
  render       film a trained policy
  export       export a policy or a learner to other programs
  plan         print what a run would need: python -m jaxppo.plan env=cartpole target=h200
  tune         search hyperparameters: python -m jaxppo.tune env=cartpole budget=5e7
  report       compare runs on a page
  envs         list environments: python -m jaxppo.envs cart
  check_env    check an environment of your own
  clear_cache  delete the compiled programs that runs have cached

From Python: jaxppo.train, make_train, compose and load; see help(jaxppo.train)."""


def main() -> None:
    """Print the list."""
    attempt(lambda _: print_lines(COMMANDS), COMMANDS, bare=True)


if __name__ == "__main__":
    main()
