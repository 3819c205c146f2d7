"""``metadata.pkl`` of torch_checkpointing, read without running code: the shardings and the files of the items."""

import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from torch_checkpointing.checkpoint_layout import (
    LayoutInfo,
    SerializationFormat,
    serialization_format_from_dict,
)
from torch_checkpointing.distributed_metadata import ShardingMetadata

from cairn.errors import Corrupt, Error, NotFound, UnsafeContent, Unsupported

NAME = "metadata.pkl"
_BYTES_MAX = 1 << 30


class RecordedMetadata:
    """The content of ``metadata.pkl`` in `directory`; `exists` is False without the file."""

    def __init__(self, directory: Path) -> None:
        try:
            content = (directory / NAME).open("rb")
        except FileNotFoundError:
            self.exists = False
            self._shardings: Mapping[str, Mapping[tuple[Any, ...], list[Any]]] = {}
            self._layouts: Mapping[str, Mapping[int, Any]] = {}
            return
        self.exists = True
        with content:
            if (directory / NAME).stat().st_size > _BYTES_MAX:
                raise UnsafeContent(f"{NAME} in '{directory}' is larger than 1 GiB", file=NAME)
            try:
                self._take(_PlainUnpickler(content).load())
            except Error:
                raise
            except Exception as error:
                raise Corrupt(f"{NAME} in '{directory}' can't be decoded: {error!r}", file=NAME) from error

    def must_reshard(self, item: str, target: Mapping[Any, ShardingMetadata] | None) -> bool:
        """Returns whether the shards of the targets differ from the saved shards, by the rules of DefaultResharder."""
        saved = self._shardings.get(item)
        if saved is None or target is None:
            return False
        try:
            layouts = [layout for layout in self._layouts.get(item, {}).values() if layout is not None]
            if any(layout["serialization_format"]["type"] == "SafetensorsSerialization" for layout in layouts):
                return True
            for path, sharding in target.items():
                groups = saved.get(tuple(path))
                if groups is not None and _text(sharding._pack()) not in {_text(group) for group in groups}:
                    return True
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise Corrupt(f"{NAME} has no sharding of item '{item}': {error!r}", key=item, file=NAME) from error
        return False

    def layout(self, item: str, rank: int, configured: LayoutInfo | None, allow_pickle: bool) -> LayoutInfo | None:
        """Returns the recorded layout of an item of `rank`; None if none is recorded.

        A class of JSON that the file names is the class in the `configured` layout, or is imported with
        `allow_pickle`. Raises UnsafeContent otherwise.
        """
        recorded = self._layouts.get(item, {}).get(rank)
        if recorded is None:
            return None
        try:
            return self._layout(item, recorded, configured, allow_pickle)
        except (ImportError, AttributeError) as error:
            raise Unsupported(f"{NAME} names a class that this Python lacks: {error}", key=item, file=NAME) from error
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, Error):
                raise
            raise Corrupt(f"{NAME} has no layout of item '{item}': {error!r}", key=item, file=NAME) from error

    def _layout(self, item: str, recorded: Any, configured: LayoutInfo | None, allow_pickle: bool) -> LayoutInfo:
        form: SerializationFormat | None = None
        described = recorded["serialization_format"]
        named = described.get("cls") if described["type"] == "JsonSerialization" else None
        if named is not None and configured is not None and configured.serialization_format.to_dict() == described:
            form = configured.serialization_format
        elif named is not None and not allow_pickle:
            raise UnsafeContent(
                f"{NAME} names the class {named} for item '{item}', which can't be imported without running code. Give "
                f"the item a layout in Config.items with JsonSerialization(cls=...), or allow_pickle=True",
                key=item,
                file=NAME,
                actual=str(named),
            )
        else:
            form = serialization_format_from_dict(described)
        return LayoutInfo(str(recorded["file_path"]), form)

    def _take(self, content: Any) -> None:
        shardings: dict[str, dict[tuple[Any, ...], list[Any]]] = {}
        layouts: dict[str, dict[int, Any]] = {}
        if content["version"] == "1.0":
            for text, groups in content["metadata"].items():
                item, *path = json.loads(text)
                shardings.setdefault(item, {})[tuple(path)] = _shardings_of(groups)
            for rank, of_rank in content["rank_to_layout_info_mappings"].items():
                for item, layout in of_rank.items():
                    layouts.setdefault(item, {})[int(rank)] = layout
        else:
            for item, entry in content["metadata"].items():
                paths = entry["nested_path_to_metadata"].items()
                shardings[item] = {tuple(json.loads(text)): _shardings_of(groups) for text, groups in paths}
                layouts[item] = {int(rank): layout for rank, layout in entry["rank_to_layout_info"].items()}
        self._shardings, self._layouts = shardings, layouts


def file_of(directory: Path, layout: LayoutInfo, item: str, rank: int, *, follow_links: bool) -> Path:
    """Returns the file of an item. Raises UnsafeContent for a path that leads out of the directory, and NotFound."""
    relative = Path(layout.file_path)
    if relative.is_absolute() or ".." in relative.parts:
        raise UnsafeContent(
            f"the path '{relative}' of item '{item}' leads out of '{directory}'", key=item, file=str(relative)
        )
    file = directory / relative
    parts = [file, *(directory / part for part in relative.parents if part != Path())]
    if not follow_links and any(part.is_symlink() for part in parts):
        raise UnsafeContent(
            f"'{file}' is a symbolic link; allow links by cairn.install(follow_links=True) or CAIRN_FOLLOW_LINKS=1",
            key=item,
            file=str(relative),
        )
    if not file.is_file():
        raise NotFound(
            f"Missing file {file} for checkpoint item '{item}' of rank {rank}: the item was saved by fewer ranks, or "
            f"under another name. An item with a resharder loads on any number of ranks",
            key=item,
            rank=rank,
            file=str(relative),
        )
    return file


class _PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, tuples, texts and numbers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Raises UnsafeContent: the package names no class in the file."""
        raise UnsafeContent(f"{NAME} names {module}.{name}, and reading it would run code", file=NAME)


def _shardings_of(groups: Iterable[Any]) -> list[Any]:
    return [group["sharding_metadata"] for group in groups]


def _text(sharding: Any) -> str:
    """Returns a text that is equal for equal shardings: tuples may come back as lists."""
    return json.dumps(sharding, sort_keys=True, default=list)
