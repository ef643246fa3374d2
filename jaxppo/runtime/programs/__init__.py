"""Build a run's system and its first state, place them on devices, and compile functions.

Nothing here reads or writes the files of a run.
"""
