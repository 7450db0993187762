"""How many jobs a second a namespace may submit: a bucket of tokens for each. Pure.

A bucket fills at its rate up to its burst. What does not fit now is refused as a whole, with the
time at which it will; a batch larger than the burst fits when the bucket is full, and leaves a debt
that is filled first. So over time the rate holds.

Small calls that take each token as it comes would keep all others waiting for ever. So whoever has
waited long enough goes as soon as nothing is owed, and owes what is missing:

* A stream waits in a line. Its first goes, at the latest, after `PATIENCE` times as long as its
  jobs take at the rate. Half of the rate is left, then.
* A call with several jobs that is refused waits at its caller's, and nobody knows whether it will
  be back. Its size is noted (`Refused`), and the next of that size stands for it: it goes after
  `CALL_PATIENCE` times as long. A quarter of the rate goes this way at most.

What was let in costs all others something, too, and a burst in many small calls is many puts at
once. So who has spent a fifth of its burst, and thus sends more than its rate, is stored in few
puts with a pause between them. It waits for a fifth of a second at most; and if that makes it
slower than its rate, its bucket fills, and it waits no more. Who sends no more than its rate has a
full bucket, and is stored at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.mesh.errors import QuotaExceeded

#: The burst of a rate that is given without one, in seconds of it.
BURST_SECONDS = 2.0
#: How long the first of a line waits at most, in times of what its jobs take at the rate.
PATIENCE = 2.0
#: The same for calls that were refused.
CALL_PATIENCE = 4.0
#: A call that is not back so many seconds after twice the time it was told is not waited for.
LATE_SECONDS = 1.0
#: Of a burst, what is left when its namespace begins to be stored with pauses.
SPENT = 0.8
#: Seconds from one put of such a namespace to the next.
PAUSE_SECONDS = 0.2
#: Namespaces whose buckets are remembered. One that is forgotten begins with a full bucket.
MOST_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs a second, and how many at once after a rest."""

    per_second: float
    burst: float

    @classmethod
    def parse(cls, text: str) -> Rate | None:
        """`500` or `500:2000`; `0` is no bound. ValueError if it is neither."""
        rate, colon, burst = text.partition(":")
        per_second = float(rate)
        if not per_second and not colon:
            return None
        made = cls(per_second, float(burst) if colon else max(1.0, BURST_SECONDS * per_second))
        if not 0 < made.per_second < 1e9 or not 1 <= made.burst < 1e12:
            raise ValueError(text)
        return made

    def __str__(self) -> str:
        return f"{self.per_second:g} jobs/s, {self.burst:g} at once"


class Refused:
    """Calls of one namespace that were refused, by size up to a factor of two: since when, and
    until when one of that size is expected back. They have their turn one after the other.
    """

    __slots__ = ("_last", "_sizes")

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[float, float]] = {}
        self._last = float("-inf")

    def note(self, count: int, wait: float, now: float) -> None:
        """It was told to come back after so many seconds. One job is never kept waiting by less."""
        if count > 1:
            size = count.bit_length()
            since, _ = self._sizes.get(size, (now, now))
            self._sizes[size] = since, now + 2 * wait + LATE_SECONDS

    def waiting_since(self, count: int, now: float) -> float | None:
        """Since when it is the turn of calls of this size; None: it is not."""
        while self._sizes:
            first, (since, until) = next(iter(self._sizes.items()))
            if until >= now:
                return max(since, self._last) if first == count.bit_length() else None
            del self._sizes[first]
        return None

    def went(self, count: int, now: float, owing: bool) -> None:
        self._sizes.pop(count.bit_length(), None)
        if owing:
            self._last = now


