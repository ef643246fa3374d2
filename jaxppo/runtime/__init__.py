"""Run training on the host: build and compile programs, call them, and store the results.

This covers devices, the loop over blocks, members, selection, events, checkpoints and signals.
Nothing here uses Hydra or depends on the algorithm.
"""
