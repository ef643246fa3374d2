"""The story of a run: begin or resume; train, evaluate, keep the best, select, save and tell.

Each of these verbs is a module with its own state; `loop` and `blocks` call them in turn.
"""
