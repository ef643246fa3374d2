"""Recurrent PPO: `python -m jaxppo.rec_ppo env=t_maze network=gru`."""

from jaxppo.launch.door import train


def main() -> None:
    """Run the command line."""
    train("rec_ppo")


if __name__ == "__main__":
    main()
