"""Trained policies: loading and acting, films, exported programs.

Everything here begins with a run directory and trains nothing.
"""
