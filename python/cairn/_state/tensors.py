"""Tensors as the engine reads them: an address, a dtype code, sizes and strides; and payloads for all remaining
tensors.

The engine reads plain tensors (CPU, strided, no subclass) itself, and for an asynchronous save plain tensors of CUDA
devices. This module copies tensors on other devices to the CPU, splits DTensors and ShardedTensors into chunks, and
saves tensors that only torch can describe (quantised tensors, wrapper subclasses) as archives of ``torch.save``. A load
fills a wrapper subclass by its own ``copy_``, from elements of the saved dtype or from a saved subclass, as in DCP.

While the engine uses addresses, the storages of the tensors are held: ``tensor.data = other``, in another thread or
during an asynchronous staging, removes the storage from the tensor object. ``storage.resize_()`` frees even a held
storage's memory; this can only be detected afterwards.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from cairn import _engine
from cairn._state.archived_tensors import archive_of, tensor_in_archive
from cairn._state.flattening import Leaf, Path, Rules
from cairn._state.local_shard import CHUNK_LIST, SHARD_GETTER, WRITE_ITEMS, LocalShard, part_of
from cairn._state.recorded_strides import TORCH_RECORDS_STRIDES, strides_to_record
from cairn._state.tensor_memory import check_memory, has_dispatch
from cairn._state.torch_codes import CODES, DTYPES, QUANTIZED, current_cuda_streams, dtype_change
from cairn.errors import Corrupt, InvalidArgument, Unsupported

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
        self._plain = _plain_tensors(self._cuda_streams, WRITE_ITEMS)
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

        read = (self._plain, self._held, TORCH_RECORDS_STRIDES)
        _engine.describe(self._state, state_dict, rules, read, add_other)

    def add(self, path: Path, tensor: torch.Tensor) -> None:
        """Adds a tensor or an is_sharded() object.

        Raises Unsupported for tensors that DCP can't save either: sparse, nested and meta tensors, Partial DTensors;
        and InvalidArgument for a parameter that has not been initialized, and for freed memory.
        """
        chunks = _chunks_of(".".join(map(str, path)), tensor, WRITE_ITEMS)
        if chunks is None:
            self._add_local(path, tensor, None)
            return
        for local, offsets, replicated, size, strides in chunks:
            self._add_local(path, local, (size, offsets, replicated), strides)

    def add_part(self, path: Path, local: torch.Tensor, size: Any, offsets: Any) -> None:
        """Adds `local` as the box at `offsets` of a tensor of `size`; as a whole tensor if the box covers the
        tensor."""
        is_whole = tuple(local.shape) == tuple(size) and not any(offsets)
        self._add_local(path, local, None if is_whole else (size, offsets, False))

    def _add_local(
        self, path: Path, tensor: torch.Tensor, chunk: tuple[Any, Any, bool] | None, strides: Any = None
    ) -> None:
        """`chunk`: size of the whole tensor, offsets, replicated; None: `tensor` is the whole tensor."""
        key = ".".join(map(str, path))
        _refuse_what_has_no_bytes(key, tensor)
        self._add_elements(key, path, tensor, chunk)
        if chunk is None:
            strides = strides_to_record(tensor)
        if TORCH_RECORDS_STRIDES and strides is not None:
            self._state.record_strides(strides)

    def _add_elements(self, key: str, path: Path, tensor: torch.Tensor, chunk: tuple[Any, Any, bool] | None) -> None:
        requires_grad = tensor.requires_grad
        if is_opaque(tensor):
            payload = archive_of(key, tensor)
            code = _code_of(key, tensor)
            if chunk is None:
                self._state.add_serialized_tensor(path, payload, code, tensor.shape, requires_grad)
            else:
                size, offsets, _ = chunk
                box = (tuple(offsets), tuple(tensor.shape))
                self._state.add_serialized_chunk(path, payload, code, size, requires_grad, box)
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


class _Detour(NamedTuple):
    """A target that the engine can't fill: it fills `local`, from which :meth:`TensorTarget.finish` fills `target`."""

    key: str
    target: torch.Tensor
    local: torch.Tensor


class _Part(NamedTuple):
    """Elements for the box at `first` of a target, from a saved archive."""

    first: tuple[int, ...]
    source: torch.Tensor


Form = tuple[int, tuple[int, ...]]  # of a saved tensor: dtype code, shape


