"""Small files with large declared contents.

A decoder without bounds spends gigabytes of memory or minutes on each file.

Each function returns the bytes of a `.metadata` file or of a value's payload. The pickles are assembled opcode by
opcode, because a pickler cannot write the contents, for example a dict with thousands of equal keys.
"""

import io
import random
import struct
import zipfile
from collections.abc import Callable

MODULE = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"


class Assembler:
    """Assembles a pickle of protocol 4. Each method returns the opcodes of one value."""

    def __init__(self) -> None:
        self.memoized = 0

    def keep(self, opcodes: bytes) -> tuple[bytes, bytes]:
        """Returns the opcodes with a memo entry for their result, and the opcodes to fetch the result from the memo."""
        number = self.memoized
        self.memoized += 1
        get = b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)
        put = b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)
        return opcodes + put, get

    @staticmethod
    def text(value: str | bytes) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        return b"X" + struct.pack("<I", len(data)) + data

    @staticmethod
    def integer(value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data

    @staticmethod
    def class_(module: str, name: str) -> bytes:
        return b"c" + module.encode() + b"\n" + name.encode() + b"\n"

    @staticmethod
    def tuple_(*parts: bytes) -> bytes:
        return b"(" + b"".join(parts) + b"t"

    @staticmethod
    def list_(*parts: bytes) -> bytes:
        return b"](" + b"".join(parts) + b"e"

    @staticmethod
    def dict_(*parts: bytes) -> bytes:
        return b"}(" + b"".join(parts) + b"u"

    def call(self, module: str, name: str, *arguments: bytes) -> bytes:
        return self.class_(module, name) + self.tuple_(*arguments) + b"R"

    def instance(self, module: str, name: str, **attributes: bytes) -> bytes:
        items = [part for key, value in attributes.items() for part in (self.text(key), value)]
        return self.class_(module, name) + b")\x81" + self.dict_(*items) + b"b"

    def size(self, *numbers: int) -> bytes:
        return self.call("torch", "Size", self.tuple_(*map(self.integer, numbers)))

    def chunk(self, offsets: list[int], sizes: list[int]) -> bytes:
        return self.instance(MODULE, "ChunkStorageMetadata", offsets=self.size(*offsets), sizes=self.size(*sizes))

    def tensor(self, shape: bytes, chunks: bytes) -> bytes:
        properties = self.class_(MODULE, "TensorProperties") + b")\x81"
        properties += self.tuple_(self.class_("torch", "float32"), b"N", b"\x89", b"N", b"\x89") + b"b"
        return self.instance(MODULE, "TensorStorageMetadata", properties=properties, size=shape, chunks=chunks)

    def value(self) -> bytes:
        return self.class_(MODULE, "BytesStorageMetadata") + b")\x81"

    def index(self, fqn: bytes, offset: bytes | None = None) -> bytes:
        more = {} if offset is None else {"offset": offset}
        return self.instance(MODULE, "MetadataIndex", fqn=fqn, index=b"N", **more)

    def place(self, path: bytes, offset: int, length: int, **more: bytes) -> bytes:
        return self.instance(
            FILESYSTEM,
            "_StorageInfo",
            relative_path=path,
            offset=self.integer(offset),
            length=self.integer(length),
            **more,
        )

    def metadata(self, entries: bytes, storage: bytes = b"}", **more: bytes) -> bytes:
        root = self.instance(MODULE, "Metadata", state_dict_metadata=entries, storage_data=storage, **more)
        return b"\x80\x04" + root + b"."


def many(count: int, part: Callable[[int], bytes]) -> bytes:
    return b"".join(part(i) for i in range(count))


def numbered_texts(count: int) -> Callable[[int], bytes]:
    width = len(str(count))
    return lambda i: Assembler.text(f"{i:0{width}}")


def shared_chunk_list(size: int) -> bytes:
    """Tensors with a shared list of chunks. The list holds one chunk thousands of times."""
    a = Assembler()
    chunk, same_chunk = a.keep(a.chunk([0], [1]))
    chunks, same_chunks = a.keep(a.list_(chunk, same_chunk * (size // 4)))
    tensor, same_list = a.keep(a.tensor(a.size(1), chunks))
    del same_list
    shell = a.tensor(a.size(1), same_chunks)
    name = numbered_texts(size)
    return a.metadata(a.dict_(name(0), tensor, many(size // 2 // len(shell), lambda i: name(i + 1) + shell)))


def repeated_argument(module: str, name: str, *arguments: bytes) -> Callable[[int], bytes]:
    """A list of objects. A separate call with the large `arguments` makes each object."""

    def payload(size: int) -> bytes:
        a = Assembler()
        function, same_function = a.keep(a.class_(module, name))
        given, same_given = a.keep(a.tuple_(*arguments))
        first = a.list_(function + given + b"R", (same_function + same_given + b"R") * (size // 10))
        return archive(b"\x80\x02" + first + b".")

    return payload


def colliding_numbers(size: int) -> list[bytes]:
    """Integers with equal hashes in Python."""
    return [Assembler.integer(number * ((1 << 61) - 1)) for number in range(1, size // 13)]


def colliding_dict(size: int) -> bytes:
    """A dict with keys of equal hash."""
    pairs = [number + b"N" for number in colliding_numbers(size)]
    return archive(b"\x80\x02" + Assembler.dict_(*pairs) + b".")


def colliding_members(size: int) -> bytes:
    """A frozenset with members of equal hash."""
    a = Assembler()
    members = a.list_(*colliding_numbers(size))
    return archive(b"\x80\x02" + a.call("builtins", "frozenset", members) + b".")


def repeated_key(size: int) -> bytes:
    """A dict that lists one long key thousands of times."""
    a = Assembler()
    key, same_key = a.keep(a.text("k" * (size // 2)))
    value, same_value = a.keep(a.value())
    return a.metadata(a.dict_(key, value, (same_key + same_value) * (size // 8)))


def path_parts(size: int) -> bytes:
    """A path with thousands of parts, all one long text."""
    a = Assembler()
    part, same_part = a.keep(a.text("p" * (size // 2)))
    path = a.call("pathlib", "PosixPath", part, same_part * (size // 4))
    return a.metadata(b"}", storage_meta=a.instance(MODULE, "StorageMeta", checkpoint_id=path))


def planner_data(size: int) -> bytes:
    """Planner data with thousands of paths. Each element of each path is one long text."""
    a = Assembler()
    element, same_element = a.keep(a.text("e" * (size // 2)))
    name = numbered_texts(size)
    first = name(0) + a.tuple_(element, same_element)
    paths = many(size // 2 // 24, lambda i: name(i + 1) + a.tuple_(same_element * 4))
    return a.metadata(b"}", planner_data=a.dict_(first, paths))


def shared_transforms(size: int) -> bytes:
    """Items with a shared list of transforms."""
    a = Assembler()
    transforms, same = a.keep(a.list_(a.text("t" * 30) * (size // 2 // 35)))
    name = numbered_texts(size)
    entries = []
    storage = []
    path, same_path = a.keep(a.text("f"))
    value, same_value = a.keep(a.value())
    for i in range(size // 2 // 250):
        entries += [name(i), value if i == 0 else same_value]
        place = a.place(path if i == 0 else same_path, i, 1, transform_descriptors=transforms if i == 0 else same)
        storage += [a.index(name(i)), place]
    return a.metadata(a.dict_(*entries), a.dict_(*storage))


def padded_integer(size: int) -> bytes:
    """An integer with a long tail of sign bytes, and a list that refers to the integer thousands of times."""
    a = Assembler()
    padded, same = a.keep(b"\x8b" + struct.pack("<I", size // 2) + b"\x01" * 9 + bytes(size // 2 - 9))
    return a.metadata(b"}", padded=a.list_(padded, same * (size // 4)))


def many_attributes(size: int) -> bytes:
    """An object with many attributes, used as the storage info of many items."""
    a = Assembler()
    attributes = many(size // 2 // 8, lambda i: a.text(f"{i:x}") + b"N")
    info, same_info = a.keep(a.class_(FILESYSTEM, "_StorageInfo") + b")\x81" + b"}(" + attributes + b"ub")
    index, same_index = a.keep(a.index(a.text("k")))
    return a.metadata(
        a.dict_(a.text("k"), a.value()), a.dict_(index, info, (same_index + same_info) * (size // 2 // 4))
    )


def colliding_keys(size: int) -> bytes:
    """Keys with equal hashes in libstdc++'s `std::hash<std::string>`."""
    a = Assembler()
    multiplier, ones = 0xC6A4A7935BD1E995, (1 << 64) - 1
    inverse = pow(multiplier, -1, 1 << 64)

    def mixed(block: int) -> int:
        block = block * multiplier & ones
        return (block ^ block >> 47) * multiplier & ones

    def unmixed(block: int) -> int:
        block = block * inverse & ones
        return (block ^ block >> 47) * inverse & ones

    state = 0xC70F6907 ^ (16 * multiplier & ones)
    after = ((state ^ mixed(0)) * multiplier & ones) ^ mixed(0)

    def key(i: int) -> bytes:
        block = i + 1
        second = unmixed(((state ^ mixed(block)) * multiplier & ones) ^ after)
        return a.text(struct.pack("<QQ", block, second))

    value, same_value = a.keep(a.value())
    return a.metadata(a.dict_(key(0), value, many(size // 23, lambda i: key(i + 1) + same_value)))


def long_class_name(size: int) -> bytes:
    """A long class name, and thousands of references to the name."""
    a = Assembler()
    name, same_name = a.keep(a.text("n" * (size // 2)))
    return a.metadata(b"}", more=a.list_(name + same_name + b"\x93", (same_name * 2 + b"\x93") * (size // 10)))


def many_dimensions(size: int) -> bytes:
    """A tensor cut along twenty dimensions, each chunk along random dimensions. The chunks fit together."""
    generator = random.Random(20)
    dimensions, extent = 20, 2
    blocks = [([0] * dimensions, [extent] * dimensions)]
    while len(blocks) < size // 700:
        low, sizes = blocks.pop(0)
        along = generator.choice([d for d in range(dimensions) if sizes[d] > 1])
        first = generator.randrange(1, sizes[along])
        begin = [*low[:along], low[along] + first, *low[along + 1 :]]
        blocks.append((low, [*sizes[:along], first, *sizes[along + 1 :]]))
        blocks.append((begin, [*sizes[:along], sizes[along] - first, *sizes[along + 1 :]]))
    a = Assembler()
    chunks = []
    storage = []
    path, same_path = a.keep(a.text("__0_0.distcp"))
    for i, (low, sizes) in enumerate(blocks):
        chunks.append(a.chunk(low, sizes))
        index = a.instance(MODULE, "MetadataIndex", fqn=a.text("t"), index=a.integer(i), offset=a.size(*low))
        storage += [index, a.place(path if i == 0 else same_path, 0, 1 << 20)]
    tensor = a.tensor(a.size(*[extent] * dimensions), a.list_(*chunks))
    return a.metadata(a.dict_(a.text("t"), tensor), a.dict_(*storage))


def shared_payload(keys: int, length: int) -> bytes:
    """Values with a shared range of bytes in `__0_0.distcp`."""
    a = Assembler()
    value, same_value = a.keep(a.value())
    name = numbered_texts(keys)
    entries = name(0) + value + many(keys - 1, lambda i: name(i + 1) + same_value)
    path, same_path = a.keep(a.text("__0_0.distcp"))
    storage = many(keys, lambda i: a.index(name(i)) + a.place(path if i == 0 else same_path, 0, length))
    return a.metadata(a.dict_(entries), a.dict_(storage))


def archive(pickle: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    """A torch.save archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as records:
        records.writestr("archive/data.pkl", pickle)
        for key, storage in (storages or {}).items():
            records.writestr(f"archive/data/{key}", storage)
        records.writestr("archive/version", "3\n")
    return stream.getvalue()


def byte_tensor(a: Assembler, key: str, count: int) -> bytes:
    """The first byte of a storage of `count` bytes."""
    storage = a.tuple_(
        a.text("storage"), a.class_("torch", "ByteStorage"), a.text(key), a.text("cpu"), a.integer(count)
    )
    hooks = a.class_("collections", "OrderedDict") + b")R"
    return a.call(
        "torch._utils",
        "_rebuild_tensor_v2",
        storage + b"Q",
        a.integer(0),
        a.tuple_(a.integer(1)),
        a.tuple_(a.integer(1)),
        b"\x89",
        hooks,
    )


def overlapping_records(size: int) -> bytes:
    """Storages with a shared range of bytes: the archive's directory has many entries for one record."""
    count, storage = size // 2 // 300, bytes(size // 2)
    a = Assembler()
    whole = archive(b"\x80\x02" + a.list_(*(byte_tensor(a, str(i), len(storage)) for i in range(count))) + b".")
    # zipfile refuses to write entries that overlap: the entries are appended to a directory written by zipfile.
    with zipfile.ZipFile(io.BytesIO(whole)) as records:
        begin = records.start_dir
        entries = whole[begin : whole.rindex(b"PK\5\6")]
    body = whole[:begin]
    names = [f"archive/data/{i}".encode() for i in range(count)]
    # Each entry has its own local header. The header's extra field reaches up to the shared bytes.
    left = sum(30 + len(name) for name in names)
    assert left < 65536
    headers = b""
    offsets = []
    for name in names:
        left -= 30 + len(name)
        offsets.append(len(body) + len(headers))
        sizes = (len(storage), len(storage), len(name), left)
        headers += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0, 0, *sizes) + name
    data = body + headers + storage
    for name, offset in zip(names, offsets, strict=True):
        sizes = (len(storage), len(storage), len(name), 0, 0, 0, 0, 0)
        entries += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 0, 0, 0, 0, *sizes, offset) + name
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count + 2, count + 2, len(entries), len(data), 0)
    return data + entries + end


def shared_bytes(size: int) -> bytes:
    """A list with thousands of references to one bytes object."""
    a = Assembler()
    data, same = a.keep(b"B" + struct.pack("<I", size // 2) + bytes(size // 2))
    return archive(b"\x80\x04" + a.list_(data, same * (size // 4)) + b".")


def shared_persistent_id(size: int) -> bytes:
    """Thousands of persistent ids, all one long text."""
    a = Assembler()
    text, same = a.keep(a.text("i" * (size // 2)))
    return archive(b"\x80\x04" + a.list_(text + b"Q", (same + b"Q") * (size // 8)) + b".")


METADATA: dict[str, Callable[[], bytes]] = {
    "shared chunk list": lambda: shared_chunk_list(50_000),
    "repeated key": lambda: repeated_key(200_000),
    "path parts": lambda: path_parts(200_000),
    "planner data": lambda: planner_data(200_000),
    "shared transforms": lambda: shared_transforms(560_000),
    "padded integer": lambda: padded_integer(500_000),
    "many attributes": lambda: many_attributes(500_000),
    "colliding keys": lambda: colliding_keys(1_200_000),
    "long class name": lambda: long_class_name(500_000),
}

VALUES: dict[str, Callable[[], bytes]] = {
    "overlapping records": lambda: overlapping_records(500_000),
    "shared bytes": lambda: shared_bytes(200_000),
    "shared persistent id": lambda: shared_persistent_id(200_000),
}
