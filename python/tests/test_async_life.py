"""A background save while its program ends, is interrupted, forks, or executes a different program."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import preloaded
import pytest
import stock
from saving_programs import PATIENCE_SECONDS, SAYS_WHEN_IT_WAITS, Watched, appears, is_there, no_commit_in, running

import cairn

both = pytest.mark.parametrize("kind", ["THREAD", "PROCESS"])


# --- the end


ENDS = {
    "end": ("", 0, ""),
    "exit": ("sys.exit(3)", 3, ""),
    "exception": ("raise RuntimeError('of the training loop')", 1, "RuntimeError: of the training loop"),
}


@both
@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_waits_for_saves_in_flight(checkpoint: Path, tmp_path: Path, kind: str, end: str) -> None:
    last, status, told = ENDS[end]
    body = f"""
    {SAYS_WHEN_IT_WAITS}
    save(1)
    say(writer_pid())
    {last}
    """
    with running(tmp_path, body, checkpoint, kind) as program:
        with no_commit_in(checkpoint):
            pid = int(program.said())
            writer = Watched(pid) if pid else None
            assert program.said() == "waits"
            assert program.process.poll() is None
            assert not (checkpoint / ".metadata").exists()
        assert program.wait() == status
    assert is_there(checkpoint, 1)
    assert program.errors().strip().endswith(told)
    assert program.errors().count("Traceback") == bool(told)
    assert bool(program.errors()) == bool(told)
    assert writer is None or writer.has_ended()


FAILED_CALLS = {
    "uncaught": ("save(1)", 1),
    "kept": ("try:\n    save(1)\nexcept cairn.Error as error:\n    kept = error", 0),
    "saver": ("cairn.AsyncSaver(process=sys.argv[2] == 'PROCESS').save(state(1), directory)", 1),
    "staged": ("save_by_a_stager(staged=state(1))", 1),
    "not staged": ("save_by_a_stager(staged=None)", 1),
}


@both
@pytest.mark.parametrize("call", FAILED_CALLS)
def test_the_program_ends_after_a_call_that_failed(tmp_path: Path, kind: str, call: str) -> None:
    """An exception, kept by the program or (if uncaught) by the interpreter, keeps the frames of the failed call."""
    functions = """
    class Stager(cairn.staging.BlockingAsyncStager):
        def stage(self, _):
            if self.staged is None:
                raise cairn.NoSpace("no room to stage")
            return self.staged

    def save_by_a_stager(staged):
        stager = Stager()
        stager.staged = staged
        cairn.async_save(state(1), checkpoint_id=directory, async_checkpointer_type=kind, async_stager=stager)
    """
    directory = tmp_path / "file"
    directory.write_text("of somebody else's")
    body, status = FAILED_CALLS[call]
    with running(tmp_path, body, directory, kind, functions=functions) as program:
        assert program.wait() == status, program.errors()
        assert program.errors().count("Traceback") == status
        assert bool(re.search(r"^cairn\.errors\.\w+: ", program.errors(), re.MULTILINE)) == bool(status)
    assert directory.read_text() == "of somebody else's"


@both
def test_the_program_ends_after_a_call_that_ctrl_c_ended(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    functions = """
    def press_ctrl_c_in_the_third_call():  # its thread is there, and it waits for the memory of those before
        while sum(thread.name == "cairn-save" for thread in threading.enumerate()) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    """
    body = f"""
    import time

    {SAYS_WHEN_IT_WAITS}
    threading.Thread(target=press_ctrl_c_in_the_third_call).start()
    for step in (1, 2, 3):
        save(step)
    """
    with running(tmp_path, body, checkpoint, kind, functions=functions) as program:
        with no_commit_in(checkpoint):
            assert program.said() == "waits"
        assert program.wait() == -signal.SIGINT
        note = "interrupted while waiting for an earlier save .*\n"  # if the wait has begun when the signal arrives
        assert re.search(rf"in save\n[^$]*KeyboardInterrupt\n({note})?$", program.errors())
    assert is_there(checkpoint, 2)


@both
def test_an_unretrieved_failure_is_logged_at_exit(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    stock.save({"step": 1}, checkpoint)
    with running(tmp_path, f"{SAYS_WHEN_IT_WAITS}\nsave(2)", checkpoint, kind) as program:
        with no_commit_in(checkpoint):
            assert program.said() == "waits"
            stock.save({"step": 3}, checkpoint)
        assert program.wait() == 0
    (line,) = program.errors().splitlines()
    assert line.startswith(f"an asynchronous save into '{checkpoint}' failed: ")
    assert cairn.open(checkpoint)["step"] == 3


@both
def test_ctrl_c_at_the_end_ends_the_waiting(tmp_path: Path, kind: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    cairn.save({"step": 0}, checkpoint_id=checkpoint)
    with no_commit_in(checkpoint), running(tmp_path, f"{SAYS_WHEN_IT_WAITS}\nsave(1)", checkpoint, kind) as program:
        assert program.said() == "waits"
        program.press_ctrl_c()
        assert program.wait() == 0
        fate = "continues in its writer process" if kind == "PROCESS" else "is cancelled"
        assert program.errors().endswith(f"the program ends during its save into '{checkpoint}', which {fate}\n")
        assert is_there(checkpoint, 0)
    if kind == "PROCESS":
        assert appears(checkpoint, 1)
    else:
        assert appears(checkpoint, 0)
        cairn.save({"step": 2}, checkpoint_id=checkpoint)
    assert not list(checkpoint.glob(".cairn-*"))


@both
def test_ctrl_c_while_the_future_is_waited_for_and_once_more(tmp_path: Path, kind: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    body = f"""
    {SAYS_WHEN_IT_WAITS}
    future = save(1)
    say_inside("result", "asks")
    future.result()
    """
    with no_commit_in(checkpoint), running(tmp_path, body, checkpoint, kind) as program:
        assert program.said() == "asks"
        program.press_ctrl_c()
        assert program.said() == "waits"
        assert re.search(r"future\.result\(\)[^$]*KeyboardInterrupt\n$", program.errors())
        program.press_ctrl_c()
        assert program.wait() == -signal.SIGINT
    if kind == "PROCESS":
        assert appears(checkpoint, 1)
    else:
        assert cairn.latest(checkpoint, wait=PATIENCE_SECONDS) is None


@both
def test_ctrl_c_while_a_save_waits_for_earlier_saves(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    body = """
    futures = [save(1), save(2)]  # as many as there is memory for
    say_inside("async_save", "saves")
    try:
        save(3)
    except KeyboardInterrupt:
        say("interrupted")
    for future in futures:
        future.result()
    save(4).result()
    """
    with running(tmp_path, body, checkpoint, kind) as program:
        with no_commit_in(checkpoint):
            assert program.said() == "saves"
            program.press_ctrl_c()
            assert program.said() == "interrupted"
        assert program.wait() == 0, program.errors()
        assert program.errors() == ""
    assert is_there(checkpoint, 4)


@both
def test_ctrl_c_while_bytes_are_copied(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    """Ctrl-C arrives at a random moment of each call, or right after the call.

    The save is made or not; the next save works.
    """
    body = """
    import random, time

    chance = random.Random(7)
    large = {"w": torch.rand(48 << 18), "step": 0}
    cairn.async_save(large, checkpoint_id=directory, async_checkpointer_type=kind).result()
    start = time.perf_counter()
    cairn.async_save(large, checkpoint_id=directory, async_checkpointer_type=kind)
    duration = time.perf_counter() - start
    for step in range(1, 13):
        large["step"] = step
        timer = threading.Timer(chance.uniform(0, duration), os.kill, (os.getpid(), signal.SIGINT))
        made = None
        try:
            try:
                timer.start()
                made = cairn.async_save(large, checkpoint_id=directory, async_checkpointer_type=kind)
            finally:
                timer.join()
        except KeyboardInterrupt:
            pass
        if made is not None:
            made.result()
            assert cairn.open(directory)["step"] == step
    save(100).result()
    """
    with running(tmp_path, body, checkpoint, kind) as program:
        assert program.wait() == 0, program.errors()
    assert is_there(checkpoint, 100)


# --- signals


def test_a_terminated_trainer_leaves_its_save_to_the_writer(checkpoint: Path, tmp_path: Path) -> None:
    body = """
    save(1)
    say(writer_pid())
    signal.pause()
    """
    with no_commit_in(checkpoint), running(tmp_path, body, checkpoint, "PROCESS") as program:
        writer = Watched(int(program.said()))
        program.process.terminate()
        assert program.wait() == -signal.SIGTERM
        assert not writer.has_ended()
    assert appears(checkpoint, 1)
    assert writer.ends()


TERMINATED_WRITER = """
import time

