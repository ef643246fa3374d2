"""Runs compared: reading what they left, statistics of groups, charts and the page.

Everything here reads files that runs wrote. It needs no device and compiles nothing.
"""
