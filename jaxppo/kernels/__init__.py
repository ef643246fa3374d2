"""The same numbers, computed faster on some platform.

Random bits, permutations, dense products, convolutions and recurrences, with the table that chooses
among their forms by platform. A form that is chosen has a measurement behind it and a test that it
gives what the plain form gives.
"""