def outcome_of(step):
    try:
        return save(step).exception()
    except cairn.Error as error:
        return error

cairn.configure_async_saves(grace_seconds=600)
future = save(1)
first = writer_pid()
say(first)
sys.stdin.readline()
say(repr(outcome_of(2)))  # what comes now is refused by the call, or by its future
say(repr(future.exception()))
while writer_pid() == first:
    time.sleep(0.01)
save(3).result()
say(writer_pid())
"""


def test_a_terminated_writer_finishes_staged_saves(checkpoint: Path, tmp_path: Path) -> None:
    with running(tmp_path, TERMINATED_WRITER, checkpoint, "PROCESS") as program:
        with no_commit_in(checkpoint):
            pid = int(program.said())
            writer = Watched(pid)
            writer.terminate()
            program.tell()
            assert "received SIGTERM" in program.said()
            assert not writer.has_ended()
        assert program.said() == "None"
        assert writer.ends()
        assert int(program.said()) != pid, "the next save has a writer of its own"
        assert program.wait() == 0
        assert program.errors() == ""
    assert is_there(checkpoint, 3)


def test_a_terminated_writer_without_grace_gives_up(checkpoint: Path, tmp_path: Path) -> None:
    body = """
    cairn.configure_async_saves(grace_seconds=0.01)
    future = save(1)
    say(writer_pid())
    say(repr(future.exception()))
    """
    with running(tmp_path, body, checkpoint, "PROCESS") as program:
        with no_commit_in(checkpoint):
            pid = int(program.said())
            writer = Watched(pid)
            os.kill(pid, signal.SIGTERM)
            assert writer.ends()
        assert f"the writer process ({pid})" in program.said()
        assert program.wait() == 0
        assert program.errors() == ""
    assert not list(checkpoint.iterdir())


# --- other processes


@both
def test_forked_children_end_and_save_and_leave_the_parents_save_alone(
    checkpoint: Path, tmp_path: Path, kind: str
) -> None:
    functions = """
    def ask(future):
        try:
            future.result()
        except cairn.Unavailable as error:
            say(error)

    def save_both(parent_writer):
        for kind in cairn.AsyncCheckpointerType:
            save(7, directory.with_name(f"of-a-child-{kind.name}"), kind)
        assert writer_pid() != parent_writer

    def in_a_child(work, *arguments):
        child = os.fork()
        if child == 0:
            work(*arguments)
            sys.exit(0)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    body = """
    future = save(1)
    in_a_child(os._exit, 0)
    in_a_child(sys.exit, 0)
    in_a_child(ask, future)
    in_a_child(save_both, writer_pid())
    second = save(2)
    say("forked")
    future.result()
    second.result()
    """
    with running(tmp_path, body, checkpoint, kind, functions=functions) as program:
        with no_commit_in(checkpoint):
            assert [program.said() for _ in range(2)] == ["0", "0"], program.errors()
            assert "forked child" in program.said()
            assert [program.said() for _ in range(3)] == ["0", "0", "forked"], program.errors()
        assert program.wait() == 0, program.errors()
        assert program.errors() == ""
    assert is_there(checkpoint, 2)
    for name in ("THREAD", "PROCESS"):
        assert is_there(checkpoint.with_name(f"of-a-child-{name}"), 7)


