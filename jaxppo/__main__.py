"""List the commands, or run one: `jaxppo ff_ppo env=cartpole`, as `python -m jaxppo.ff_ppo`."""

import difflib
import re
import runpy
import sys

from jaxppo.launch.door import answers

COMMANDS = """python -m jaxppo.COMMAND, or jaxppo COMMAND, each with --help and --version:

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
  tournament   rate policies of a game: python -m jaxppo.tournament RUN...
  hub          push a run to the Hugging Face hub, or pull one
  envs         list environments: python -m jaxppo.envs cart
  check_env    check an environment of your own
  clear_cache  delete the compiled programs that runs have cached

From Python: jaxppo.train, make_train, rollouts, compose and load; see help(jaxppo.train)."""
NAMES = re.findall(r"^  (\w+)", COMMANDS, re.MULTILINE)


def main() -> None:
    """Run the command that comes first; without one, print the list."""
    if answers(lambda: COMMANDS, sys.argv[1:2], bare=True):
        return
    name, *arguments = sys.argv[1:]
    if name not in NAMES:
        from jaxppo.launch.errors import refuse

        (near,) = difflib.get_close_matches(name, NAMES, 1, 0.0)
        rule = "a command comes first" if "=" in name else f"no such command; did you mean {near}?"
        refuse(f"{name}: {rule} (of {', '.join(NAMES)})", 2)
    sys.argv = [f"jaxppo {name}", *arguments]
    runpy.run_module(f"jaxppo.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
