"""The advice to the C library about freed memory."""

import platform

from nmt_cli.training.malloc import keep_freed_memory


def test_keep_freed_memory_works_with_glibc():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
