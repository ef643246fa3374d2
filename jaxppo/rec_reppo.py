"""Recurrent REPPO: `python -m jaxppo.rec_reppo env=memory_chain network=gru`."""

from functools import partial

from jaxppo.launch.door import train

main = partial(train, "rec_reppo")

if __name__ == "__main__":
    main()
