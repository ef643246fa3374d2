"""Training and evaluation with environments that step outside of JAX.

Actors collect, in threads or on a Ray cluster, and the learner's program learns. How simulators are
stepped, without JAX, is in `jaxppo.simulators`.
"""
