"""Recurrent PPO: `python -m jaxppo.rec_ppo env=t_maze network=gru`."""

from jaxppo.experiment import run
from jaxppo.launcher import main as launch


def main() -> None:
    """Run the command line."""
    launch("rec_ppo", run)


if __name__ == "__main__":
    main()
