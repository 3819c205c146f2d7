"""A tensor that stops its reader half-way until the test releases it: half of the tensor lies in a missing page."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import select
import struct
from collections.abc import Iterator

import pytest
import torch

_PAGE = mmap.PAGESIZE
_SYSTEM_CALL = {"x86_64": 323, "aarch64": 282}.get(platform.machine())  # userfaultfd(2)
_USER_MODE_ONLY = 1  # faults in user mode; an unprivileged process may handle only these
_API, _REGISTER, _COPY = 0xC018AA3F, 0xC020AA00, 0xC028AA03
_REGISTER_MISSING = 1
_SECONDS_MAX = 240
_COUNT = (
    15  # elements: the last 28 bytes are in the missing page; the samples of a small tensor come from the first page
)


class HeldTensor:
    """`tensor` holds zeros. A thread that reads its last elements waits for :meth:`release`."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = -1
        if _SYSTEM_CALL is not None:
            descriptor = libc.syscall(_SYSTEM_CALL, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        if descriptor < 0:
            pytest.skip("the system lets this process handle no page faults")
        self._faults = descriptor
        fcntl.ioctl(descriptor, _API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
        memory = mmap.mmap(-1, 2 * _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[0] = 0  # makes the first page present
        self._missing = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + _PAGE
        registration = struct.pack("QQQQ", self._missing, _PAGE, _REGISTER_MISSING, 0)
        fcntl.ioctl(descriptor, _REGISTER, bytearray(registration))
        self.tensor = torch.frombuffer(memory, dtype=torch.float32, count=_COUNT, offset=_PAGE - 32)

    def wait_until_reached(self) -> None:
        """Returns when a thread waits for the missing page."""
        ready, _, _ = select.select([self._faults], [], [], _SECONDS_MAX)
        assert ready, "nobody copies the tensor"

    def release(self) -> None:
        """Provides the missing page. May be called again."""
        zeros = ctypes.create_string_buffer(_PAGE)
        with contextlib.suppress(FileExistsError):
            fcntl.ioctl(
                self._faults,
                _COPY,
                bytearray(struct.pack("QQQQq", self._missing, ctypes.addressof(zeros), _PAGE, 0, 0)),
            )

    def close(self) -> None:
        """Releases the waiting reader and closes the descriptor."""
        self.release()
        os.close(self._faults)


@pytest.fixture
def held() -> Iterator[HeldTensor]:
    """A held tensor, released at the end of the test at the latest."""
    tensor = HeldTensor()
    yield tensor
    tensor.close()