@both
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loaders_and_other_children_work_meanwhile(
    checkpoint: Path, tmp_path: Path, kind: str, method: str
) -> None:
    functions = """
    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return torch.tensor(float(index))

    def child():
        save(5, directory.with_name("of-a-child"))
    """
    body = """
    import torch.multiprocessing as mp

    method = sys.argv[3]
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    futures = [save(1)]
    for step, batch in enumerate(loader, 2):
        futures.append(save(step))
    assert sum(int(batch.sum()) for batch in loader) == 780
    process = mp.get_context(method).Process(target=child)
    process.start()
    process.join()
    say(process.exitcode)
    for future in futures:
        future.result()
    """
    with running(tmp_path, body, checkpoint, kind, method, functions=functions) as program:
        assert program.said() == "0", program.errors()
        assert program.wait() == 0, program.errors()
        assert program.errors() == ""
    assert is_there(checkpoint, 11)
    assert is_there(checkpoint.with_name("of-a-child"), 5)


# A forked child inherits these locks of libc as they are. The child's exit waits for the lock of the exit handlers, and
# an import of the child waits for the lock of the loaded libraries.
NAMES_LOCKING_THREADS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

static void name(const char* function) {
  if (gettid() != getpid()) dprintf(STDERR_FILENO, "a thread calls %s\n", function);
}

int __cxa_atexit(void (*handler)(void*), void* argument, void* library) {
  name(__func__);
  int (*next)(void (*)(void*), void*, void*) = dlsym(RTLD_NEXT, __func__);
  return next(handler, argument, library);
}

int __cxa_thread_atexit_impl(void (*handler)(void*), void* argument, void* library) {
  name(__func__);
  int (*next)(void (*)(void*), void*, void*) = dlsym(RTLD_NEXT, __func__);
  return next(handler, argument, library);
}

void* dlopen(const char* library, int flags) {
  name(__func__);
  void* (*next)(const char*, int) = dlsym(RTLD_NEXT, __func__);
  return next(library, flags);
}
"""


@both
def test_no_thread_takes_a_lock_of_libc_that_a_forked_child_needs(
    checkpoint: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
    for step in range(2):
        save(step).result()
        cairn.load(state(0), checkpoint_id=directory)
        cairn.verify(directory)
    """
    monkeypatch.setenv("LD_PRELOAD", str(preloaded.library(NAMES_LOCKING_THREADS, tmp_path)))
    with running(tmp_path, body, checkpoint, kind) as program:
        assert program.wait() == 0, program.errors()
        assert program.errors() == ""


