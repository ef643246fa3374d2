"""Settings: YAML to plain containers to frozen dataclasses to a plan.

Each setting is declared once, with its rule. The checks, `--help` and the documentation use that
declaration; tests compare the comments of the YAML files with it. Nothing here imports JAX, and
nothing modifies a configuration.
"""
