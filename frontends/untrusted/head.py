"""The first bytes of a file, unpacked: what a format is recognised by."""

from __future__ import annotations

import zlib

GZIP = b"\x1f\x8b"


def unpacked(head: bytes, most: int = 256) -> bytes:
    """``head``, or the first ``most`` bytes of what it compresses (empty if that is none).

    Example: of a gzip file of HLO text, ``HloModule ...``; of ``PK...``, itself; of a damaged gzip
    file, nothing.
    """
    if head[:2] != GZIP:
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, most)
    except zlib.error:
        return b""
