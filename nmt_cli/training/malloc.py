"""A setting of the C library that is worth up to a third of the training speed on a CPU. See docs/performance.md."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let malloc keep freed memory for the next training step. Returns whether the C library supports that.

    By default glibc returns the pages of large tensors to the kernel as soon as they are freed, and the kernel zeroes
    them when they are used again, thousands of times in a step. Other C libraries and systems have no such setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # The mallopt of musl does nothing and returns 0.
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
