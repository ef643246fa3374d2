"""Chips that are not here: compile for them, and estimate the speed of a run there."""
