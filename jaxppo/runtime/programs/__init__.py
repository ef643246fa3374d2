"""Build a run's system and its first state, place them on devices, and compile functions.

Nothing here writes the files of a run, and only `opponents` reads those of another one.
"""
