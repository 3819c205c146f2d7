"""The keys of an open checkpoint, some at a time: the names of a large checkpoint take gigabytes."""

from collections.abc import Iterator

from cairn import _engine


def saved_keys(checkpoint: _engine.Checkpoint) -> Iterator[tuple[str, int | None, tuple[int, ...] | None]]:
    """Yields every key, with the dtype code and the shape of a tensor."""
    stream = checkpoint.key_stream()
    while summaries := stream.next():
        yield from summaries
