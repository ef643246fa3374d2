"""Render films of a trained policy: `python -m jaxppo.render run=DIR`."""

from jaxppo.extras.films import Rendering, render
from jaxppo.launch.command_line import command


def main() -> None:
    """Run the command line."""
    command(Rendering, render, places="run")


if __name__ == "__main__":
    main()
