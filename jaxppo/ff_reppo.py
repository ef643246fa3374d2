"""Feed-forward REPPO: `python -m jaxppo.ff_reppo env=pendulum`."""

from jaxppo.launch.command_line import main as launch
from jaxppo.runtime.run.loop import run


def main() -> None:
    """Run the command line."""
    launch("ff_reppo", run)


if __name__ == "__main__":
    main()
