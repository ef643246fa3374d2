"""Other systems on the same work, each run by a script in an environment of its own."""
