"""Trained policies: loading and acting, films, exported programs.

Everything here starts from a run directory and trains nothing.
"""