class Bucket:
    """The tokens of one namespace; below zero while it owes some."""

    __slots__ = ("_at", "_put_at", "_rate", "_refused", "_tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate, self._tokens, self._at = rate, rate.burst, now
        self._refused = Refused()
        self._put_at = float("-inf")

    def call(self, count: int, now: float) -> float:
        """Take them for a call; else the seconds after which it shall come back."""
        wait = fits = self.wait(count, now)
        since = self._refused.waiting_since(count, now) if fits > 0 else None
        if since is not None:
            wait = self.turn(count, since, now, CALL_PATIENCE)
        if wait > 0:
            self._refused.note(count, wait, now)
            return wait
        self._refused.went(count, now, owing=fits > 0)
        self.take(count)
        return 0.0

    def wait(self, count: int, now: float) -> float:
        """Seconds until so many fit; 0: they do."""
        self._fill(now)
        missing = min(float(count), self._rate.burst) - self._tokens
        return max(0.0, missing / self._rate.per_second)

    def turn(self, count: int, since: float, now: float, patience: float = PATIENCE) -> float:
        """The same for the first of the line, which has been that since then."""
        fits = self.wait(count, now)
        longest = since + patience * count / self._rate.per_second - now
        return min(fits, max(longest, -self._tokens / self._rate.per_second, 0.0))

    def take(self, count: int) -> None:
        self._tokens -= count

    def is_spent(self, now: float) -> bool:
        """Whether it was used faster than it fills, for long enough."""
        self._fill(now)
        return self._tokens < SPENT * self._rate.burst

    def pause(self, now: float) -> float:
        """Seconds until the next put of what was let in; 0: it may go."""
        return max(0.0, self._put_at + PAUSE_SECONDS - now) if self.is_spent(now) else 0.0

    def put(self, now: float) -> None:
        """Some of what was let in is on its way."""
        self._put_at = now

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._tokens >= self._rate.burst

    def _fill(self, now: float) -> None:
        grown = self._tokens + self._rate.per_second * (now - self._at)
        self._tokens, self._at = min(self._rate.burst, grown), now


class Quotas:
    """The buckets of all namespaces: by default alike, some by a rate of their own."""

    def __init__(self, usual: Rate | None, own: Mapping[str, Rate | None]) -> None:
        self._usual, self._own = usual, dict(own)
        self._buckets: dict[str, Bucket] = {}

    def take(self, namespace: str, count: int, now: float) -> None:
        """Take the tokens of so many jobs; QuotaExceeded, and none taken, if they do not fit."""
        rate = self._rate(namespace)
        if rate is None:
            return
        wait = self._bucket(namespace, rate, now).call(count, now)
        if wait > 0:
            raise QuotaExceeded(namespace, str(rate), retry_after=wait)

    def reserve(self, namespace: str, count: int, since: float, now: float) -> float:
        """Take them for the first of a line, which has been that since then, if it is its turn;
        else the seconds until it may be.
        """
        rate = self._rate(namespace)
        if rate is None:
            return 0.0
        bucket = self._bucket(namespace, rate, now)
        wait = bucket.turn(count, since, now)
        if wait <= 0:
            bucket.take(count)
        return wait

    def is_bounded(self, namespace: str) -> bool:
        return self._rate(namespace) is not None

    def is_spent(self, namespace: str, now: float) -> bool:
        """Whether the namespace is stored with pauses now."""
        bucket = self._buckets.get(namespace)
        return bucket is not None and bucket.is_spent(now)

    def pause(self, namespace: str, now: float) -> float:
        """Seconds until the next put of what was let in of the namespace; 0: it may go."""
        bucket = self._buckets.get(namespace)
        return 0.0 if bucket is None else bucket.pause(now)

    def put(self, namespace: str, now: float) -> None:
        """Some of what was let in of the namespace is on its way."""
        if (bucket := self._buckets.get(namespace)) is not None:
            bucket.put(now)

    def give_back(self, namespace: str, count: int) -> None:
        """They were taken for jobs that were refused for another reason."""
        if (bucket := self._buckets.get(namespace)) is not None:
            bucket.take(-count)

    def _bucket(self, namespace: str, rate: Rate, now: float) -> Bucket:
        bucket = self._buckets.get(namespace)
        if bucket is None:
            self._forget(now)
            bucket = self._buckets[namespace] = Bucket(rate, now)
        return bucket

    def _rate(self, namespace: str) -> Rate | None:
        return self._own.get(namespace, self._usual)

    def _forget(self, now: float) -> None:
        """Those that are full say nothing; if all are in use, the oldest half goes."""
        if len(self._buckets) < MOST_BUCKETS:
            return
        self._buckets = {name: b for name, b in self._buckets.items() if not b.is_full(now)}
        for name in list(self._buckets)[: len(self._buckets) - MOST_BUCKETS // 2]:
            del self._buckets[name]
