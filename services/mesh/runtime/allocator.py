"""Give memory back: what glibc is told about large blocks and about threads.

Left to itself glibc learns from the first large block that is freed to take such blocks from the
heap from then on, where one small neighbour that lives on keeps all of it; and it has eight heaps a
core, of which each thread of gRPC keeps one. A process through which inputs of some hundred KB
pass then grows for hours, though nothing leaks.
"""

from __future__ import annotations

import ctypes

#: Names of <malloc.h>.
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
#: Blocks from here on are mapped by themselves and go back when they are freed. Above the messages
#: that carry a batch of small jobs: to map those anew each time would cost more than it saves.
LARGE_BYTES = 256 * 1024
#: Python's own allocations are made under one lock anyway; the other heap is for gRPC's threads.
HEAPS = 2


def tell_allocator() -> bool:
    """Set both, once per process and before it has threads; False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(
        mallopt(*option) for option in ((M_MMAP_THRESHOLD, LARGE_BYTES), (M_ARENA_MAX, HEAPS))
    )
