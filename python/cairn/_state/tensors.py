"""Tensors as the engine reads them: an address, a dtype code, sizes and strides; and payloads for all remaining
tensors.

The engine reads plain tensors (CPU, strided, no subclass) itself, and for an asynchronous save plain tensors of CUDA
devices. This module copies tensors on other devices to the CPU, splits DTensors and ShardedTensors into chunks, and
passes tensors that only torch can describe (quantised tensors, wrapper subclasses) as a ``torch.save`` payload.

While the engine uses addresses, the storages of the tensors are held: ``tensor.data = other``, in another thread or
during an asynchronous staging, removes the storage from the tensor object. ``storage.resize_()`` frees even a held
storage's memory; this can only be detected afterwards.
"""

import contextlib
import importlib.util
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from cairn import _engine
from cairn._state.cuda_streams import current_cuda_streams
from cairn._state.dtypes import CODES, QUANTIZED
from cairn._state.flattening import Leaf, Path, Rules
from cairn._state.local_shard import LocalShard
from cairn._state.payloads import payload_of
from cairn._state.tensor_memory import check_memory, has_dispatch
from cairn._state.torch_file import check_rules_hold
from cairn.errors import Error, InvalidArgument, Unsupported

_PLAIN_CODES = {dtype: code for dtype, code in CODES.items() if dtype not in QUANTIZED}
_SIMPLE_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})

# A tensor of a CUDA device with short runs of elements is made contiguous on the device, up to so many bytes per save.
_DEVICE_SCRATCH_BYTES = 256 << 20

# Since torch 2.14 a plain tensor may declare by attributes that the tensor holds shards of a larger tensor.
_TORCH_HAS_DECLARED_SHARDS = importlib.util.find_spec("torch.distributed.checkpoint.protocol") is not None
_SHARD_MARK = "global_shape"


