"""Programs for test_progress.py, which preloads the library of hanging.py. Arguments: NAME FOLDER.

A program makes calls that hang until the display of the program has looked at them.
"""

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import cairn
from cairn import _progress_bars, progress

FOLDER = Path(sys.argv[2])
PROCESS = cairn.AsyncCheckpointerType.PROCESS
progress._FIRST_SECONDS = 0.05
_progress_bars._LINE_SECONDS = 0.1


def state() -> dict[str, Any]:
    return {"w": torch.ones(1 << 20)}


def bars_of(display: cairn.ProgressDisplay) -> list[Any]:
    return [bar for bar in list(display._bars.values()) if bar is not None]


def wait_for(happens: Callable[[], Any]) -> None:
    while not happens():
        time.sleep(0.01)


lines: Counter[Any] = Counter()  # by bar
_print = _progress_bars._Lines._print


def print_counted(bar: Any, text: str) -> None:
    lines[bar] += 1
    _print(bar, text)


_progress_bars._Lines._print = print_counted  # type: ignore[method-assign]


def is_drawn(display: cairn.ProgressDisplay) -> bool:
    """Whether the display has drawn two times at least, if it draws lines."""
    return any(not isinstance(bar, _progress_bars._Lines) or lines[bar] >= 2 for bar in bars_of(display))


@contextlib.contextmanager
def hanging(call: str, until: Callable[[], Any]) -> Iterator[None]:
    """Makes `call` hang in this process and in a writer that starts now, until `until` is true."""
    block = FOLDER / f"hang-{call}-{time.monotonic_ns()}"
    block.touch()
    os.environ["HANG"] = f"{call}:{block}"

    def release() -> None:
        wait_for(block.with_name(f"{block.name}.reached").exists)
        wait_for(until)
        block.unlink()

    releasing = threading.Thread(target=release)
    releasing.start()
    try:
        yield
    finally:
        releasing.join()
        del os.environ["HANG"]


def calls() -> None:
    """Each call has a bar."""
    saved = FOLDER / "saved"
    with cairn.show_progress() as display:

        def drawn() -> bool:
            return is_drawn(display)

        with hanging("pwrite", drawn):
            cairn.save(state(), checkpoint_id=saved)
        with hanging("large", drawn):
            cairn.load(state(), checkpoint_id=saved)
        with hanging("pwrite", drawn):
            cairn.async_save(state(), checkpoint_id=FOLDER / "by-thread").result()
        with hanging("pwrite", drawn):
            cairn.async_save(state(), checkpoint_id=FOLDER / "by-process", async_checkpointer_type=PROCESS).result()
        with hanging("large", drawn):
            cairn.load_async(state(), checkpoint_id=FOLDER / "by-process").result()
        with hanging("large", drawn):
            assert cairn.verify(FOLDER / "by-thread")
        with hanging("large", drawn):
            cairn.convert(saved, FOLDER / "copy", to="dcp")
        with hanging("unlinkat", drawn):
            cairn.remove_checkpoint(FOLDER / "copy")


def load() -> None:
    cairn.save(state(), checkpoint_id=FOLDER / "saved")
    with cairn.show_progress(*sys.argv[3:]) as display, hanging("large", lambda: bars_of(display)):
        cairn.load(state(), checkpoint_id=FOLDER / "saved")


def rich() -> None:
    sys.modules["tqdm.auto"] = None  # type: ignore[assignment]
    load()


def neither() -> None:
    sys.modules["rich.progress"] = None  # type: ignore[assignment]
    sys.modules["tqdm.auto"] = None  # type: ignore[assignment]
    cairn.save(state(), checkpoint_id=FOLDER / "saved")
    with cairn.show_progress() as display, hanging("large", lambda: is_drawn(display)):
        cairn.load(state(), checkpoint_id=FOLDER / "saved")


def short() -> None:
    """A call that ends before the time of the first drawing."""
    progress._FIRST_SECONDS = 3600.0
    seen = []
    draw = progress.ProgressDisplay._draw

    def note(self: cairn.ProgressDisplay, work: Any) -> None:
        seen.append(work)
        draw(self, work)

    progress.ProgressDisplay._draw = note  # type: ignore[method-assign]
    with cairn.show_progress(), hanging("pwrite", lambda: seen):
        cairn.save(state(), checkpoint_id=FOLDER / "saved")


