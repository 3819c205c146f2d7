"""The C++ engine, for package cairn only. Failures raise the classes of cairn.errors; Ctrl-C stops save and load."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, NoReturn, Protocol, TypeVar, final

from cairn._failures.exception_record import Reason

__version__: Final[str]
DTYPE_NAMES: Final[tuple[str, ...]]  # by dtype code
DTYPE_ITEM_BYTES: Final[tuple[int, ...]]

_Ints = Sequence[int]
_Path = tuple[str | int, ...]
_Leaf = TypeVar("_Leaf")
_Chunk = tuple[tuple[int, ...], tuple[int, ...], str | None, int, int]  # offsets, sizes, file, offset, length

@final
class StateDict:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add_tensor(
        self, path: _Path, data: int, dtype: int, sizes: _Ints, strides: _Ints, requires_grad: bool, /
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
    ) -> None: ...
    def add_value(self, path: _Path, value: object) -> bool: ...  # False: not a plain value, not added
    def add_serialized_value(self, path: _Path, payload: bytes, /) -> None: ...
    def add_serialized_tensor(
        self, path: _Path, payload: bytes, dtype: int, shape: _Ints, requires_grad: bool, /
    ) -> None: ...
    def fqn(self, index: int, /) -> str: ...
    def payload(self, index: int, /) -> bytes: ...  # of a serialised entry

# Tensors in the CPU's memory of which address, dtype, sizes and strides say it all.
@final
class PlainTensors:
    # torch's dtypes that they may have, and their codes; a tensor with an attribute named `mark` is not plain
    def __init__(self, codes: dict[Any, int], mark: str | None) -> None: ...
    def __contains__(self, tensor: object, /) -> bool: ...
    # for a load; False, not added: not plain, or elements share memory
    def add_target(self, state: StateDict, path: _Path, tensor: object, /) -> bool: ...

class FlatteningRules(Enum):
    TORCH_2_4 = ...  # and later
    TORCH_2_3 = ...  # and earlier
    TOP_LEVEL = ...  # nothing is taken apart

# make_leaf: path, value, and the container and the place in it where the value is
def flatten(
    state_dict: Mapping[Any, Any], rules: FlatteningRules, make_leaf: Callable[[_Path, Any, Any, Any], _Leaf], /
) -> list[_Leaf]: ...

# Keeps the memory of tensors alive: of each its storage, for a tensor object may be given another one.
@final
class HeldStorages:
    def __init__(self) -> None: ...
    # that of the tensor of entry `entry` of a StateDict: a torch.UntypedStorage
    def add(self, entry: int, storage: Any, /) -> None: ...
    # of the state's tensors whose elements are not in the memory of their storages any more
    def keys_of_moved(self, state: StateDict, /) -> list[str]: ...

# Adds plain tensors, and holds their storages, and Python's own plain values; all else goes to add_other.
def describe(
    state: StateDict,
    state_dict: Mapping[Any, Any],
    rules: FlatteningRules,
    read: tuple[PlainTensors, HeldStorages],
    add_other: Callable[[_Path, Any], None],
    /,
) -> None: ...

@final
class Catalog:
    def __len__(self) -> int: ...
    def __contains__(self, fqn: str, /) -> bool: ...
    def keys(self) -> list[str]: ...
    # dtype code, shape, requires_grad, chunks; None if it is not a tensor
    def tensor(self, fqn: str, /) -> tuple[int, tuple[int, ...], bool, list[_Chunk]] | None: ...
    # file, offset, length; None if it is not a value
    def value(self, fqn: str, /) -> tuple[str | None, int, int] | None: ...
    def nearest_keys(self, fqn: str, count_max: int, /) -> list[str]: ...
    def paths(self) -> dict[str, _Path]: ...
    # keys whose items went through stream transforms, and the names of these, joined by ", "
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
    def all_gather(self, message: bytes, /) -> list[bytes]: ...
    def barrier(self) -> None: ...

# A failure raises Unavailable from what the call raised; KeyboardInterrupt and its like are raised themselves.
@final
class Collectives:
    def __init__(self, calls: _Calls, /) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def gather(self, message: bytes, root: int, /) -> list[bytes]: ...  # empty but at the root
    def scatter(self, messages: Sequence[bytes], root: int, /) -> bytes: ...  # messages: ignored but at the root
    def broadcast(self, message: bytes, root: int, /) -> bytes: ...
    def all_gather(self, message: bytes, /) -> list[bytes]: ...
    def barrier(self) -> None: ...

@final
class Checkpoint:
    @property
    def save_id(self) -> str | None: ...
    # conversions (fqn, saved dtype code, target dtype code), keys that were missing
    def load(self, state: StateDict, /, **options: Any) -> tuple[list[tuple[str, int, int]], list[str]]: ...
    def read_box(self, fqn: str, box: tuple[_Ints, _Ints], data: int, /, **options: Any) -> None: ...
    def read_payload(self, fqn: str, /, **options: Any) -> bytes: ...

# catalog, save id, bytes written, warnings
def save(directory: bytes, state: StateDict, /, **options: Any) -> tuple[Catalog, str, int, list[str]]: ...

# For a rank that has no state to save, or to load into: both raise what all ranks get.
def abandon_save(reason: Reason, /, **options: Any) -> NoReturn: ...
def abandon_load(reason: Reason, /, **options: Any) -> NoReturn: ...

# Fails on every rank if one has a reason.
def agree(reason: Reason | tuple[()], /, **options: Any) -> None: ...

# Withdrawn when it is destroyed before its commit.
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
    ) -> None: ...
    @property
    def save_id(self) -> str: ...
    @property
    def ticket(self) -> bytes: ...
    # files: name, size, trailer checksum; returns warnings
    def commit(self, metadata: bytes, files: Sequence[tuple[str, int, int]], /) -> list[str]: ...
    def withdraw(self) -> None: ...

# Withdrawn when it is destroyed before it has been handed over.
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

# The native writer, in a process of its own. `io_priority`: "low", "idle" or "".
@final
class WriterProcess:
    def __init__(self, executable: bytes, grace_seconds: float, nice: int, io_priority: str) -> None: ...
    def start(self) -> None: ...
    @property
    def pid(self) -> int: ...  # 0 if it does not run

@final
class AsyncSave:
    # everything is copied and waits for confirm(), or the copy has failed; False: not yet
    def wait_copied(self, seconds: float, /) -> bool: ...
    def confirm(
        self, moved: list[str], /
    ) -> None: ...  # keys of tensors that have lost their memory; none: all is well
    def release(self) -> None: ...  # what was kept until the bytes are staged
    def leave(self) -> None: ...  # waits for nothing when it is destroyed; what is kept stays
    def wait_staged(self, seconds: float, /) -> bool: ...  # False: not yet
    # save id, whether catalog() is here, bytes written, warnings; None: not yet
    def wait_written(self, seconds: float, /) -> tuple[str, bool, int, list[str]] | None: ...
    def catalog(self) -> Catalog: ...
    def progress(self) -> tuple[str, int, int]: ...  # phase, bytes written, bytes in all

@final
class AsyncCheckpointer:
    # memory: generations, copying threads, whether memory limits are heeded
    def __init__(self, process: WriterProcess | None, memory: tuple[int, int, bool], nice: int) -> None: ...
    def save(
        self,
        directory: bytes,
        state: StateDict,
        # asynchronous staging, whether torn snapshots are noticed, what owns the memory
        terms: tuple[bool, bool, Any],
        /,
        **options: Any,
    ) -> AsyncSave: ...
    def abandon_save(self, reason: Reason, /, **options: Any) -> NoReturn: ...  # as the module's
    def prepare(self, state: StateDict, /) -> None: ...
    def close(self) -> None: ...
    def detach(self) -> None: ...  # waits for nothing, also when it is destroyed

def open(directory: bytes, metadata_name: str = ".metadata") -> Checkpoint: ...
def catalog_of(checkpoint: Checkpoint, /) -> Catalog: ...
def verify(directory: bytes, thread_count: int, follow_links: bool, /) -> dict[str, Any]: ...
def latest(root: bytes, wait_ms: int, rank: int | None, /) -> tuple[bytes | None, list[str]]: ...

# Rank, host, pid, state, seconds since its last sign of life, is_readable; phase, bytes written and in all; the call
# that had lasted longest, and its seconds.
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
# Save id, job id, number, verdict, is_leftover, writers, (rank, why) of the ranks that failed, is_readable, directory.
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

# From now on this process exits with `status` (1 to 255) where it would exit with 0.
def fail_exit(status: int, /) -> None: ...

# Makes an object of module, name, whether by __new__, arguments, state and items.
_MakeObject = Callable[[str, str, bool, Any, Any, Any], Any]

# Raises UnsafeContent if a dict or set of these keys would take time out of proportion to their number.
def check_key_hashes(keys: list[Any], /) -> None: ...

# The value and ""; or None and a class that is not plain, and for which make_object returned NotImplemented.
def decode_plain(payload: bytes, make_object: _MakeObject) -> tuple[Any, str]: ...

# The same, but make_object is asked for tensors too, as functions of torch._utils whose storage is what it makes of
# torch.storage._load_storage(persistent id).
def decode_described(payload: bytes, make_object: _MakeObject) -> tuple[Any, str]: ...

# tensors: a Form of cairn.arrays
def decode_inert(payload: bytes, make_object: _MakeObject, tensors: str) -> Any: ...
def encode_plain(value: object) -> bytes | None: ...