class TensorSource:
    """Adds tensors to a StateDict for a save, and keeps their memory until the save is over.

    `from_devices`: the save reads the memory of CUDA devices. The streams that are current now hold the work that comes
    before the copies.
    """

    def __init__(self, state: _engine.StateDict, *, from_devices: bool = False) -> None:
        self._state = state
        self._cuda_streams = current_cuda_streams() if from_devices else None
        self._plain = _plain_tensors(self._cuda_streams)
        self._scratch_left = _DEVICE_SCRATCH_BYTES
        self._held = _engine.HeldStorages()

    def keys_of_moved(self) -> list[str]:
        """Returns the keys of tensors whose memory has been freed or moved since add(), by ``storage.resize_()``."""
        return self._held.keys_of_moved(self._state)

    def add_leaves(self, state_dict: Mapping[Any, Any], rules: Rules, add_value: Callable[[Path, Any], None]) -> None:
        """Adds the leaves of a nested state in their order; values that the engine does not know go to `add_value`."""

        def add_other(path: Path, value: Any) -> None:
            if isinstance(value, torch.Tensor) or is_sharded(value):
                self.add(path, value)
            else:
                add_value(path, value)

        read = (self._plain, self._held)
        _engine.describe(self._state, state_dict, rules, read, add_other)

    def add(self, path: Path, tensor: torch.Tensor) -> None:
        """Adds a tensor or an is_sharded() object.

        Raises Unsupported for tensors that DCP can't save either: sparse, nested and meta tensors, Partial DTensors;
        and InvalidArgument for a parameter that has not been initialized, and for freed memory.
        """
        chunks = _chunks_of(".".join(map(str, path)), tensor)
        if chunks is None:
            self._add_local(path, tensor, None)
            return
        for local, offsets, replicated, size in chunks:
            self._add_local(path, local, (size, offsets, replicated))

    def add_part(self, path: Path, local: torch.Tensor, size: Any, offsets: Any) -> None:
        """Adds `local` as the box at `offsets` of a tensor of `size`; as a whole tensor if the box covers the
        tensor."""
        is_whole = tuple(local.shape) == tuple(size) and not any(offsets)
        self._add_local(path, local, None if is_whole else (size, offsets, False))

    def _add_local(self, path: Path, tensor: torch.Tensor, chunk: tuple[Any, Any, bool] | None) -> None:
        key = ".".join(map(str, path))
        _refuse_what_has_no_bytes(self._plain, key, tensor)
        requires_grad = tensor.requires_grad
        if _is_opaque(tensor):
            if chunk is not None:
                raise Unsupported(f"a chunk of type {type(tensor).__name__} under '{key}'", key=key)
            payload = _payload_of(key, tensor)
            code = _code_of(key, tensor)
            self._state.add_serialized_tensor(path, payload, code, tensor.shape, requires_grad)
            return
        plain = self._as_readable(key, tensor)
        view = (plain.data_ptr(), _code_of(key, plain), plain.shape, plain.stride(), requires_grad)
        cuda = None
        if plain.is_cuda:
            assert self._cuda_streams is not None
            ordinal = plain.get_device()
            cuda = (ordinal, self._cuda_streams(ordinal))
        if chunk is None:
            self._state.add_tensor(path, *view, cuda=cuda)
        else:
            self._state.add_chunk(path, *view, *chunk, cuda=cuda)
        self._held.add(len(self._state) - 1, plain.untyped_storage())

    def _as_readable(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the elements as a plain torch.Tensor where the engine can read them; a view where possible."""
        if self._cuda_streams is None or not tensor.is_cuda:
            _refuse_while_capturing(key, tensor)
            return _as_plain(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            plain = tensor.detach().as_subclass(torch.Tensor)
            if plain in self._plain:
                return plain
            _refuse_while_capturing(key, tensor)
            scratch = plain.numel() * plain.element_size()
            if scratch <= self._scratch_left:
                with contextlib.suppress(torch.cuda.OutOfMemoryError):
                    contiguous = plain.resolve_conj().resolve_neg().contiguous()
                    self._scratch_left -= scratch
                    return contiguous
        return _as_plain(tensor)


class TensorTarget:
    """Adds tensors to a StateDict for a load. :meth:`finish` fills the tensors that were read into an intermediate
    copy.

    `to_devices`: the load writes to the memory of CUDA devices, after the work that the streams that are current now
    hold.
    """

    def __init__(self, state: _engine.StateDict, *, to_devices: bool = False) -> None:
        self._state = state
        self._cuda_streams = current_cuda_streams() if to_devices else None
        self._plain = _plain_tensors(self._cuda_streams)
        self._written = _engine.WrittenTensors()
        self._detours: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def add_leaves(self, state_dict: Mapping[Any, Any], rules: Rules, add_other: Callable[[Leaf], None]) -> None:
        """Adds the plain tensors of a nested state; the other leaves go to `add_other`, in the order of all leaves."""
        write = (self._plain, self._written)
        _engine.describe_targets(self._state, state_dict, rules, write, lambda *parts: add_other(Leaf(*parts)))

    def add(self, path: Path, tensor: torch.Tensor) -> None:
        """Adds a tensor to fill. Raises Unsupported for tensors that have no elements of their own, and InvalidArgument
        for freed memory."""
        if self._plain.add_target(self._state, path, tensor):
            self._written.add(len(self._state) - 1, tensor, tensor.untyped_storage())
            return
        key = ".".join(map(str, path))
        chunks = _chunks_of(key, tensor)
        if chunks is None:
            _refuse_what_has_no_bytes(self._plain, key, tensor)
            self._add_part(path, tensor, tensor.shape, (0,) * tensor.dim())
            return
        for local, offsets, _, size in chunks:
            self.add_part(path, local, size, offsets)

    def add_part(self, path: Path, tensor: torch.Tensor, shape: Any, offsets: Any) -> None:
        """Adds `tensor`, to be filled with the box at `offsets` of a tensor of `shape`. Raises as add()."""
        _refuse_what_has_no_bytes(self._plain, ".".join(map(str, path)), tensor)
        self._add_part(path, tensor, shape, offsets)

    def _add_part(self, path: Path, tensor: torch.Tensor, shape: Any, offsets: Any) -> None:
        key = ".".join(map(str, path))
        if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise InvalidArgument(
                f"several elements of the expanded tensor '{key}' have a single memory location; load into a clone",
                key=key,
            )
        if tensor in self._plain and 0 not in tensor.stride():
            local = tensor
            self._written.add(len(self._state), tensor, tensor.untyped_storage())
        else:
            _refuse_while_capturing(key, tensor)
            local = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")  # independent of the default device
            self._detours.append((key, tensor, local))
        view = (local.data_ptr(), _code_of(key, local), local.shape, local.stride(), False)
        cuda = None
        if local.is_cuda:
            assert self._cuda_streams is not None
            ordinal = local.get_device()
            cuda = (ordinal, self._cuda_streams(ordinal))
        self._state.add_chunk(path, *view, shape, offsets, cuda=cuda)

    def finish(self, missing: set[str]) -> None:
        """Ends the load: copies to other devices, and increments the versions of the written tensors for autograd.

        Tensors `missing` in the checkpoint stay unchanged. Raises InvalidArgument if another thread gave a tensor new
        memory during the load: the elements are in the tensor's old memory.
        """
        with torch.no_grad():
            for key, target, source in self._detours:
                if key not in missing:
                    target.detach().copy_(source)
        written = [tensor for tensor in self._written.tensors() if not tensor.is_inference()]
        torch.autograd.graph.increment_version(written)
        for key in self._written.keys_of_replaced(self._state):
            raise InvalidArgument(f"the memory of '{key}' changed during the load; load again", key=key)


def is_sharded(value: object) -> bool:
    """Returns whether an object that is no tensor has DCP's protocol for tensors (torch's ``_Checkpointable``)."""
    return hasattr(value, "__create_write_items__") and hasattr(value, "__get_tensor_shard__")


def is_declared_shard(value: object) -> bool:
    """Returns whether a tensor's attributes declare shards of a larger tensor (torch's ``CheckpointableTensor``)."""
    return (
        isinstance(value, torch.Tensor) and hasattr(value, _SHARD_MARK) and not hasattr(value, "__create_chunk_list__")
    )


def _plain_tensors(cuda_streams: Callable[[int], int] | None = None) -> _engine.PlainTensors:
    return _engine.PlainTensors(_PLAIN_CODES, _SHARD_MARK if _TORCH_HAS_DECLARED_SHARDS else None, cuda_streams)


def needs_payload(tensor: Any) -> bool:
    """Returns whether a target can only be filled from a ``torch.save`` payload."""
    if type(tensor) in _SIMPLE_TYPES and tensor.dtype not in QUANTIZED:
        return False
    if not isinstance(tensor, torch.Tensor):
        return False
    return _chunks_of("", tensor) is None and _is_opaque(tensor)


def add_payload_target(state: _engine.StateDict, path: Path, tensor: torch.Tensor) -> None:
    """Adds the entry for a target that needs a payload; the engine replaces the entry's payload."""
    key = ".".join(map(str, path))
    _refuse_what_has_no_bytes(_plain_tensors(), key, tensor)
    code = _code_of(key, tensor)
    state.add_serialized_tensor(path, b"", code, tensor.shape, False)


