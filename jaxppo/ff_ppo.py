"""Feed-forward PPO: `python -m jaxppo.ff_ppo env=cartpole arch.total_num_envs=4096`."""

from functools import partial

from jaxppo.launch.door import train

main = partial(train, "ff_ppo")

if __name__ == "__main__":
    main()
