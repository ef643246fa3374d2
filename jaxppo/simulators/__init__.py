"""Simulators: environments that are not JAX. They step in Python, here or in other processes.

Nothing here imports JAX, so that the processes start fast and stay small.
"""
