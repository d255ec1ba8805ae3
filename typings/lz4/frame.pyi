from typing import Final

COMPRESSIONLEVEL_MIN: Final[int]
COMPRESSIONLEVEL_MAX: Final[int]

def compress(
    data: bytes | bytearray | memoryview,
    compression_level: int = 0,
    block_size: int = 0,
    content_checksum: bool = False,
    block_linked: bool = True,
    store_size: bool = True,
) -> bytes: ...
def decompress(data: bytes | bytearray | memoryview) -> bytes: ...

class LZ4FrameDecompressor:
    eof: bool
    needs_input: bool
    unused_data: bytes | None
    def __init__(self) -> None: ...
    def decompress(self, data: bytes | bytearray | memoryview, max_length: int = -1) -> bytes: ...
    def reset(self) -> None: ...