def tensor_in_payload(key: str, target: torch.Tensor, payload: bytes, allow_pickle: bool) -> torch.Tensor:
    """Returns the tensor in a ``torch.save`` payload, by torch's rules for data without code. Checks that its shape
    fits `target`, and that the target has memory.

    `allow_pickle`: the consent of the call, for a torch whose rules do not hold.
    """
    check_memory(_plain_tensors(), key, target)
    if not allow_pickle:
        check_rules_hold(f"the tensor under '{key}'", key=key)
    try:
        loaded: torch.Tensor = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:
        raise Unsupported(f"torch can't read the tensor under '{key}': {error}", key=key) from error
    if loaded.shape != target.shape:
        raise InvalidArgument(
            f"size mismatch for '{key}'", key=key, expected=str(tuple(target.shape)), actual=str(tuple(loaded.shape))
        )
    return loaded


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies `source` into `target` without recording the copy in autograd."""
    with torch.no_grad():
        target.detach().copy_(source)


def _is_opaque(tensor: torch.Tensor) -> bool:
    """Returns whether only torch can locate the elements."""
    if tensor.dtype in QUANTIZED:
        return True
    kind = type(tensor)
    return kind not in _SIMPLE_TYPES and has_dispatch(tensor)


def _as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in CPU memory as a plain torch.Tensor; a view where possible."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor)


def _chunks_of(key: str, tensor: torch.Tensor) -> Iterator[LocalShard] | None:
    """Returns this process's chunks of a distributed tensor; None if `tensor` is not distributed."""
    if _TORCH_HAS_DECLARED_SHARDS and is_declared_shard(tensor):
        from cairn._state.sharding import chunks_of_declared

        return chunks_of_declared(key, tensor)
    if type(tensor) in _SIMPLE_TYPES:
        return None
    if hasattr(tensor, "__create_chunk_list__"):  # DTensor, and classes with DTensor's protocol
        from cairn._state.sharding import chunks_of_dtensor

        return chunks_of_dtensor(key, tensor)
    if torch.distributed.is_available():
        from torch.distributed._shard.sharded_tensor.api import ShardedTensor

        if isinstance(tensor, ShardedTensor):
            size = tensor.size()
            return (LocalShard(it.tensor, it.metadata.shard_offsets, False, size) for it in tensor.local_shards())
    return None


def _refuse_what_has_no_bytes(plain: _engine.PlainTensors, key: str, tensor: torch.Tensor) -> None:
    check_memory(plain, key, tensor)
    if tensor.is_meta:
        raise Unsupported(
            f"a meta tensor holds no elements: '{key}'; fill the module first (to_empty, load), or leave the key out",
            key=key,
        )
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise Unsupported(f"a {kind} tensor can't be one entry of a checkpoint: '{key}'", key=key)


def _refuse_while_capturing(key: str, tensor: torch.Tensor) -> None:
    """Refuses a tensor that only an operation of torch can copy, while the current stream of the tensor's device is
    captured into a CUDA graph: the operation would become a part of the graph."""
    if not tensor.is_cuda:
        return
    with torch.cuda.device(tensor.device):
        if torch.cuda.is_current_stream_capturing():
            raise InvalidArgument(
                f"the current stream of {tensor.device} is being captured into a CUDA graph; save or load '{key}' "
                "before or after the capture",
                key=key,
            )


def _code_of(key: str, tensor: torch.Tensor) -> int:
    code = CODES.get(tensor.dtype)
    if code is None:
        raise Unsupported(
            f"the checkpoint format has no dtype {tensor.dtype}: '{key}'", key=key, actual=str(tensor.dtype)
        )
    return code


def _payload_of(key: str, tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().cpu()
    try:
        if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
            tensor = tensor.clone()
        return payload_of(key, tensor)
    except Error:
        raise
    except Exception as error:
        raise Unsupported(f"torch can't save the {type(tensor).__name__} under '{key}': {error}", key=key) from error
