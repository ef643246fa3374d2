"""The course of a run: begin or resume; train, evaluate, keep the best, select, save, report.

`loop` and `blocks` call the other modules in turn.
"""
