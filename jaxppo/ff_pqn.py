"""Feed-forward PQN: `python -m jaxppo.ff_pqn env=cartpole`."""

from jaxppo.launch.door import train


def main() -> None:
    """Run the command line."""
    train("ff_pqn")


if __name__ == "__main__":
    main()