def damage(saved: Path) -> None:
    chunk = cairn.open(saved).info("w").chunks[0]  # type: ignore[union-attr]
    with (saved / str(chunk.file)).open("r+b") as file:
        file.seek(chunk.offset + chunk.length // 2)
        file.write(b"damage")


def failure() -> None:
    """The call fails after its bar was drawn."""
    saved = FOLDER / "saved"
    cairn.save(state(), checkpoint_id=saved)
    damage(saved)
    with cairn.show_progress(*sys.argv[3:]) as display:
        try:
            with hanging("large", lambda: bars_of(display)):
                cairn.load(state(), checkpoint_id=saved)
        except cairn.Corrupt:
            pass
        else:
            raise AssertionError("the load did not fail")
    assert not display._bars


def two() -> None:
    """Two calls at the same time, of which one fails. Their names erase the screen, if the terminal gets them."""
    good, bad = FOLDER / "good\x1b[2J", FOLDER / "bad\n"
    for directory in (good, bad):
        cairn.save(state(), checkpoint_id=directory)
    damage(bad)

    def load_bad() -> None:
        with contextlib.suppress(cairn.Corrupt):
            cairn.load(state(), checkpoint_id=bad)

    with cairn.show_progress(*sys.argv[3:]) as display:
        with hanging("large", lambda: len(bars_of(display)) == 2 and is_drawn(display)):
            loading = threading.Thread(target=load_bad)
            loading.start()
            cairn.load(state(), checkpoint_id=good)
        loading.join()


def no_thread() -> None:
    """The system has no thread left."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    progress.threading.Thread.start, kept = start, threading.Thread.start  # type: ignore[method-assign]
    display = cairn.show_progress()
    progress.threading.Thread.start = kept  # type: ignore[method-assign]
    cairn.save(state(), checkpoint_id=FOLDER / "saved")
    display.close()


def blocked() -> None:
    """stderr takes no byte: a full pipe."""
    _, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(1 << 16))
    os.set_blocking(full, True)
    os.dup2(full, 2)
    display = cairn.show_progress("lines")
    with hanging("pwrite", lambda: is_drawn(display)):
        cairn.save(state(), checkpoint_id=FOLDER / "saved")
    display.close()


def closed() -> None:
    """stderr is closed, before the first drawing and after it."""
    display = cairn.show_progress("lines")

    def is_given_up() -> bool:
        return bool(display._bars) and not bars_of(display)

    with hanging("pwrite", is_given_up):
        sys.stderr.close()
        cairn.save(state(), checkpoint_id=FOLDER / "first")
    sys.stderr = os.fdopen(os.dup(1), "w")

    def close() -> bool:
        wait_for(lambda: is_drawn(display))
        sys.stderr.close()
        wait_for(is_given_up)
        return True

    with hanging("pwrite", close):
        cairn.save(state(), checkpoint_id=FOLDER / "second")
    display.close()
    assert cairn.verify(FOLDER / "first")
    assert cairn.verify(FOLDER / "second")


def outer() -> None:
    """The program has a bar of tqdm."""
    from tqdm import tqdm

    def is_below() -> bool:
        return any(abs(bar._bar.pos) == 1 for bar in bars_of(display))

    with tqdm(total=2, desc="epochs") as epochs, cairn.show_progress("tqdm") as display:
        epochs.update()
        with hanging("pwrite", is_below):
            cairn.save(state(), checkpoint_id=FOLDER / "saved")
        assert epochs.pos == 0


def after_the_block() -> None:
    """An asynchronous save lasts longer than the block, and its bar too. Then the thread ends."""
    with hanging("pwrite", lambda: is_drawn(display)):
        with cairn.show_progress() as display:
            future = cairn.async_save(state(), checkpoint_id=FOLDER / "saved")
        future.result()
    display._thread.join(120)
    assert not display._thread.is_alive()


def fork() -> None:
    """A child has no bars of its parent, and may have its own."""
    display = cairn.show_progress("lines")
    with progress.part(progress._Displays).drawing:  # as a thread that draws for ever
        child = os.fork()
    if child == 0:
        display.close()
        with cairn.show_progress("lines") as own:
            wait_for(own._thread.is_alive)
        own._thread.join(120)
        os._exit(0 if not own._thread.is_alive() and not progress.part(progress._Displays)._all else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with hanging("pwrite", lambda: is_drawn(display)):
        cairn.save(state(), checkpoint_id=FOLDER / "saved")


def nested() -> None:
    """Two displays, and a single bar."""
    counts = []

    def is_seen_by_both() -> bool:
        if not one._bars or not two._bars:
            return False
        counts.append(len(bars_of(one) + bars_of(two)))
        return True

    with cairn.show_progress() as one, cairn.show_progress() as two, hanging("pwrite", is_seen_by_both):
        cairn.save(state(), checkpoint_id=FOLDER / "saved")
    assert counts == [1]


def managed() -> None:
    with cairn.CheckpointManager(FOLDER / "run", save_every=1, process=False, progress=True) as manager:
        display = manager._display
        assert display is not None
        with hanging("pwrite", lambda: is_drawn(display)):
            manager.save(1, state())
            manager.wait()
    display._thread.join(120)
    assert not display._thread.is_alive()


def rank() -> None:
    dist.init_process_group("gloo")
    with cairn.show_progress() as display:
        seen = FOLDER / f"seen-{dist.get_rank()}"
        block = FOLDER / "hang"
        os.environ["HANG"] = f"pwrite:{block}"

        def note() -> None:
            wait_for(lambda: is_drawn(display) or (display._bars and dist.get_rank() != 0))
            seen.touch()

        noting = threading.Thread(target=note)
        noting.start()
        w = torch.ones(1 << 20)
        cairn.save({f"w{dist.get_rank()}": w}, checkpoint_id=FOLDER / "saved")
        noting.join()
    dist.destroy_process_group()


globals()[sys.argv[1]]()