class TensorTarget:
    """Adds tensors to a StateDict for a load. :meth:`finish` fills the tensors that were read into an intermediate
    copy.

    `to_devices`: the load writes to the memory of CUDA devices, after the work that the streams that are current now
    hold. `saved_form` gives the form of a tensor in the checkpoint; None if the checkpoint has no such tensor.
    `allow_pickle` and `allow_cast` are those of the call.
    """

    def __init__(
        self,
        state: _engine.StateDict,
        *,
        to_devices: bool = False,
        saved_form: Callable[[str], Form | None] | None = None,
        allow_pickle: bool = False,
        allow_cast: bool = False,
    ) -> None:
        self._state = state
        self._saved_form = saved_form or (lambda key: None)
        self._allow_pickle = allow_pickle
        self._allow_cast = allow_cast
        self._cuda_streams = current_cuda_streams() if to_devices else None
        self._plain = _plain_tensors(self._cuda_streams, CHUNK_LIST)
        self._written = _engine.WrittenTensors()
        self._offsets: dict[int, tuple[int, ...]] = {}  # by entry: of its box, if not the origin
        self._detours: dict[int, _Detour] = {}  # by entry
        self._parts: dict[int, list[_Part]] = {}  # by entry: from archives
        #: The conversions that the engine does not see: key, saved dtype code, wanted dtype code.
        self.conversions: list[tuple[str, int, int]] = []

    def add_leaves(
        self,
        state_dict: Mapping[Any, Any],
        rules: Rules,
        add_other: Callable[[Leaf], None],
        selected: frozenset[str] | None = None,
    ) -> None:
        """Adds the plain tensors of a nested state; the other leaves go to `add_other`, in the order of all leaves.

        `selected`: the flat keys of the leaves to add; None: all leaves.
        """
        write = (self._plain, self._written, selected)
        _engine.describe_targets(self._state, state_dict, rules, write, lambda *parts: add_other(Leaf(*parts)))

    def add(self, path: Path, tensor: torch.Tensor) -> None:
        """Adds a tensor to fill. Raises Unsupported for tensors that have no elements of their own, and InvalidArgument
        for freed memory."""
        if self._plain.add_target(self._state, path, tensor):
            self._written.add(len(self._state) - 1, tensor, tensor.untyped_storage())
            return
        key = ".".join(map(str, path))
        chunks = _chunks_of(key, tensor, CHUNK_LIST)
        if chunks is None:
            _refuse_what_has_no_bytes(key, tensor)
            self._add_part(path, tensor, tensor.shape, (0,) * tensor.dim())
            return
        before = len(self._state)
        for local, offsets, _, size, _ in chunks:
            self.add_part(path, local, self._saved_shape(key, local) if size is None else size, offsets)
        if len(self._state) == before:
            self._add_nothing(path, tensor)

    def add_part(self, path: Path, tensor: torch.Tensor, shape: Any, offsets: Any) -> None:
        """Adds `tensor`, to be filled with the box at `offsets` of a tensor of `shape`. Raises as add()."""
        _refuse_what_has_no_bytes(".".join(map(str, path)), tensor)
        self._add_part(path, tensor, shape, offsets)

    def _add_part(self, path: Path, tensor: torch.Tensor, shape: Any, offsets: Any) -> None:
        key = ".".join(map(str, path))
        if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise InvalidArgument(
                f"several elements of the expanded tensor '{key}' have a single memory location; load into a clone",
                key=key,
            )
        entry = len(self._state)
        if any(offsets):
            self._offsets[entry] = tuple(offsets)
        if tensor in self._plain and 0 not in tensor.stride():
            local = tensor
            self._written.add(entry, tensor, tensor.untyped_storage())
        else:
            _refuse_while_capturing(key, tensor)
            dtype = self._saved_dtype(key, tensor) if is_opaque(tensor) else tensor.dtype
            local = torch.empty(tensor.shape, dtype=dtype, device="cpu")  # independent of the default device
            self._detours[entry] = _Detour(key, tensor, local)
        view = (local.data_ptr(), _code_of(key, local), local.shape, local.stride(), False)
        cuda = None
        if local.is_cuda:
            assert self._cuda_streams is not None
            ordinal = local.get_device()
            cuda = (ordinal, self._cuda_streams(ordinal))
        self._state.add_chunk(path, *view, shape, offsets, cuda=cuda)

    def take_archive(
        self,
        entry: int,
        chunk: tuple[tuple[int, ...], tuple[int, ...]],
        wanted: tuple[tuple[int, ...], tuple[int, ...]],
        payload: bytes,
    ) -> None:
        """Takes the archive of a saved chunk that only torch reads, for finish(): the engine's ``take_archive``.

        Raises UnsafeContent, Unsupported or Corrupt.
        """
        key = self._state.fqn(entry)
        saved = tensor_in_archive(key, payload, self._allow_pickle)
        if tuple(saved.shape) != chunk[1]:
            raise Corrupt(
                "the archive of the tensor differs from the metadata",
                key=key,
                expected=str(chunk[1]),
                actual=str(tuple(saved.shape)),
            )
        with torch.no_grad(), _as_unsupported(key, saved):
            source = part_of(saved.detach(), _minus(wanted[0], chunk[0]), wanted[1])
            detour = self._detours.get(entry)
            if detour is None or not is_opaque(detour.target):  # fails before a target changes
                source = torch.empty(wanted[1], dtype=source.dtype, device="cpu").copy_(source)
        offsets = self._offsets.get(entry, (0,) * len(wanted[0]))
        self._parts.setdefault(entry, []).append(_Part(_minus(wanted[0], offsets), source))

    def finish(self, missing: set[str]) -> None:
        """Ends the load: copies to other devices and into wrapper subclasses, and increments the versions of the
        written tensors for autograd.

        Tensors `missing` in the checkpoint stay unchanged. Raises InvalidArgument if another thread gave a tensor new
        memory during the load: the elements are in the tensor's old memory. Raises Unsupported if a subclass can't copy
        the saved elements.
        """
        for entry in [entry for entry, detour in self._detours.items() if detour.key not in missing]:
            self.finish_entry(entry)
        for entry in list(self._parts):
            self.finish_entry(entry)
        _increment_versions(self._written.tensors())
        self.check_kept()

    def finish_entry(self, entry: int) -> None:
        """Ends the load of one entry, whose bytes have come, where the engine does not fill the target itself."""
        detour = self._detours.get(entry)
        parts = self._parts.pop(entry, [])
        with torch.no_grad():
            if detour is None:
                if parts:
                    _fill_parts(self._written.tensor_of(entry).detach(), parts)
                return
            key, target, local = detour
            with _as_unsupported(key, target):
                if not _are_filled(target.detach(), parts):
                    _fill_parts(local, parts)
                    target.detach().copy_(local)
                if target.is_cuda:
                    torch.cuda.current_stream(target.device).synchronize()

    def note_written(self, entry: int) -> None:
        """Increments the version of an entry's tensor for autograd, in place of finish()."""
        tensor = self._written.tensor_of(entry)
        if tensor is not None:
            _increment_versions([tensor])

    def check_kept(self) -> None:
        """Raises InvalidArgument as finish()."""
        for key in self._written.keys_of_replaced(self._state):
            raise InvalidArgument(f"the memory of '{key}' changed during the load; load again", key=key)

    def _saved_shape(self, key: str, local: torch.Tensor) -> Sequence[int]:
        form = self._saved_form(key)
        return local.shape if form is None else form[1]

    def _saved_dtype(self, key: str, target: torch.Tensor) -> torch.dtype:
        """Returns the dtype in which the engine reads the elements for an opaque target, whose own dtype may be only
        an appearance."""
        form = self._saved_form(key)
        if form is None or form[0] not in DTYPES:
            return target.dtype
        self.conversions += dtype_change(key, form[0], target.dtype, self._allow_cast)
        return DTYPES[form[0]]

    def _add_nothing(self, path: Path, tensor: Any) -> None:
        """Adds an entry without elements: the load then checks the key and the shape on this rank too."""
        form = self._saved_form(".".join(map(str, path)))
        if is_declared_shard(tensor) and _TORCH_HAS_DECLARED_SHARDS:
            shape = tuple(tensor.global_shape)
        elif callable(getattr(tensor, "size", None)):
            shape = tuple(tensor.size())
        else:
            shape = (0,) if form is None else form[1]
        if not shape:  # a tensor without dimensions has an element
            return
        code = form[0] if form is not None else CODES[torch.float32]
        sizes = (0,) * len(shape)
        self._state.add_chunk(path, 0, code, sizes, sizes, False, shape, sizes)


