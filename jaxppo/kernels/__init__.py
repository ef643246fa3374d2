"""Faster forms of some computations, with the same results.

They are random bits, permutations, dense products, convolutions and linear recurrences.
`platforms` chooses a form for each platform. Measurements justify each choice, and tests compare
each form with the plain one.
"""
