"""Recurrent PPO: `python -m jaxppo.rec_ppo env=t_maze network=gru`."""

from functools import partial

from jaxppo.launch.door import train

main = partial(train, "rec_ppo")

if __name__ == "__main__":
    main()
