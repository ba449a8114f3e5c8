"""Memory that comes back: tensors outside the heap of glibc.

A tensor of up to 32 MB lies in the heap, where a freed block often does not serve the next tensor,
since tensors are aligned: a training step then takes nearly twice the size of what it holds. Mapped
by itself, a tensor takes its own size, and its memory goes back to the system when it is freed. The
price is a page fault for each 4 kB that is touched anew.
"""

import ctypes
import sys

MMAP_THRESHOLD = -3  # glibc's name for the setting, see mallopt(3)
LARGE = 1 << 20  # bytes


def map_tensors() -> None:
    """Map tensors of a megabyte and more, in this process from now on; nothing without glibc."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library and hasattr(library, "gnu_get_libc_version"):
        library.mallopt(MMAP_THRESHOLD, LARGE)
