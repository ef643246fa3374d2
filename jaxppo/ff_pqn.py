"""Feed-forward PQN: `python -m jaxppo.ff_pqn env=cartpole`."""

from jaxppo.launch.command_line import main as launch
from jaxppo.runtime.run.loop import run


def main() -> None:
    """Run the command line."""
    launch("ff_pqn", run)


if __name__ == "__main__":
    main()
