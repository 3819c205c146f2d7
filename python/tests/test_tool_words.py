"""The tool's words: misspelled words, completion in shells, and `python -m cairn`."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tool import OK, UNREADABLE, USAGE, run, text_of, tool

import cairn

COMMANDS = [
    *("ls", "inspect", "verify", "diff", "cat", "status", "watch", "clean", "repair", "prune"),
    *("rm", "pin", "unpin", "doctor", "bench", "trace", "convert", "reshard"),
    *("completion", "help"),
]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspct", "d"], "no command 'inspct'; did you mean 'inspect'?"),
        (["vreify", "d", "--json"], "no command 'vreify'; did you mean 'verify'?"),
        (["comp", "bash"], "no command 'comp'; did you mean 'completion'?"),
        (["frobnicate"], "no command 'frobnicate'\n"),
        (["in\x1bspect"], "no command 'in\\x1bspect'; did you mean 'inspect'?"),
        (["verify", "d", "--jsn"], "no option '--jsn'; did you mean '--json'?"),
        (["verify", "--folow-links", "d"], "no option '--folow-links'; did you mean '--follow-links'?"),
        (["inspect", "--dept=3", "d"], "no option '--dept'; did you mean '--depth'?"),
        (["inspect", "--jsn"], "no option '--jsn'; did you mean '--json'?"),
        (["--versoin"], "no option '--versoin'; did you mean '--version'?"),
        (["ls", "--colour", "d"], "no option '--colour'\n"),
        (
            [],
            "a command is needed: ls, inspect, verify, diff, cat, status, watch, clean, repair, prune, rm, pin, ",
        ),
    ],
)
def test_a_wrong_word_names_the_near_one(words: list[str], said: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert done.stderr.decode().startswith(f"cairn: {said}")
    assert "--help'." in done.stderr.decode()


@pytest.mark.parametrize("command", ["inspect", "verify", "ls"])
def test_a_directory_without_a_checkpoint_names_the_next_command(command: str, tmp_path: Path) -> None:
    missing = run(command, tmp_path / "nope").stderr.decode()
    assert missing.count("no such directory") == 1
    assert "No such file or directory" not in missing
    if command == "ls":
        return
    assert f"Try 'cairn status {tmp_path}'" in run(command, tmp_path).stderr.decode()
    cairn.save({"step": 1}, checkpoint_id=tmp_path / "step-1", no_dist=True)
    parent = run(command, tmp_path)
    assert parent.returncode == UNREADABLE
    assert "found step-1" in parent.stderr.decode()
    assert f"Try 'cairn ls {tmp_path}'" in parent.stderr.decode()


@pytest.mark.parametrize(
    ("pattern", "near"), [("modle", "model"), ("model.layer", "model.layers"), ("stpe", "step"), ("x*", None)]
)
def test_inspect_names_the_key_near_a_pattern_without_matches(pattern: str, near: str | None, tmp_path: Path) -> None:
    cairn.save({"model": {"layers": [0, 1]}, "step": 1}, checkpoint_id=tmp_path, no_dist=True)
    hint = f"; did you mean '{near}'?" if near else ""
    assert run("inspect", tmp_path, pattern).stderr.decode() == f"cairn: no key matches '{pattern}'{hint}\n"


def completed_by_bash(words: list[str], folder: Path) -> list[str]:
    """Returns bash's completions of the last word."""
    program = 'eval "$(cairn completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cairn; '
    program += '[[ ${#COMPREPLY[@]} == 0 ]] || printf "%s\\n" "${COMPREPLY[@]}"'
    environment = {**os.environ, "PATH": f"{Path(tool()).parent}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", program, "bash", "cairn", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=folder, env=environment
    ).stdout.splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_paths(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step 2").mkdir()
    (tmp_path / "step.pt").touch()
    assert completed_by_bash([""], tmp_path) == COMMANDS
    assert completed_by_bash(["ins"], tmp_path) == ["inspect"]
    assert "--version" in completed_by_bash(["--"], tmp_path)
    assert completed_by_bash(["inspect", "--d"], tmp_path) == ["--depth"]
    assert completed_by_bash(["verify", "step-1", "--fol"], tmp_path) == ["--follow-links"]
    assert sorted(completed_by_bash(["ls", "st"], tmp_path)) == ["step 2", "step-1", "step.pt"]
    assert completed_by_bash(["completion", "z"], tmp_path) == ["zsh"]
    assert completed_by_bash(["help", "ver"], tmp_path) == ["verify"]
    assert completed_by_bash(["frobnicate", "s"], tmp_path) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_readable_by_its_shell_and_names_every_command_and_option(shell: str, tmp_path: Path) -> None:
    script = text_of("completion", shell)
    for word in [*COMMANDS, "depth", "follow-links", "json", "version"]:
        assert word in script
    (tmp_path / "script").write_text(script)
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell} to read the script")
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()

    def completed(line: str) -> list[str]:
        program = f"cairn completion fish | source; complete -C '{line}'"
        environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(tool()).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["fish", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
        )
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    assert set(completed("cairn ")) == set(COMMANDS)
    assert completed("cairn inspect --dep") == ["--depth"]
    assert completed("cairn ls st") == ["step-1/"]
    assert set(completed("cairn completion ")) == {"bash", "zsh", "fish"}


