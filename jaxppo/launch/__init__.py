"""The command line: composing settings with Hydra, sweeps as one program, one-line errors.

Only this package uses Hydra's composition. `runtime` does the runs.
"""
