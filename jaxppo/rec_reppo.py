"""Recurrent REPPO: `python -m jaxppo.rec_reppo env=memory_chain network=gru`."""

from jaxppo.launch.command_line import main as launch
from jaxppo.runtime.run.loop import run


def main() -> None:
    """Run the command line."""
    launch("rec_reppo", run)


if __name__ == "__main__":
    main()