def test_help_is_the_text_of_the_option() -> None:
    assert text_of("help") == text_of("--help")
    for command in COMMANDS:
        text = text_of("help", command)
        assert text == text_of(command, "--help")
        assert "Examples:\n  " in text
        assert f"cairn {command}" in text.partition("Examples:")[2]
    done = run("help", "vreify")
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert done.stderr.decode() == "cairn: no command 'vreify'; did you mean 'verify'?\nTry 'cairn --help'.\n"


def test_the_manual_has_the_text_of_help() -> None:
    manual = text_of("help", "--man")
    assert manual.startswith(f'.TH CAIRN 1 "" "cairn {cairn.__version__}"')
    words = " ".join(manual.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\").split())
    for command in COMMANDS:
        assert f".SS {command} " in words
        for line in text_of("help", command).splitlines():
            option = line.split()[0] if line.startswith("  --") else None
            assert option is None or f"\\fB{option}\\fR" in words
            example = line.strip() if line.startswith("  cairn ") else ""
            assert " ".join(example.split()) in words
    assert "Every byte against its checksum" in words
    if shutil.which("groff") is None:
        pytest.skip("needs groff to format the manual")
    formatted = subprocess.run(
        ["groff", "-man", "-ww", "-T", "utf8"], input=manual, capture_output=True, text=True, check=True
    )
    assert formatted.stderr == ""


def test_an_unknown_shell_is_exit_code_2() -> None:
    done = run("completion", "tcsh")
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert b"zsh" in done.stderr


def as_module(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "cairn", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, timeout=240)


def test_python_m_cairn_is_the_tool(tmp_path: Path) -> None:
    assert as_module("--version").stdout.decode() == f"cairn {cairn.__version__}\n"
    for words in (["--help"], ["ls", tmp_path], ["inspct", tmp_path], ["status", tmp_path], []):
        module, program = as_module(*words), run(*words)
        assert (module.returncode, module.stdout, module.stderr) == (
            program.returncode,
            program.stdout,
            program.stderr,
        )
    assert (as_module("status", tmp_path).returncode, as_module("ls", tmp_path).returncode) == (OK, UNREADABLE)


def test_python_m_cairn_without_the_tool_names_the_searched_paths(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "python" / "cairn"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(Path(cairn.__file__).parent / "__main__.py", package)
    home = tmp_path / "home"
    # A virtual environment whose bin has a python and no tool.
    (home / "bin").mkdir(parents=True)
    (home / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (home / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    environment = {"PYTHONPATH": str(package.parent), "HOME": str(tmp_path), "PATH": "/nowhere"}
    command = [home / "bin" / "python", "-m", "cairn", "ls", "."]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (UNREADABLE, b"")
    assert f"'{home / 'bin' / 'cairn'}'" in done.stderr.decode()
    for place in (home / "bin" / "cairn", package.parent / "bin" / "cairn"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("#!/bin/sh\necho $0 $@; kill -TERM $$\n")
        place.chmod(0o755)
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert (done.returncode, done.stdout.decode()) == (-signal.SIGTERM, f"{place} ls .\n")
        place.unlink()
