"""Feed-forward PPO: `python -m jaxppo.ff_ppo env=cartpole arch.total_num_envs=4096`."""

from jaxppo.launch.door import train


def main() -> None:
    """Run the command line."""
    train("ff_ppo")


if __name__ == "__main__":
    main()
