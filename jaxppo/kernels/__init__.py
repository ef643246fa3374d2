"""Faster forms of some computations, with the same results up to the order of sums.

They are random bits, permutations, dense products, whole MLPs, LSTM and GRU, convolutions, linear
recurrences, packed scans and sums of several arrays. `platforms` chooses a form for each platform.
Measurements or counts of kernels justify each choice, and tests compare each form with the plain
one. `precisions` names how precisely products are computed.
"""
