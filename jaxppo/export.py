"""Export programs in StableHLO, for use without jaxppo: `python -m jaxppo.export run=DIR`."""

from functools import partial

from jaxppo.deploy.export import Export, export
from jaxppo.extras.chips.executable import write_executables
from jaxppo.launch.command_line import command


def main() -> None:
    """Run the command line."""
    command(Export, partial(export, executables=write_executables))


if __name__ == "__main__":
    main()
