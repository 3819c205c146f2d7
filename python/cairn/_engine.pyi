"""The C++ engine, for package cairn only. Failures raise the classes of cairn.errors; Ctrl-C stops save and load."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, NoReturn, Protocol, TypeVar, final

from cairn._ranks.exception_record import Reason

__version__: Final[str]
DTYPE_NAMES: Final[tuple[str, ...]]  # indexed by dtype code
DTYPE_ITEM_BYTES: Final[tuple[int, ...]]

_Ints = Sequence[int]
_Path = tuple[str | int, ...]
_CudaStream = tuple[int, int]  # ordinal of the device, the caller's stream
_Leaf = TypeVar("_Leaf")
_Chunk = tuple[tuple[int, ...], tuple[int, ...], str | None, int, int]  # offsets, sizes, file, offset, length
# dtype code, shape, requires_grad, chunks, recorded strides
_Tensor = tuple[int, tuple[int, ...], bool, list[_Chunk], tuple[int, ...] | None]

@final
class StateDict:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add_tensor(
        self,
        path: _Path,
        data: int,
        dtype: int,
        sizes: _Ints,
        strides: _Ints,
        requires_grad: bool,
        cuda: _CudaStream | None = None,  # None: in the memory of the CPU
    ) -> None: ...
    def add_chunk(
        self,
        path: _Path,
        data: int,
        dtype: int,
        sizes: _Ints,
        strides: _Ints,
        requires_grad: bool,
        global_shape: _Ints,
        offsets: _Ints,
        replicated: bool = False,
        cuda: _CudaStream | None = None,
    ) -> None: ...
    def add_value(self, path: _Path, value: object) -> bool: ...  # False: not a plain value; nothing was added
    def add_serialized_value(self, path: _Path, payload: bytes, /) -> None: ...
    def tensor_bytes(self) -> tuple[int, int]: ...  # of whole tensors, of chunks; 0 for serialized tensors
    def add_serialized_tensor(
        self, path: _Path, payload: bytes, dtype: int, shape: _Ints, requires_grad: bool, /
    ) -> None: ...
    # box: (offsets, sizes)
    def add_serialized_chunk(
        self, path: _Path, payload: bytes, dtype: int, shape: _Ints, requires_grad: bool, box: tuple[_Ints, _Ints], /
    ) -> None: ...
    def record_strides(self, strides: _Ints, /) -> None: ...  # in the metadata, for the tensor that was added last
    def fqn(self, index: int, /) -> str: ...
    def fqns(self) -> list[str]: ...
    def payload(self, index: int, /) -> bytes: ...  # of a serialised entry

# Tensors that address, dtype, sizes and strides describe completely.
@final
class PlainTensors:
    # The torch dtypes of plain tensors, and their codes. `marks`: the attributes by which a tensor declares its chunks.
    # `cuda_streams`: the current stream of a CUDA device by its ordinal. None: tensors of CUDA devices are not plain.
    def __init__(
        self, codes: dict[Any, int], marks: tuple[str, ...], cuda_streams: Callable[[int], int] | None = None
    ) -> None: ...
    def __contains__(self, tensor: object, /) -> bool: ...
    # For a load. False: the tensor is not plain, declares its chunks, or its elements share memory; nothing was added.
    # Raises InvalidArgument if `storage.resize_()` has freed elements of the tensor.
    def add_target(self, state: StateDict, path: _Path, tensor: object, /) -> bool: ...
    # For a strided tensor of any kind that has a storage. Raises InvalidArgument if `storage.resize_()` has freed
    # elements of the tensor, and Unsupported for a tensor without memory.
    def check_memory(self, key: str, tensor: object, /) -> None: ...

class FlatteningRules(Enum):
    TORCH_2_4 = ...  # and later
    TORCH_2_3 = ...  # and earlier
    TOP_LEVEL = ...  # no container is flattened

# make_leaf: path, value, the container of the value, and the value's place in the container
def flatten(
    state_dict: Mapping[Any, Any], rules: FlatteningRules, make_leaf: Callable[[_Path, Any, Any, Any], _Leaf], /
) -> list[_Leaf]: ...

# Whether TORCH_2_3 gives other leaves than TORCH_2_4.
def old_rules_differ(state_dict: Mapping[Any, Any], /) -> bool: ...

# Raises InvalidArgument if two keys of one dict have the same text, and for a state dict that contains itself.
def refuse_equal_texts(state_dict: Mapping[Any, Any], /) -> None: ...

# Keeps the memory of tensors alive by holding their storages: a tensor object may be given a new storage.
@final
class HeldStorages:
    def __init__(self) -> None: ...
    # The torch.UntypedStorage of the tensor of entry `entry` of a StateDict.
    def add(self, entry: int, storage: Any, /) -> None: ...
    # The keys of the state's tensors whose elements are no longer in the memory of their storages.
    def keys_of_moved(self, state: StateDict, /) -> list[str]: ...

# The tensors that a load fills in their own memory, held with their storages.
@final
class WrittenTensors:
    def __init__(self) -> None: ...
    # The tensor of entry `entry` of a StateDict, and its torch.UntypedStorage.
    def add(self, entry: int, tensor: Any, storage: Any, /) -> None: ...
    def tensors(self) -> list[Any]: ...
    def tensor_of(self, entry: int, /) -> Any: ...  # None: the entry was not added
    # The keys of the state's tensors that have another storage than at add().
    def keys_of_replaced(self, state: StateDict, /) -> list[str]: ...

# Adds plain tensors, holds their storages, and adds Python's plain values; passes every remaining leaf to add_other.
def describe(
    state: StateDict,
    state_dict: Mapping[Any, Any],
    rules: FlatteningRules,
    read: tuple[PlainTensors, HeldStorages, bool],
    add_other: Callable[[_Path, Any], None],
    /,
) -> None: ...

# Adds plain tensors for a load to fill; passes every remaining leaf to add_other: path, value, container and place.
def describe_targets(
    state: StateDict,
    state_dict: Mapping[Any, Any],
    rules: FlatteningRules,
    write: tuple[PlainTensors, WrittenTensors, frozenset[str] | None],  # the set: of the keys to add; None: all
    add_other: Callable[[_Path, Any, Any, Any], None],
    /,
) -> None: ...

@final
class Catalog:
    def __len__(self) -> int: ...
    def __contains__(self, fqn: str, /) -> bool: ...
    def keys(self) -> list[str]: ...
    # None: the key is not a tensor
    def tensor(self, fqn: str, /) -> _Tensor | None: ...
    # file, offset, length; None: the key is not a value
    def value(self, fqn: str, /) -> tuple[str | None, int, int] | None: ...
    def nearest_keys(self, fqn: str, count_max: int, /) -> list[str]: ...
    def paths(self) -> dict[str, _Path]: ...
    # Keys whose items went through stream transforms, with the transforms' names, joined by ", ".
    def transforms(self) -> dict[str, str]: ...
    def extra(self, make_object: Callable[[str, str, bool, Any, Any, Any], Any]) -> dict[str, Any]: ...
    @property
    def files(self) -> list[str]: ...
    @property
    def version(self) -> str | None: ...
    @property
    def checkpoint_id(self) -> str | None: ...
    @property
    def save_id(self) -> str | None: ...

class _Calls(Protocol):  # cairn._ranks.process_group.GroupCalls
    rank: int
    size: int
    def gather(self, message: bytes, root: int, /) -> list[bytes]: ...
    def scatter(self, messages: Sequence[bytes], root: int, /) -> bytes: ...
    def broadcast(self, message: bytes, root: int, /) -> bytes: ...
    def broadcast_in_place(self, address: int, length: int, root: int, /) -> None: ...
    def subgroup(self, ranks: Sequence[int], /) -> _Calls: ...
    def all_gather(self, message: bytes, /) -> list[bytes]: ...
    def smallest(self, numbers: Sequence[int], /) -> list[int]: ...
    def barrier(self) -> None: ...

# A failed call raises Unavailable, with the call's exception as cause; KeyboardInterrupt and SystemExit pass unchanged.
@final
class Collectives:
    def __init__(self, calls: _Calls, /) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def gather(self, message: bytes, root: int, /) -> list[bytes]: ...  # empty except at the root
    def scatter(self, messages: Sequence[bytes], root: int, /) -> bytes: ...  # messages: ignored except at the root
    def broadcast(self, message: bytes, root: int, /) -> bytes: ...
    def broadcast_in_place(self, message: bytearray, root: int, /) -> None: ...
    def all_gather(self, message: bytes, /) -> list[bytes]: ...
    def smallest(self, numbers: Sequence[int], /) -> list[int]: ...
    def barrier(self) -> None: ...

@final
class KeyStream:
    # Key, dtype code and shape (None: a value) of the next keys; empty after the last key.
    def next(self) -> list[tuple[str, int | None, tuple[int, ...] | None]]: ...

class Checkpoint:
    @property
    def save_id(self) -> str | None: ...
    @property
    def damage(self) -> str | None: ...
    def notes(self) -> str: ...  # a JSON object; empty: none
    @property
    def format(self) -> Literal["dcp", "safetensors", "torch", "torch_checkpointing"]: ...
    @property
    def has_transforms(self) -> bool: ...
    def holds_any(self, fqns: list[str], /) -> bool: ...
    def __len__(self) -> int: ...
    @property
    def files(self) -> list[str]: ...
    def file_bytes(self, file: str, /) -> int: ...
    # The new name of each key by the renames (old name, new name), and the key.
    def renamed_keys(self, renames: Sequence[tuple[str, str]], /) -> list[tuple[str, str]]: ...
    def key_stream(self) -> KeyStream: ...
    # As those of Catalog; decode no more of the metadata than the answer needs.
    def tensor(self, fqn: str, /) -> _Tensor | None: ...
    # dtype code, shape; None: the key is not a tensor
    def tensor_form(self, fqn: str, /) -> tuple[int, tuple[int, ...]] | None: ...
    def value(self, fqn: str, /) -> tuple[str | None, int, int] | None: ...
    def nearest_keys(self, fqn: str, count_max: int, /) -> list[str]: ...
    # Conversions (fqn, saved dtype code, target dtype code), missing keys. Warns, except of the damage. The option
    # take_archive(entry, chunk, wanted, payload) takes the archives of stored chunks that only torch reads, before any
    # target changes; chunk and wanted are boxes (offsets, sizes).
    def load(self, state: StateDict, /, **options: Any) -> tuple[list[tuple[str, int, int]], list[str]]: ...
    def read_box(self, fqn: str, box: tuple[_Ints, _Ints], data: int, /, **options: Any) -> None: ...
    def read_payload(self, fqn: str, /, **options: Any) -> bytes: ...

# A load whose reads are planned. Keeps checkpoint and state alive.
@final
class PlannedLoad:
    @property
    def missing(self) -> list[str]: ...
    # Fills the targets, first those of the entries in `order`; called once, without Python's lock. Conversions, as of
    # Checkpoint.load, and warnings without the damage. Reading threads call filled(entry, exception or None), once for
    # each entry.
    def run(
        self, filled: Callable[[int, Exception | None], None], order: Sequence[int], /
    ) -> tuple[list[tuple[str, int, int]], list[str]]: ...
    def cancel(self) -> None: ...  # run() ends soon, and the entries that are not filled fail

def plan_load(checkpoint: Checkpoint, state: StateDict, /, **options: Any) -> PlannedLoad: ...  # as Checkpoint.load

# catalog, save id, bytes written, warnings; the catalog is None on a rank that did not get a large catalog
def save(directory: bytes, state: StateDict, /, **options: Any) -> tuple[Catalog | None, str, int, list[str]]: ...

# Of the model in `source` into the model in `target`; the warnings.
def consolidate(source: bytes, target: bytes, /, **options: Any) -> list[str]: ...

# For a rank that has no state to save or no state to load into: the rank takes part, and raises the error of all ranks.
def abandon_save(reason: Reason, /, **options: Any) -> NoReturn: ...
def abandon_load(reason: Reason, /, **options: Any) -> NoReturn: ...

# The events of a load that has failed before Checkpoint.load. Calls no collectives.
def tell_failed_load(directory: bytes, reason: Reason, /, **options: Any) -> None: ...

# Fails on every rank if one rank passes a reason.
def agree(reason: Reason | tuple[()], /, **options: Any) -> None: ...

# Withdraws the claim in its destructor unless commit() was called.
@final
class SaveClaim:
    def __init__(
        self,
        directory: bytes,
        /,
        *,
        overwrite: bool,
        durable: bool,
        alone_as_rank: int | None = None,
        deadlines: tuple[float, float, float] = ...,
        single_writer: bool = False,
    ) -> None: ...
    @property
    def save_id(self) -> str: ...
    @property
    def ticket(self) -> bytes: ...
    @property
    def model_shares(self) -> list[tuple[bytes, list[int]]]: ...  # by rank: ticket, indices of boxes; of claim_model()
    # files: name, size, trailer checksum; returns warnings
    def commit(self, metadata: bytes, files: Sequence[tuple[str, int, int]], /) -> list[str]: ...
    # boxes: key, file, bytes; returns warnings
    def commit_model(self, boxes: Sequence[tuple[str, str, int]], /) -> list[str]: ...
    def withdraw(self) -> None: ...

# Withdraws the files in its destructor unless hand_over() was called.
@final
class RankShare:
    @property
    def files(self) -> list[tuple[str, int, int]]: ...
    @property
    def places(self) -> list[tuple[int, int, int]]: ...  # by entry: index into files, offset, length
    def hand_over(self) -> None: ...

def write_share(
    directory: bytes,
    ticket: bytes,
    rank: int,
    state: StateDict,
    /,
    *,
    durable: bool,
    file_per_item: bool,
    thread_count: int,
    deadlines: tuple[float, float, float] = ...,
) -> RankShare: ...

# A box that a rank holds: key, dtype code, shape of the tensor, offsets, sizes.
_HeldBox = tuple[str, int, _Ints, _Ints, _Ints]

# safetensors: file numbers by key, sharded, whether a consolidation follows
def claim_model(
    directory: bytes,
    held: list[list[_HeldBox]],
    /,
    *,
    safetensors: tuple[dict[str, int], bool, bool],
    durable: bool,
    overwrite: bool,
    deadlines: tuple[float, float, float] = ...,
) -> SaveClaim: ...
def write_model_share(
    directory: bytes,
    ticket: bytes,
    rank: int,
    state: StateDict,
    /,
    *,
    safetensors: tuple[dict[str, int], bool, bool],
    durable: bool,
    thread_count: int,
    deadlines: tuple[float, float, float] = ...,
) -> RankShare: ...

# The native writer, in a separate process. `io_priority`: "low", "idle" or "".
@final
class WriterProcess:
    def __init__(self, executable: bytes, grace_seconds: float, nice: int, io_priority: str) -> None: ...
    def start(self) -> None: ...
    @property
    def pid(self) -> int: ...  # 0: the process does not run

@final
class AsyncSave:
    # True: everything is copied and waits for confirm(), or the copy has failed. False: not yet.
    def wait_copied(self, seconds: float, /) -> bool: ...
    def confirm(self, moved: list[str], /) -> None: ...  # keys of tensors whose memory moved; empty: none moved
    def release(self) -> None: ...  # drops the objects that were kept until the bytes were staged
    def leave(self) -> None: ...  # the destructor then waits for nothing; kept objects stay alive
    def wait_staged(self, seconds: float, /) -> bool: ...  # False: not yet
    # Makes the streams wait for the copies out of the tensors. False: not yet possible
    def fence(self, streams: list[_CudaStream], seconds: float, /) -> bool: ...
    # save id, whether catalog() is available, bytes written, warnings; None: not yet
    def wait_written(self, seconds: float, /) -> tuple[str, bool, int, list[str]] | None: ...
    def catalog(self) -> Catalog: ...
    def progress(self) -> tuple[str, int, int]: ...  # phase, bytes written, bytes in total

@final
class AsyncCheckpointer:
    # memory: generations, whether memory limits are respected
    # sharing: the checkpointer whose memory the new one uses in place of its own
    def __init__(
        self,
        process: WriterProcess | None,
        memory: tuple[int, bool],
        nice: int,
        sharing: AsyncCheckpointer | None,
    ) -> None: ...
    def save(
        self,
        directory: bytes,
        state: StateDict,
        # asynchronous staging, whether torn snapshots are detected, the owner of the memory, the files: name, whether
        # of torch.save, bytes, number of tensors
        terms: tuple[bool, bool, Any, Sequence[tuple[str, bool, bytes, int]] | None],
        /,
        **options: Any,
    ) -> AsyncSave: ...
    def abandon_save(self, reason: Reason, of_files: bool, /, **options: Any) -> NoReturn: ...
    def prepare(self, state: StateDict, /) -> None: ...
    def prepare_ahead(self, size: int, idle_seconds: float, /) -> None: ...  # in the background
    def free_bytes(self) -> int: ...  # of the arenas that no save uses
    def close(self) -> None: ...
    def detach(self) -> None: ...  # waits for nothing; neither does the destructor afterwards

def open(
    directory: bytes, metadata_name: str = ".metadata", purpose: Literal["", "load", "inspect"] = ""
) -> Checkpoint: ...
def metadata_name(rank: int | None) -> str: ...

# Whether a pattern of a key matches the key, or a part of the key up to a dot.
def matches_key(pattern: str, key: str, /) -> bool: ...
def pause_before_restart(restarts: int, /) -> float | None: ...  # seconds; None: no more restarts
def catalog_of(checkpoint: Checkpoint, /) -> Catalog: ...
def verify(
    directory: bytes, thread_count: int, follow_links: bool, deadlines: tuple[float, float, float], /
) -> dict[str, Any]: ...

_Index = tuple[int, ...]
# As cairn.difference.ElementDifference and NumberDifference.
ElementDifference = tuple[int, int, int, _Index | None, tuple[int, float, float, _Index | None] | None]
# As cairn.difference.KeyDifference.
KeyDifference = tuple[
    str,
    Literal["only_in_a", "only_in_b", "kind", "shape", "dtype", "elements", "value"],
    str | None,
    str | None,
    str,
    ElementDifference | None,
]

# Differences, tolerated differences, tensors, values, bytes compared.
def diff(
    directories: tuple[bytes, bytes],
    tolerance: tuple[float | None, bool],  # and whether dtypes alone count
    keys: list[str],
    /,
    **options: Any,
) -> tuple[list[KeyDifference], list[KeyDifference], int, int, int]: ...

# fields of cairn.conversion.ConvertReport; progress: called with the bytes done and the bytes in total
def convert(source: bytes, target: bytes, /, **options: Any) -> dict[str, Any]: ...
def latest(root: bytes, wait_ms: int, rank: int | None, /, **options: Any) -> tuple[bytes | None, list[str]]: ...

# Directory, step, state, reason, is_newest, format.
def checkpoints(
    root: bytes, rank: int | None, /
) -> list[
    tuple[
        bytes,
        int | None,
        Literal["complete", "incomplete", "unreadable"],
        str | None,
        bool,
        Literal["dcp", "safetensors"],
    ]
]: ...

# Directory, save id, and name and bytes of each file; warnings; problems.
def clean(
    root: bytes, dry_run: bool, /
) -> tuple[list[tuple[bytes, str, list[tuple[str, int]]]], list[str], list[Any]]: ...

# The fields of cairn.repairing.RepairReport up to missing_files, and the lists after it.
def repair(
    directory: bytes, dry_run: bool, partial: bool, save: str, rank: int | None, /
) -> tuple[
    tuple[Literal["good", "rebuilt", "unusable", "data lost", "none"], bool, str | None, int, int, int, str, int],
    tuple[
        list[str],
        list[tuple[str, tuple[int, ...], int | None, list[tuple[tuple[int, ...], tuple[int, ...]]]]],
        list[str],
        list[tuple[str, int, int | None, bool]],
        list[tuple[str, list[tuple[str, int]]]],
        list[str],
        list[Any],
    ],
]: ...

# Directory, step, save id, number of files, bytes, was_interrupted, keeps_directory, warnings.
_RemovedCheckpoint = tuple[bytes, int | None, str | None, int, int, bool, bool, list[str]]

# rule: the last, steps, seconds, age in seconds, and (metric, whether the largest is best, count) of each metric.
# Returns the removed and the kept (directory, step, reason), and the problems.
def prune(
    root: bytes,
    rule: tuple[int | None, int | None, int | None, int | None, list[tuple[str, bool, int]]],
    adopt: bool,
    dry_run: bool,
    protect: list[bytes],
    /,
) -> tuple[list[_RemovedCheckpoint], list[tuple[bytes, int | None, str]], list[Any]]: ...
def remove_checkpoint(directory: bytes, dry_run: bool, /) -> _RemovedCheckpoint: ...
def pin(directory: bytes, note: str, /) -> None: ...
def unpin(directory: bytes, /) -> bool: ...
def read_pin(directory: bytes, /) -> str | None: ...

# Rank, host, pid, state, seconds since the last sign of life, is_readable; phase, bytes written, bytes in total; the
# longest-running call at the last sign of life, and its seconds.
_Writer = tuple[
    int | None,
    str,
    int,
    Literal["alive", "dead", "unknown"],
    float,
    bool,
    tuple[str, int, int] | None,
    str,
    float,
]
# Save id, job id, number, decision, is_leftover, writers, (rank, reason) of the failed ranks, is_readable, directory.
_SaveInFlight = tuple[
    str,
    str,
    int,
    Literal["committed", "failed"] | None,
    bool,
    list[_Writer],
    list[tuple[int | None, str]],
    bool,
    bytes,
]

def saves_in_flight(root: bytes, /) -> list[_SaveInFlight]: ...

# From now on this process exits with `status` (1 to 255) in place of exit status 0.
def fail_exit(status: int, /) -> None: ...

# Makes an object from module, name, whether by __new__, arguments, state and items.
_MakeObject = Callable[[str, str, bool, Any, Any, Any], Any]

# Raises UnsafeContent if a dict or set of the keys would take time out of proportion to the number of keys.
def check_key_hashes(keys: list[Any], /) -> None: ...

# Returns the value and ""; or None and the name of a class that is not plain and that make_object refused with
# NotImplemented.
def decode_plain(payload: bytes, make_object: _MakeObject) -> tuple[Any, str]: ...

# As decode_plain(), and calls make_object for tensors too: as functions of torch._utils, whose storage is the object
# that make_object returned for torch.storage._load_storage(persistent id).
def decode_described(payload: bytes, make_object: _MakeObject) -> tuple[Any, str]: ...

# tensors: a Form of cairn.arrays
def decode_inert(payload: bytes, make_object: _MakeObject, tensors: str) -> Any: ...
def encode_plain(value: object) -> bytes | None: ...
def ignore_stop_signals(signals: Sequence[int], owner: int, /) -> None: ...

class ManagedRun:
    def __init__(
        self, root: bytes, settings: tuple[Any, ...], together: Any, store: Any, warn: Callable[[Any], None], /
    ) -> None: ...
    def next_checkpoint(self, reason: Reason | None, /) -> bytes | None: ...
    def resumed(self) -> int: ...
    def due(self, step: int, /) -> int: ...
    def request_stop(self) -> None: ...
    def begin(
        self, step: int, metrics: dict[str, float], notes: str, is_forced: bool, waited: float, /
    ) -> tuple[bytes, str]: ...
    def began(self) -> None: ...
    def dropped(self) -> None: ...
    def ended(self, reason: Reason | None, /) -> None: ...
    def steps(self) -> list[int]: ...
    def latest_step(self) -> int | None: ...
    def best_step(self, metric: str, largest: bool, /) -> int | None: ...
    def metrics(self, step: int, /) -> dict[str, float]: ...
    def directory_of(self, step: int, /) -> bytes: ...
    def report(self) -> tuple[Any, ...]: ...
    def is_stop_requested(self) -> bool: ...
    def agreed_to_stop(self) -> None: ...
    def close(self, has_failed: bool, /) -> None: ...

def simulate_run(
    lengths: tuple[float, float],
    costs: tuple[float, float, float],
    failures: tuple[Sequence[float], float, float, int],
    interval: float | None,
    bounds: tuple[float, float],
    /,
) -> tuple[float, float, float, float, float, int, int, bool, float]: ...

EVENT_KINDS: Final[tuple[str, ...]]  # indexed by number

# kind, operation, asynchronous, id, directory, rank, ranks, step, bytes, begin of the step in ns since 1970, its length
# in ns, ns since the operation's begin, cause, process id
_Event = tuple[str, str, bool, int, bytes, int, int, int | None, int, int, int, int, Exception | None, int]

# id, action ("saving" and so on), unit, directory, rank, whether it has succeeded (None: running), seconds, done, total
# (0: unknown)
_Work = tuple[int, str, str, bytes, int, bool | None, float, int, int]

@final
class ProgressWatch:
    def __init__(self) -> None: ...
    # The calls into the engine since the construction, the ended ones once. Waits for a begin or end, without the lock.
    def take(self, milliseconds: int, /) -> list[_Work]: ...
    def close(self) -> None: ...
    def is_closed(self) -> bool: ...

@final
class EventQueue:
    def __init__(self, capacity: int, kinds: Sequence[int], /) -> None: ...  # no kinds: all
    def take(self, milliseconds: int, /) -> list[_Event]: ...  # waits without Python's lock
    def close(self) -> None: ...
    def is_closed(self) -> bool: ...
    def dropped(self) -> int: ...
