"""Tensors as the engine wants them: an address, a dtype code, sizes and strides; and what can't be told that way.

The engine never touches a tensor object. Tensors on other devices are copied; DTensors and ShardedTensors are taken
chunk by chunk; what only torch can describe (quantised tensors, wrapper subclasses) goes as a ``torch.save`` payload.

While the engine has addresses, the storages of the tensors are held: ``tensor.data = other``, in another thread or
during an asynchronous staging, takes the storage from the tensor object. ``storage.resize_()`` frees even what is held:
that can only be noticed afterwards.
"""

import importlib.util
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from cairn import _engine
from cairn._state.flattening import Path, Rules
from cairn._state.torch_file import check_rules_hold
from cairn.errors import Error, InvalidArgument, Unsupported

DTYPES: dict[int, torch.dtype] = {
    code: getattr(torch, name) for code, name in enumerate(_engine.DTYPE_NAMES) if hasattr(torch, name)
}
_CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in DTYPES.items()}
QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})
_PLAIN_CODES = {dtype: code for dtype, code in _CODES.items() if dtype not in QUANTIZED}
_SIMPLE_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})

# Since torch 2.14 a plain tensor may declare by attributes that it holds shards of a larger tensor.
_TORCH_HAS_DECLARED_SHARDS = importlib.util.find_spec("torch.distributed.checkpoint.protocol") is not None
_SHARD_MARK = "global_shape"


class ShardOfMine(NamedTuple):
    """A chunk of a distributed tensor that this process holds."""

    local: torch.Tensor
    offsets: Any  # of its first element, in the whole tensor
    replicated: bool  # other ranks hold the same
    size: Any  # of the whole tensor


def dtype_name(code: int) -> str:
    """'torch.float32' for its code."""
    return f"torch.{_engine.DTYPE_NAMES[code]}"


class TensorSource:
    """Adds tensors to a StateDict that is to be saved, and keeps their memory until the save is over."""

    def __init__(self, state: _engine.StateDict) -> None:
        self._state = state
        self._held = _engine.HeldStorages()

    def keys_of_moved(self) -> list[str]:
        """The keys of tensors whose memory was taken away since they were added, by ``storage.resize_()``."""
        return self._held.keys_of_moved(self._state)

    def add_leaves(self, state_dict: Mapping[Any, Any], rules: Rules, add_value: Callable[[Path, Any], None]) -> None:
        """Adds the leaves of a nested state in their order; values that the engine does not know go to `add_value`."""

        def add_other(path: Path, value: Any) -> None:
            if isinstance(value, torch.Tensor) or is_sharded(value):
                self.add(path, value)
            else:
                add_value(path, value)

        read = (_plain_tensors(), self._held)
        _engine.describe(self._state, state_dict, rules, read, add_other)

    def add(self, path: Path, tensor: torch.Tensor) -> None:
        """Raises Unsupported for what DCP can't save either: sparse, nested and meta tensors, Partial DTensors.

        Takes what is_sharded() as well.
        """
        chunks = _chunks_of(".".join(map(str, path)), tensor)
        if chunks is None:
            self._add_local(path, tensor, None)
            return
        for local, offsets, replicated, size in chunks:
            self._add_local(path, local, (size, offsets, replicated))

    def add_part(self, path: Path, local: torch.Tensor, size: Any, offsets: Any) -> None:
        """The elements from `offsets` on of a tensor of that size; the tensor itself, if they are all of it."""
        is_whole = tuple(local.shape) == tuple(size) and not any(offsets)
        self._add_local(path, local, None if is_whole else (size, offsets, False))

    def _add_local(self, path: Path, tensor: torch.Tensor, chunk: tuple[Any, Any, bool] | None) -> None:
        key = ".".join(map(str, path))
        _refuse_what_has_no_bytes(key, tensor)
        requires_grad = tensor.requires_grad
        if _is_opaque(tensor):
            if chunk is not None:
                raise Unsupported(f"a chunk of type {type(tensor).__name__} under '{key}'", key=key)
            payload = _payload_of(key, tensor)
            code = _code_of(key, tensor)
            self._state.add_serialized_tensor(path, payload, code, tensor.shape, requires_grad)
            return
        plain = _as_plain(tensor)
        view = (plain.data_ptr(), _code_of(key, plain), plain.shape, plain.stride(), requires_grad)
        if chunk is None:
            self._state.add_tensor(path, *view)
        else:
            self._state.add_chunk(path, *view, *chunk)
        self._held.add(len(self._state) - 1, plain.untyped_storage())


