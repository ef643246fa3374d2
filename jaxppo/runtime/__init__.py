"""The host's side of a run: from settings to programs, and around them until the result.

Building, compiling, devices, the loop over blocks, members, selection, events, checkpoints and
signals. Nothing here knows Hydra, and nothing here says what is learnt.
"""