def _increment_versions(written: list[torch.Tensor]) -> None:
    torch.autograd.graph.increment_version([tensor for tensor in written if not tensor.is_inference()])


def _minus(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _fill_parts(target: torch.Tensor, parts: list[_Part]) -> None:
    for first, source in parts:
        part_of(target, first, source.shape).copy_(source)


def _are_filled(target: torch.Tensor, parts: list[_Part]) -> bool:
    """Fills a target from the parts of saved archives, and keeps their exact form. Returns False if the parts do not
    cover the target, or if its class gives copies of the parts, and no views."""
    if sum(part.source.numel() for part in parts) != target.numel() or not parts:
        return False
    _fill_parts(target, parts)
    if len(parts) == 1:  # the whole target
        return True
    views = [part_of(target, first, source.shape) for first, source in parts]
    return all(torch.equal(_elements(view), _elements(part.source)) for view, part in zip(views, parts, strict=True))


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)


@contextlib.contextmanager
def _as_unsupported(key: str, tensor: torch.Tensor) -> Iterator[None]:
    """Around operations that a tensor subclass may lack."""
    try:
        yield
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if not is_opaque(tensor):
            raise
        kind = type(tensor).__name__
        raise Unsupported(f"the {kind} of '{key}' can't be copied: {type(error).__name__}: {error}", key=key) from error


