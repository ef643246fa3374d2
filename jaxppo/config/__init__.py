"""Settings: YAML to plain containers to frozen dataclasses to a plan.

What a setting is and may be is declared here once; `--help`, the comments of the YAML files, the
checks and the pages are made from that. Nothing here imports JAX, and nothing writes back into a
configuration.
"""
