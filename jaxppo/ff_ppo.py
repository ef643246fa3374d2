"""Feed-forward PPO: `python -m jaxppo.ff_ppo env=cartpole arch.total_num_envs=4096`."""

from jaxppo.launch.command_line import main as launch
from jaxppo.runtime.run.loop import run


def main() -> None:
    """Run the command line."""
    launch("ff_ppo", run)


if __name__ == "__main__":
    main()