def is_sharded(value: object) -> bool:
    """Returns whether an object that is no tensor is saved by DCP's protocol for tensors (torch's
    ``_Checkpointable``)."""
    return hasattr(value, WRITE_ITEMS) and hasattr(value, SHARD_GETTER)


def is_filled_in_place(value: object) -> bool:
    """Returns whether a load fills the tensors of an object that is no tensor, by DCP's protocol."""
    return hasattr(value, SHARD_GETTER) and (hasattr(value, CHUNK_LIST) or hasattr(value, WRITE_ITEMS))


def is_declared_shard(value: object) -> bool:
    """Returns whether a tensor's attributes declare shards of a larger tensor (torch's ``CheckpointableTensor``)."""
    return isinstance(value, torch.Tensor) and hasattr(value, _SHARD_MARK) and not hasattr(value, CHUNK_LIST)


def takes_declared_shards() -> bool:
    """Returns whether a save takes tensors that declare shards for parts of larger tensors: since torch 2.14."""
    return _TORCH_HAS_DECLARED_SHARDS


def _plain_tensors(cuda_streams: Callable[[int], int] | None = None, protocol: str = "") -> _engine.PlainTensors:
    """`protocol`: the method by which an entry of the state declares its chunks."""
    marks = [protocol, SHARD_GETTER] if protocol else []
    marks += [_SHARD_MARK] if _TORCH_HAS_DECLARED_SHARDS else []
    return _engine.PlainTensors(_PLAIN_CODES, tuple(marks), cuda_streams)


def needs_payload(tensor: Any) -> bool:
    """Returns whether a target can only be filled from a single ``torch.save`` payload: a quantised tensor."""
    return isinstance(tensor, torch.Tensor) and tensor.dtype in QUANTIZED and not hasattr(tensor, CHUNK_LIST)


def add_payload_target(state: _engine.StateDict, path: Path, tensor: torch.Tensor) -> None:
    """Adds the entry for a target that needs a payload; the engine replaces the entry's payload."""
    key = ".".join(map(str, path))
    _refuse_what_has_no_bytes(key, tensor)
    code = _code_of(key, tensor)
    state.add_serialized_tensor(path, b"", code, tensor.shape, False)


def tensor_in_payload(key: str, target: torch.Tensor, payload: bytes, allow_pickle: bool) -> torch.Tensor:
    """Returns the tensor in a ``torch.save`` payload, as tensor_in_archive(). Checks that its shape fits `target`, and
    that the target has memory."""
    check_memory(key, target)
    loaded = tensor_in_archive(key, payload, allow_pickle)
    if loaded.shape != target.shape:
        raise InvalidArgument(
            f"size mismatch for '{key}'", key=key, expected=str(tuple(target.shape)), actual=str(tuple(loaded.shape))
        )
    return loaded


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies `source` into `target` without recording the copy in autograd."""
    with torch.no_grad():
        target.detach().copy_(source)


def is_opaque(tensor: torch.Tensor) -> bool:
    """Returns whether only torch can locate the elements."""
    if tensor.dtype in QUANTIZED:
        return True
    kind = type(tensor)
    return kind not in _SIMPLE_TYPES and has_dispatch(tensor)


def _as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in CPU memory as a plain torch.Tensor; a view where possible."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor)


def _chunks_of(key: str, tensor: torch.Tensor, protocol: str) -> Iterator[LocalShard] | None:
    """Returns this process's chunks of a distributed tensor; None if `tensor` is not distributed.

    `protocol`: WRITE_ITEMS for a save, CHUNK_LIST for a load.
    """
    if _TORCH_HAS_DECLARED_SHARDS and is_declared_shard(tensor):
        from cairn._state.sharding import chunks_of_declared

        return chunks_of_declared(key, tensor)
    if hasattr(tensor, protocol) or hasattr(tensor, SHARD_GETTER):  # a DTensor, or declared chunks
        from cairn._state.sharding import chunks_to_load, chunks_to_save

        return chunks_to_save(key, tensor) if protocol == WRITE_ITEMS else chunks_to_load(key, tensor)
    if type(tensor) in _SIMPLE_TYPES:
        return None
    if torch.distributed.is_available():
        from torch.distributed._shard.sharded_tensor.api import ShardedTensor

        if isinstance(tensor, ShardedTensor):
            size = tensor.size()
            strides = getattr(tensor.metadata().tensor_properties, "strides", None)  # since torch 2.15
            return (
                LocalShard(it.tensor, it.metadata.shard_offsets, False, size, strides) for it in tensor.local_shards()
            )
    return None


def _refuse_what_has_no_bytes(key: str, tensor: torch.Tensor) -> None:
    check_memory(key, tensor)
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
