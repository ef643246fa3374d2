"""Trained policies: loading and acting, recorded episodes, results, exported programs.

Everything here starts from a run directory and trains nothing.
"""
