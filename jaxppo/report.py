"""Compare runs on one HTML page: `python -m jaxppo.report DIR...`."""

from jaxppo.extras.report import Reporting, report
from jaxppo.launch.command_line import command


def main() -> None:
    """Run the command line."""
    command(Reporting, report, places="runs")


if __name__ == "__main__":
    main()
