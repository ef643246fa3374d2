"""Export programs in StableHLO, for use without jaxppo: `python -m jaxppo.export run=DIR`."""

from functools import partial

from jaxppo.deploy.export import Export, write
from jaxppo.extras.chips.executable import write_executables
from jaxppo.launch.command_line import command

export = partial(write, executables=write_executables)


def main() -> None:
    """Run the command line."""
    command(Export, export, places="run")


if __name__ == "__main__":
    main()