class TensorTarget:
    """Adds tensors to a StateDict that is to be filled by a load; :meth:`finish` brings them what went by a detour."""

    def __init__(self, state: _engine.StateDict) -> None:
        self._state = state
        self._plain = _plain_tensors()
        self._written: list[tuple[Path, torch.Tensor, torch.UntypedStorage]] = []
        self._detours: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def add(self, path: Path, tensor: torch.Tensor) -> None:
        """Raises Unsupported for tensors that have no elements of their own."""
        if self._plain.add_target(self._state, path, tensor):
            self._written.append((path, tensor, tensor.untyped_storage()))
            return
        chunks = _chunks_of(".".join(map(str, path)), tensor)
        if chunks is None:
            self.add_part(path, tensor, tensor.shape, (0,) * tensor.dim())
            return
        for local, offsets, _, size in chunks:
            self.add_part(path, local, size, offsets)

    def add_part(self, path: Path, tensor: torch.Tensor, shape: Any, offsets: Any) -> None:
        """A tensor that takes the elements from `offsets` on of one of that shape. Raises as add()."""
        key = ".".join(map(str, path))
        _refuse_what_has_no_bytes(key, tensor)
        if tensor in self._plain and 0 not in tensor.stride():
            local = tensor
            self._written.append((path, tensor, tensor.untyped_storage()))
        else:
            local = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")  # whatever the default device is
            self._detours.append((key, tensor, local))
        view = (local.data_ptr(), _code_of(key, local), local.shape, local.stride(), False)
        self._state.add_chunk(path, *view, shape, offsets)

    def finish(self, missing: set[str]) -> None:
        """After the load: copies to other devices and the like, and tells autograd what was written behind its back.

        What is `missing` in the checkpoint stays as it was. Raises InvalidArgument if another thread gave a tensor
        other memory meanwhile: what was read is in the memory that it had.
        """
        with torch.no_grad():
            for key, target, source in self._detours:
                if key not in missing:
                    target.detach().copy_(source)
        for path, tensor, storage in self._written:
            if tensor.untyped_storage()._cdata != storage._cdata:
                key = ".".join(map(str, path))
                raise InvalidArgument(f"'{key}' was given other memory while it was being loaded; load again", key=key)
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)


def is_sharded(value: object) -> bool:
    """Whether an object that is no tensor speaks DCP's protocol for one (torch's ``_Checkpointable``)."""
    return hasattr(value, "__create_write_items__") and hasattr(value, "__get_tensor_shard__")


def is_declared_shard(value: object) -> bool:
    """Whether attributes of a tensor say that it holds shards of a larger one (torch's ``CheckpointableTensor``)."""
    return (
        isinstance(value, torch.Tensor) and hasattr(value, _SHARD_MARK) and not hasattr(value, "__create_chunk_list__")
    )


def _plain_tensors() -> _engine.PlainTensors:
    return _engine.PlainTensors(_PLAIN_CODES, _SHARD_MARK if _TORCH_HAS_DECLARED_SHARDS else None)


def needs_payload(tensor: Any) -> bool:
    """Whether a target can only be filled from a ``torch.save`` payload."""
    if not isinstance(tensor, torch.Tensor):
        return False
    if type(tensor) in _SIMPLE_TYPES and tensor.dtype not in QUANTIZED:
        return False
    return _chunks_of("", tensor) is None and _is_opaque(tensor)


def add_payload_target(state: _engine.StateDict, path: Path, tensor: torch.Tensor) -> None:
    """For targets that need a payload: the entry that the engine replaces by it."""
    code = _code_of(".".join(map(str, path)), tensor)
    state.add_serialized_tensor(path, b"", code, tensor.shape, False)


def tensor_in_payload(key: str, target: torch.Tensor, payload: bytes, allow_pickle: bool) -> torch.Tensor:
    """The tensor in a ``torch.save`` payload, by torch's rules for data that holds no code. Checked to fit `target`.

    `allow_pickle`: the consent of the call, for a torch whose rules do not hold.
    """
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
    """Copies `source` into `target`, unseen by autograd."""
    with torch.no_grad():
        target.detach().copy_(source)


def _is_opaque(tensor: torch.Tensor) -> bool:
    """Whether only torch knows where the elements are."""
    if tensor.dtype in QUANTIZED:
        return True
    kind = type(tensor)
    return kind not in _SIMPLE_TYPES and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in the CPU's memory, as a tensor without a class of its own; a view if that is possible."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor)


def _chunks_of(key: str, tensor: torch.Tensor) -> Iterator[ShardOfMine] | None:
    """This process's chunks of a distributed tensor; None if it is not one."""
    if _TORCH_HAS_DECLARED_SHARDS and is_declared_shard(tensor):
        from cairn._state.sharding import chunks_of_declared

        return chunks_of_declared(key, tensor)
    if type(tensor) in _SIMPLE_TYPES:
        return None
    if hasattr(tensor, "__create_chunk_list__"):  # DTensor, and what speaks its protocol
        from cairn._state.sharding import chunks_of_dtensor

        return chunks_of_dtensor(key, tensor)
    if torch.distributed.is_available():
        from torch.distributed._shard.sharded_tensor.api import ShardedTensor

        if isinstance(tensor, ShardedTensor):
            size = tensor.size()
            return (ShardOfMine(it.tensor, it.metadata.shard_offsets, False, size) for it in tensor.local_shards())
    return None


def _refuse_what_has_no_bytes(key: str, tensor: torch.Tensor) -> None:
    if tensor.is_meta:
        raise Unsupported(f"a meta tensor holds no elements: '{key}'", key=key)
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise Unsupported(f"a {kind} tensor can't be one entry of a checkpoint: '{key}'", key=key)


def _code_of(key: str, tensor: torch.Tensor) -> int:
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise Unsupported(f"no format for elements of {tensor.dtype}: '{key}'", key=key, actual=str(tensor.dtype))
    return code


def _payload_of(key: str, tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().cpu()
    stream = io.BytesIO()
    try:
        if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
            tensor = tensor.clone()
        torch.save(tensor, stream)
    except Error:
        raise
    except Exception as error:
        raise Unsupported(f"torch can't save the {type(tensor).__name__} under '{key}': {error}", key=key) from error
    return stream.getvalue()
