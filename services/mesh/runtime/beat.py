"""The beat of a process: what need not be exact wakes it together.

At rest a process costs what its wake-ups cost, 0.2 to 0.3 ms each, most of it caches that have gone
cold; what is done then hardly counts. Timers that each go their own way wake it as often as there
are timers. So whoever rests for about so many seconds rests until the next multiple of them,
counted from one moment in the life of the event loop: all who rest for two seconds wake up at once,
and with every second one of those who rest for one. Processes began at different moments, and so
they do not meet.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from weakref import WeakKeyDictionary

#: A rest is never shorter than this share of what was asked for, nor longer by more than it.
LEAST = 0.1

#: Seconds by which a process is off. For simulations, where several share an event loop.
PHASE: ContextVar[float] = ContextVar("PHASE", default=0.0)

_beginnings: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()


def until_beat(seconds: float) -> float:
    """How long to rest, instead of `seconds`: to the next multiple of them, or the one after that
    if it is too near. A tenth more at most, and less only after what was not on the beat.
    """
    loop = asyncio.get_running_loop()
    now = loop.time()
    since = now - _beginnings.setdefault(loop, now) + PHASE.get()
    rest = seconds - since % seconds
    return rest if rest > LEAST * seconds else rest + seconds