def test_the_writer_ends_although_a_forked_worker_lives_on(checkpoint: Path, tmp_path: Path) -> None:
    body = """
    save(1)
    if os.fork() == 0:
        say("worker")
        sys.stdin.readline()
        os._exit(0)
    say(writer_pid())
    signal.pause()
    """
    with no_commit_in(checkpoint), running(tmp_path, body, checkpoint, "PROCESS") as program:
        words = {program.said(), program.said()}
        assert "worker" in words
        writer = Watched(int((words - {"worker"}).pop()))
        program.process.kill()
        program.wait()
        os.killpg(program.process.pid, 0)  # the worker is alive
        unlocked = cairn.saves_in_flight(checkpoint)
        assert [save.is_leftover for save in unlocked] == [False]
    assert writer.ends()
    assert is_there(checkpoint, 1)


def test_a_trainer_that_becomes_another_program_leaves_its_save_to_the_writer(checkpoint: Path, tmp_path: Path) -> None:
    body = """
    save(1)
    say(writer_pid())
    os.execv(sys.executable, [sys.executable, "-c", "print('another', flush=True); input()"])
    """
    with running(tmp_path, body, checkpoint, "PROCESS") as program:
        with no_commit_in(checkpoint):
            writer = Watched(int(program.said()))
            assert program.said() == "another"
            assert not writer.has_ended()
        assert writer.ends()
        assert is_there(checkpoint, 1)
        program.tell()
        assert program.wait() == 0


# --- many saves of one process


@both
def test_saves_of_other_threads_settings_and_savers(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    body = """
    thread = threading.Thread(target=save, args=(1,))
    thread.start()
    thread.join()
    first = writer_pid()
    cairn.configure_async_saves(generations=1)
    assert cairn.open(directory)["step"] == 1
    assert not Path(f"/proc/{first}").exists() or not first
    futures = [save(step) for step in (2, 3, 4)]
    futures[-1].result()

    savers = [cairn.AsyncSaver(process=first != 0) for _ in range(2)]
    places = [directory.with_name(f"of-saver-{number}") for number in range(2)]
    saves = [saver.save(state(5), place) for saver, place in zip(savers, places)]
    for pending in saves:
        pending.upload.result()
    together = [saver.save(state(6), places[0]).upload for saver in savers]
    pids = {saver.writer_pid for saver in savers}
    assert len(pids) == (2 if first else 1)
    say([future.exception() for future in together].count(None))
    savers[0].close()
    savers[1].save(state(8), places[1])
    del savers  # goes on without it
    threading.Thread(target=lambda: save(9)).start()
    """
    with running(tmp_path, body, checkpoint, kind) as program:
        assert program.said() in ("1", "2"), program.errors()
        assert program.wait() == 0, program.errors()
    assert is_there(checkpoint, 9)
    assert is_there(checkpoint.with_name("of-saver-0"), 6)
    assert is_there(checkpoint.with_name("of-saver-1"), 8)


@both
def test_many_saves_leave_nothing_open(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    functions = """
    import gc, time

    def memory(pid):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def held():
        pids = [pid for pid in (os.getpid(), writer_pid()) if pid]
        descriptors = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
        threads = [len(os.listdir(f"/proc/{pid}/task")) for pid in pids]
        children = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
        return [*descriptors, *threads], "".join(children).split()

    def holds_more(after, before):
        return after[1] != before[1] or any(now > then for now, then in zip(after[0], before[0], strict=True))

    def save_many(count):
        for step in range(count):
            save(step, directory.with_name(f"checkpoint-{step % 2}"))
        save(count).result()
        gc.collect()
        return sum(memory(pid) for pid in (os.getpid(), writer_pid()) if pid)
    """
    body = """
    memory_before = save_many(10)
    for thread in threading.enumerate():
        if thread.name == "cairn-save":
            thread.join()
    before = held()
    memory_after = save_many(50)
    after = held()
    for _ in range(600):  # threads that have told their end may not be gone yet, neither here nor in `before`
        if not holds_more(after, before):
            break
        time.sleep(0.1)
        after = held()
    assert not holds_more(after, before), (before, after)
    assert memory_after < memory_before + 20 * 1024, (memory_before, memory_after)  # 50 states are 50 MiB
    """
    with running(tmp_path, body, checkpoint, kind, functions=functions) as program:
        assert program.wait() == 0, program.errors()
        assert program.errors() == ""
    assert is_there(checkpoint, 50)


def test_settings_are_checked() -> None:
    wrong: Any = "high"
    with pytest.raises(cairn.InvalidArgument, match="io_priority"):
        cairn.AsyncSaver(process=True, io_priority=wrong)
