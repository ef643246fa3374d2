"""Mathematics: arrays in, arrays out.

Advantages, returns, losses, distributions, running statistics and means over runs. Every function
can be tested against a definition in float64. Nothing here knows a setting, an environment, an
algorithm or a file.
"""
