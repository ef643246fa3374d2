"""Recurrent PQN: `python -m jaxppo.rec_pqn env=memory_chain network=gru`."""

from jaxppo.launch.door import train


def main() -> None:
    """Run the command line."""
    train("rec_pqn")


if __name__ == "__main__":
    main()
