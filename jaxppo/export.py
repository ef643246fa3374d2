"""Export programs in StableHLO, for use without jaxppo: `python -m jaxppo.export run=DIR`."""

from jaxppo.deploy.export import Export, export
from jaxppo.launch.command_line import command


def main() -> None:
    """Run the command line."""
    command(Export, export)


if __name__ == "__main__":
    main()
