"""Seeded chance for traces: small, exact and the same in every language.

`Mulberry32` is the well-known 32-bit generator (Tommy Ettinger, public domain); its traces can be checked against any other
implementation.
"""

from __future__ import annotations

import math

_MASK = 0xFFFFFFFF


class Mulberry32:
    """Uniform draws from a 32-bit seed."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def uniform(self) -> float:
        """A draw from [0, 1), a multiple of 2⁻³²."""
        self._state = (self._state + 0x6D2B79F5) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 15)) * (mixed | 1)) & _MASK
        mixed ^= (mixed + (((mixed ^ (mixed >> 7)) * (mixed | 61)) & _MASK)) & _MASK
        return (mixed ^ (mixed >> 14)) / 4294967296.0

    def exponential(self, rate: float) -> float:
        """A draw from the exponential law; one uniform."""
        return -math.log(1.0 - self.uniform()) / rate

    def normal(self) -> float:
        """A draw from the standard normal law by Box–Muller; two uniforms."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def gamma(self, shape: float) -> float:
        """A draw from the gamma law of scale 1 by Marsaglia and Tsang's rejection (2000)."""
        if shape < 1.0:
            return self.gamma(shape + 1.0) * float((1.0 - self.uniform()) ** (1.0 / shape))
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            if v > 0.0 and math.log(1.0 - self.uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v

    def weibull(self, shape: float) -> float:
        """A draw from the Weibull law of scale 1; one uniform."""
        return float((-math.log(1.0 - self.uniform())) ** (1.0 / shape))
