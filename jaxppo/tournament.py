"""Rate policies of a game by a round robin: `python -m jaxppo.tournament RUN...`."""

from jaxppo.extras.tournament import Tournament, tournament
from jaxppo.launch.command_line import command


def main() -> None:
    """Run the command line."""
    command(Tournament, tournament, places="runs")


if __name__ == "__main__":
    main()
