"""Recurrent REPPO: `python -m jaxppo.rec_reppo env=memory_chain network=gru`."""

from jaxppo.launch.door import train


def main() -> None:
    """Run the command line."""
    train("rec_reppo")


if __name__ == "__main__":
    main()
