"""A tensor whose copy stops half-way until the test says so: half of it lies in a page that is not there yet."""

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
_USER_MODE_ONLY = 1  # faults of the process itself, which an unprivileged one may handle too
_API, _REGISTER, _COPY = 0xC018AA3F, 0xC020AA00, 0xC028AA03
_REGISTER_MISSING = 1
_SECONDS_MAX = 60
_COUNT = (
    15  # elements: the last 28 bytes are in the missing page, and the samples of so small a tensor are of the first
)


class HeldTensor:
    """`tensor` holds zeros. Whoever reads the end of it waits for :meth:`release`."""

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
        memory[0] = 0  # the first page is there
        self._missing = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + _PAGE
        registration = struct.pack("QQQQ", self._missing, _PAGE, _REGISTER_MISSING, 0)
        fcntl.ioctl(descriptor, _REGISTER, bytearray(registration))
        self.tensor = torch.frombuffer(memory, dtype=torch.float32, count=_COUNT, offset=_PAGE - 32)

    def wait_until_reached(self) -> None:
        """Returns when a thread waits for the missing page."""
        ready, _, _ = select.select([self._faults], [], [], _SECONDS_MAX)
        assert ready, "nobody copies the tensor"

    def release(self) -> None:
        """Brings the page; more than once if need be."""
        zeros = ctypes.create_string_buffer(_PAGE)
        with contextlib.suppress(FileExistsError):
            fcntl.ioctl(
                self._faults,
                _COPY,
                bytearray(struct.pack("QQQQq", self._missing, ctypes.addressof(zeros), _PAGE, 0, 0)),
            )

    def close(self) -> None:
        """Releases it, and gives the descriptor back."""
        self.release()
        os.close(self._faults)


@pytest.fixture
def held() -> Iterator[HeldTensor]:
    """Released after the test at the latest."""
    tensor = HeldTensor()
    yield tensor
    tensor.close()
