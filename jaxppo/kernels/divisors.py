"""Numbers of equal parts, for what is computed part by part."""

import math


def near_divisor(number: int, wanted: float) -> int:
    """Return a divisor of `number` that is close to `wanted`.

    It is the least divisor that is not below `wanted`. If that is more than twice `wanted`, as for
    primes, it is the divisor with the nearest ratio: parts that are too large cost a fifth of the
    speed, single rows cost nearly all of it.
    """
    least = least_divisor(number, wanted)
    if least <= 2 * wanted or wanted <= 1:
        return least
    divisors = (n for n in range(1, number + 1) if number % n == 0)
    return min(divisors, key=lambda n: abs(math.log(n / wanted)))


def least_divisor(number: int, least: float) -> int:
    """Return the least divisor of `number` that is not below `least`; else `number`."""
    return next(n for n in range(1, number + 1) if number % n == 0 and n >= min(least, number))
