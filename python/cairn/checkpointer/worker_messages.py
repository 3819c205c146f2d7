"""The messages between a CheckpointProcess and its Python child. Both run one version of Cairn; nothing is stored.

The child unpickles the trainer's requests: the state and the user's own writer are Python objects. The trainer
unpickles nothing from the child: a response is JSON.
"""

import io
import json
import math
import pickle
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from cairn._ranks.exception_record import exception_of, record_of
from cairn._state.tensor_memory import check_memory, check_memory_of_all
from cairn.errors import Error, ExceptionRecord, InvalidArgument, Unsupported

_ALIGNMENT_BYTES = 64


class RequestType(Enum):
    """The operations of the child."""

    PING = "ping"
    WRITE_CHECKPOINT = "write_checkpoint"
    TERMINATE_PROCESS = "exit"


@dataclass
class WorkerRequest:
    """A request to the child. `payload` of WRITE_CHECKPOINT: state_dict (a SharedState), path, kwargs."""

    request_type: RequestType
    payload: dict[str, Any]


RESPONSE_BYTES_MAX = 8 << 20
_TRACE_CHARACTERS_MAX = 100_000


@dataclass
class WorkerResponse:
    """A response of the child. `error_msg` is the text of a traceback; `payload` then holds the ``exception``."""

    request_type: RequestType
    success: bool
    error_msg: str | None = None
    payload: dict[str, Any] | None = None

    def encode(self) -> bytes:
        """Returns the response as JSON for the trainer."""
        answer: dict[str, Any] = {"request": self.request_type.value, "success": self.success}
        if self.error_msg is not None and self.payload is not None:
            error = self.payload["exception"]
            answer["trace"] = self.error_msg[-_TRACE_CHARACTERS_MAX:]
            answer["exception"] = record_of(error)
            answer["place"] = error.place if isinstance(error, Error) else {}
        return json.dumps(answer).encode()

    @staticmethod
    def decode(answer: bytes) -> "WorkerResponse":
        """Decodes the JSON of encode(). ``exception_of`` rebuilds the exception."""
        fields = json.loads(answer)
        response = WorkerResponse(RequestType(fields["request"]), fields["success"])
        if "exception" in fields:
            error = exception_of(ExceptionRecord(*fields["exception"]), fields["place"])
            response.error_msg, response.payload = fields["trace"], {"exception": error}
        return response


@dataclass
class SharedState:
    """A state on the way to another process: tensors in shared memory, all remaining objects pickled.

    `buffers` are few: unshared storages are copied into a single buffer; a state of many tensors then needs few file
    descriptors. `places`: buffer and offset in bytes, by storage.
    """

    pickled: bytes
    buffers: list[torch.Tensor]
    places: list[tuple[int, int]]

    @classmethod
    def of(cls, state: Any, *, copy_shared: bool = False) -> "SharedState":
        """Makes the SharedState of `state`. Tensors in shared memory must not change until the other process is done,
        unless `copy_shared`; all remaining objects are copied. Raises InvalidArgument for a tensor whose memory was
        freed by ``storage.resize_()``."""
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        try:
            pickler.dump(state)
        except (InvalidArgument, Unsupported):
            check_memory_of_all(state)  # raises with the key, if the tensor has one
            raise
        buffers: list[torch.Tensor] = []
        places: list[tuple[int, int]] = []
        to_copy: list[tuple[int, torch.UntypedStorage]] = []
        size = 0
        for storage in pickler.storages:
            if storage.is_shared() and not copy_shared:
                places.append((len(buffers), 0))
                buffers.append(_bytes_of(storage))
            else:
                places.append((-1, size))
                to_copy.append((size, storage))
                size += math.ceil(storage.nbytes() / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if size:
            joined = torch.empty(size, dtype=torch.uint8, device="cpu")
            joined.share_memory_()  # type: ignore[no-untyped-call]
            for offset, storage in to_copy:
                joined[offset : offset + storage.nbytes()].copy_(_bytes_of(storage))
            places = [(len(buffers) if index < 0 else index, offset) for index, offset in places]
            buffers.append(joined)
        return cls(stream.getvalue(), buffers, places)

    def restored(self) -> Any:
        """Returns the state, in the other process. Its tensors are views of the buffers."""
        return _Unpickler(io.BytesIO(self.pickled), self).load()

    def tensor(self, storage: int, dtype: torch.dtype, offset: int, size: Any, stride: Any) -> torch.Tensor:
        """Returns a tensor of the state; `offset`, of the first element, and `stride` are in elements."""
        buffer, base = self.places[storage]
        return torch.empty(0, dtype=dtype, device="cpu").set_(
            self.buffers[buffer].untyped_storage(), base // dtype.itemsize + offset, size, stride
        )


class _Pickler(pickle.Pickler):
    """Leaves out the elements of plain CPU tensors, and records their storages."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.storages: list[torch.UntypedStorage] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def persistent_id(self, value: Any) -> Any:
        """Returns the placeholder of a tensor: the storage's number, dtype, offset, shape, stride, and
        requires_grad."""
        if not isinstance(value, torch.Tensor):
            return None
        check_memory(f"a tensor of type {type(value).__name__}", value)
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or not _is_plain(value):
            return None
        storage = value.untyped_storage()
        # Storages of several sizes may begin at one address: views of foreign memory (torch.frombuffer).
        memory = (storage.data_ptr(), storage.nbytes())
        if memory not in self._numbers:
            self._numbers[memory] = len(self.storages)
            self.storages.append(storage)
        place = (self._numbers[memory], value.dtype, value.storage_offset(), tuple(value.shape), value.stride())
        return place, value.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, shared: SharedState) -> None:
        super().__init__(stream)
        self._shared = shared

    def persistent_load(self, saved: Any) -> torch.Tensor:
        """Returns the tensor of a placeholder."""
        place, requires_grad = saved
        return self._shared.tensor(*place).requires_grad_(requires_grad)


def _is_plain(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
        return False
    return not (tensor.is_conj() or tensor.is_neg()) and tensor.untyped_storage().nbytes() > 0


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
