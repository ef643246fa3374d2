"""Recurrent PPO: `python -m jaxppo.rec_ppo env=t_maze network=gru`."""

from jaxppo.launch.command_line import main as launch
from jaxppo.runtime.run.loop import run


def main() -> None:
    """Run the command line."""
    launch("rec_ppo", run)


if __name__ == "__main__":
    main()
