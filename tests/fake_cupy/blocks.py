"""Memory as the driver knows it: blocks of bytes at addresses, on a device or pinned on the host."""

from __future__ import annotations

import bisect
import ctypes
from collections import deque
from typing import Any

import numpy as np

from .clocks import Access

POISON = 0xDB
HOST = -1
# Addresses that no process can have, so that a device pointer used on the host can only be a mistake.
DEVICE_SPACE = 1 << 52
DEVICE_SPAN = 1 << 44
_ALIGNMENT = 512


class Block:
    """Bytes that really exist, as one array; `used` until the pool takes them back, `live` until the driver does."""

    def __init__(self, address: int, content: Any, device: int) -> None:
        self.address = address
        self.content = content
        self.device = device
        self.used = self.live = True
        self.handed_out = 1
        self.accesses: list[Access] = []
        self.sources: list[tuple[Access, Any]] = []  # what was in pinned memory when a copy from it was launched
        self.poison()

    @property
    def size(self) -> int:
        return int(self.content.size)

    def poison(self) -> None:
        self.content.fill(POISON)

    def view(self, address: int, shape: Any, dtype: Any, strides: Any) -> Any:
        """A NumPy array on the bytes from `address` on."""
        return np.ndarray(shape, dtype, self.content, address - self.address, strides)

    def slice(self, address: int, size: int) -> Any:
        return self.content[address - self.address : address - self.address + size]


class Space:
    """All blocks by address."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        # Garbage collection may release in the middle of anything: the list changes in `_add` and `_tidy` only.
        self._released: deque[Block] = deque()
        self._ends: dict[int, int] = {}
        self.allocated: dict[int, int] = {}

    def device(self, device: int, size: int) -> Block:
        """A new block on a device, at an address never used before."""
        address = self._ends.get(device, DEVICE_SPACE + device * DEVICE_SPAN)
        self._ends[device] = address + -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        return self._add(Block(address, _aligned(size), device))

    def pinned(self, size: int) -> Block:
        """A new block on the host, at its true address."""
        content = _aligned(size)
        return self._add(Block(content.ctypes.data, content, HOST))

    def release(self, block: Block) -> None:
        """Give a block back to the driver."""
        if block.live:
            block.live = block.used = False
            self.allocated[block.device] -= block.size
            self._released.append(block)

    def find(self, address: int) -> Block | None:
        """The block that holds an address."""
        self._tidy()
        at = bisect.bisect_right(self._blocks, address, key=_address) - 1
        block = self._blocks[at] if at >= 0 else None
        return block if block is not None and address < block.address + block.size else None

    def blocks(self) -> list[Block]:
        """All that the driver has given out."""
        return [block for block in self._blocks if block.live]

    def _add(self, block: Block) -> Block:
        self._tidy()
        self._blocks.append(block)
        self._blocks.sort(key=_address)
        self.allocated[block.device] = self.allocated.get(block.device, 0) + block.size
        return block

    def _tidy(self) -> None:
        while self._released:
            self._blocks.remove(self._released.popleft())


def _address(block: Block) -> int:
    return block.address


def is_device(address: int) -> bool:
    return address >= DEVICE_SPACE


def device_of(address: int) -> int:
    """The device of an address, or `HOST`."""
    return (address - DEVICE_SPACE) // DEVICE_SPAN if is_device(address) else HOST


def host_bytes(address: int, size: int) -> Any:
    """Any bytes of this process, as an array."""
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))


def _aligned(size: int) -> Any:
    """New bytes, aligned as NumPy's own are at best, so that its loops run as they would there."""
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
