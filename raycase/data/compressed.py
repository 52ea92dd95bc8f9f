"""What gzip and zstd files hold, as a stream: every member and frame to the last one, or an error with the byte."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

import pyarrow as pa

CODECS = {".gz": "gzip", ".zst": "zstd"}  # by the last ending of a name
MAGIC = {  # how a file begins; what a zstd file may begin with besides is a frame to be skipped
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes((0x50 + i,)) + b"\x2a\x4d\x18" for i in range(16))),
}
CHUNK_BYTES = 2**16  # that Arrow reads at a time, by which an error's place is known
MOST_RATIO, FREE_BYTES = 250, 2**26  # of what a file holds to its size; so much any file may hold
DECOMPRESSED_BYTES = 2**20  # in memory at a time
OF_ARROW = ("Truncated", "zlib", "ZSTD")  # how Arrow's errors begin; others are those of the store


def decompressed(
    compressed: io.BufferedReader, codec: str, *, most_ratio: int = MOST_RATIO, free_bytes: int = FREE_BYTES
) -> io.BufferedReader:
    """What a compressed file holds, read as it is asked for.

    Raises ValueError, with the byte, here or while it is read, for a file that is cut off, damaged or of another kind,
    and for one that holds more than `most_ratio` times its size.
    """
    start = compressed.peek(4)[:4]
    if not start:
        raise ValueError(f"no bytes, where a {codec} file has some even if nothing is in it; it may be cut off")
    if not any(start.startswith(magic[: len(start)]) for magic in MAGIC[codec]):
        raise ValueError(f"at byte 0 {start!r}, with which no {codec} file begins; name it by what it is")
    return io.BufferedReader(_Decompressed(compressed, codec, most_ratio, free_bytes), DECOMPRESSED_BYTES)


def check_not_compressed(stream: io.BufferedReader) -> None:
    """Raise ValueError for a compressed file that has the name of a text."""
    start = stream.peek(4)[:4]
    for ending, codec in CODECS.items():
        if len(start) == 4 and start.startswith(MAGIC[codec]):
            raise ValueError(f"a {codec} file; let its name end with {ending}")


class _Decompressed(io.RawIOBase):
    def __init__(self, compressed: BinaryIO, codec: str, most_ratio: int, free_bytes: int) -> None:
        self._compressed, self._codec, self._at = compressed, codec, 0
        self._most_ratio, self._free_bytes = most_ratio, free_bytes
        self._stream = pa.CompressedInputStream(pa.PythonFile(compressed, "r"), codec)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        try:
            count = int(self._stream.readinto(buffer))
        except (OSError, pa.ArrowException) as error:
            if not str(error).startswith(OF_ARROW):
                raise
            end = self._compressed.tell()
            raise ValueError(
                f"at byte {end:,} or up to {CHUNK_BYTES:,} before it no {self._codec} data that decompresses "
                f"({error}); fetch or write the file again"
            ) from error
        self._at += count
        taken = self._compressed.tell()
        if self._at > max(self._free_bytes, self._most_ratio * taken):
            raise ValueError(
                f"at byte {taken:,} more than {self._most_ratio} times as many bytes come out as went in; "
                "if the file is what it should be, decompress it yourself"
            )
        return count
