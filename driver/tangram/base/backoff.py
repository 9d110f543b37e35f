"""Exponential back-off with jitter."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Delays that grow from `initial_s` by `factor` up to `maximum_s`, each stretched by 0..`jitter`.

    Jitter keeps many clients that failed together from coming back together.
    """

    initial_s: float = 0.8
    maximum_s: float = 30.0
    factor: float = 2.0
    jitter: float = 0.5
    _failures: int = field(default=0, init=False)

    def next_s(self) -> float:
        """The delay after one more failure, in seconds."""
        # Bounded exponent: a float overflows after some 1,000 failures.
        delay_s = min(self.maximum_s, self.initial_s * self.factor ** min(self._failures, 64))
        self._failures += 1
        return delay_s * (1 + self.jitter * random.random())  # noqa: S311 - not for secrets

    def reset(self) -> None:
        """Forgets the failures: the next delay is `initial_s` again."""
        self._failures = 0
