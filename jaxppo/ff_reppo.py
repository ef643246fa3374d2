"""Feed-forward REPPO: `python -m jaxppo.ff_reppo env=pendulum`."""

from jaxppo.launch.door import train


def main() -> None:
    """Run the command line."""
    train("ff_reppo")


if __name__ == "__main__":
    main()
