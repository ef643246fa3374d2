"""Run training on the host: build and compile programs, call them, and store the results.

The subpackages, each of which imports only from those before it: `hosts`, `store`, `programs`,
`sinks`, `simulated`, `run`. Nothing here uses Hydra or depends on the algorithm.
"""
