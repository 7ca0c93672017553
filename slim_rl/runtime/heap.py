"""What glibc's malloc keeps of freed memory. Other C libraries have neither function."""

import ctypes

_LIBC = ctypes.CDLL(None)
_ARENAS = -8  # M_ARENA_MAX in malloc.h


def share_freed_memory() -> None:
    """Have one arena for all threads. A stage samples in other threads than it trains in, and what a thread frees would be kept
    for it alone."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_ARENAS, 1)


def return_freed_memory() -> None:
    """Give the system back what is free, also in the middle of the heap. Passes of many shapes leave holes there that none of
    the next ones fits into."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
