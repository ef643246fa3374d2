"""Hydra's side: the command line, sweeps as one program, and errors in one line.

The only wing that knows Hydra's composition. What a run does is in `runtime`.
"""
