"""Mathematics: functions from arrays to arrays.

Advantages, returns, losses, distributions, running statistics and means over runs. Every function
can be tested against a definition in float64. Nothing here depends on settings, environments,
algorithms or files.
"""
