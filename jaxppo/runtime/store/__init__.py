"""What a run keeps on disk so that it can go on: its directory, checkpoints, facts, progress."""
