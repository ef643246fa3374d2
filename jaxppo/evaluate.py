"""Evaluate a trained policy: `python -m jaxppo.evaluate run=DIR episodes=1000`."""

from jaxppo.deploy.evaluation import Evaluation, evaluate
from jaxppo.launch.command_line import command


def main() -> None:
    """Run the command line."""
    command(Evaluation, evaluate, places="run")


if __name__ == "__main__":
    main()
