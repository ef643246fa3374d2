"""Comparison of runs: reading their files, statistics of groups, charts and the page.

This folder reads files that runs wrote. It needs no device and compiles nothing.
"""
