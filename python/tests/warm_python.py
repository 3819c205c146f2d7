"""Processes of a Python that has already imported torch: a program starts in milliseconds instead of two seconds.

``Popen`` and ``run`` are those of the module ``subprocess`` for a command that begins with ``sys.executable``. The
process is real: it is a child of the test, has a process id of its own, gets signals, and ends as any interpreter ends.
It differs from a new interpreter in two points: torch is imported, and ``/proc/PID/cmdline`` is that of the server.
Tests of imports and of ``cairn.install()`` start a new interpreter; so does ``Popen`` if a variable differs that the
interpreter or a library reads at its start (LD_PRELOAD, PYTHONPATH), unless ``repeats`` says that many programs start
with these variables. With ``preload`` further modules are imported.

Steps, for each program:

1. The test makes itself the reaper of orphans, and sends the server the command, and three files for the program.
2. The server forks a process, which forks the program and ends. The orphan becomes a child of the test.
3. The program makes its session, if the command asks for one: signals to the group reach it from the answer on. The
   server answers with the program's process id. The test is no reaper from now on.
4. The program leaves the server's loop, and becomes the main module of its process.
"""

import array
import ctypes
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_MAX = 1 << 20
_READ_LATER = "TORCHELASTIC_"  # variables
_READ_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "MALLOC_", "TORCH", "ASAN_", "GLIBC_")  # variables


class Server:
    """The process that has imported torch and the modules `preload`. It ends with the test process."""

    def __init__(self, preload: tuple[str, ...], environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_MAX)
        command = [sys.executable, __file__, str(theirs.fileno()), *preload]
        null, ends = subprocess.DEVNULL, theirs.fileno()
        self.process = subprocess.Popen(command, stdin=null, stdout=null, pass_fds=[ends], env=environment)
        theirs.close()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def start(self, request: dict[str, Any], files: list[int]) -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        self._become_reaper(True)  # 1
        try:
            self._socket.sendmsg([json.dumps(request).encode()], rights)
            answer = self._socket.recv(64)
            assert answer, "the server of warm processes, or the program, has ended"
            return int(answer)
        finally:
            self._become_reaper(False)  # 3

    def _become_reaper(self, on: bool) -> None:
        assert self._libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


# By process, since a forked test process starts servers of its own, by modules, and by variables.
_servers: dict[tuple[int, tuple[str, ...], frozenset[tuple[str, str]]], Server] = {}


def _server(preload: tuple[str, ...], at_start: dict[str, str]) -> Server:
    key = os.getpid(), preload, frozenset(at_start.items())
    if key not in _servers:
        later = {name: value for name, value in os.environ.items() if name not in _at_start(dict(os.environ))}
        _servers[key] = Server(preload, later | at_start)
    return _servers[key]


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    """The variables that the interpreter or a library reads at its start."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER)
    }


class Popen(subprocess.Popen[Any]):
    """``subprocess.Popen``; the command is ``[sys.executable, "-W", ..., "-c" or a script, ...]``.

    `repeats`: a server starts for the variables of `env` too.
    """

    def __init__(
        self, command: list[Any], preload: tuple[str, ...] = (), repeats: bool = False, **options: Any
    ) -> None:
        self._preload = preload
        self._repeats = repeats
        super().__init__(command, **options)

    def _execute_child(self, *arguments: Any) -> None:
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
        given = dict(zip(names, arguments, strict=True))
        assert not (given["preexec_fn"] or given["pass_fds"] or given["shell"]), "a warm process has no such option"
        words = [os.fspath(word) for word in given["args"]]
        assert words[0] == sys.executable
        environment = dict(os.environ if given["env"] is None else given["env"])
        at_start = _at_start(environment)
        if not self._repeats and at_start != _at_start(dict(os.environ)):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        request = {
            "words": words[1:],
            "cwd": os.fspath(given["cwd"] or Path.cwd()),
            "env": environment,
            "session": given["start_new_session"],
        }
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        theirs = [pipes[0], pipes[3], pipes[5]]
        self.pid = _server(self._preload, at_start).start(
            request, [number if file == -1 else file for number, file in enumerate(theirs)]
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(command: list[Any], **options: Any) -> "subprocess.CompletedProcess[Any]":
    """``subprocess.run(command, ...)`` in a warm process."""
    check, timeout = options.pop("check", False), options.pop("timeout", None)
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


# --- the server -------------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Returns in the process of each program, with the request."""
    while True:
        message, rights, _, _ = requests.recvmsg(_MESSAGE_MAX, socket.CMSG_LEN(3 * 4))
        if not message:
            os._exit(0)
        files = array.array("i", rights[0][2])
        read_end, write_end = os.pipe()
        forked = os.fork()  # 2
        if forked == 0:
            if os.fork() != 0:
                os._exit(0)
            request = dict(json.loads(message))
            if request["session"]:
                os.setsid()  # 3
            os.write(write_end, str(os.getpid()).encode())
            requests.close()
            os.close(read_end)
            os.close(write_end)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return request
        os.waitpid(forked, 0)  # the program is the test's child from here on
        os.close(write_end)
        requests.send(os.read(read_end, 64))  # empty: the program has ended
        for file in (*files, read_end):
            os.close(file)


def _become(
    request: dict[str, Any], given_filters: list[Any], filters_of_torch: list[Any]
) -> tuple[Any, dict[str, Any]]:
    """4. Returns the code of the program and the names of its main module."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    words = request["words"]
    options = []
    while words[0] == "-W":
        options.append(words[1])
        words = words[2:]
    sys.warnoptions[:] = options
    warnings.filters[:] = given_filters  # type: ignore[index]
    warnings._processoptions(options)  # type: ignore[attr-defined]
    warnings.filters[:0] = filters_of_torch  # type: ignore[index]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if words[0] == "-c":
        text, name = words[1], "<string>"
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
    else:
        text, name = Path(words[0]).read_text(), words[0]
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent.resolve())
        main.__dict__["__file__"] = name
    return compile(text, name, "exec"), main.__dict__


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _given = list(warnings.filters)
    import gc
    import importlib

    import torch.distributed.checkpoint
    import torch.distributed.tensor  # noqa: F401

    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    _added = [_filter for _filter in warnings.filters if _filter not in _given]
    gc.freeze()
    exec(*_become(_serve(socket.socket(fileno=int(sys.argv[1]))), _given, _added))
