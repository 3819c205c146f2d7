"""`import cairn` is quick and needs no torch; the functions that need torch raise an error that names torch."""

import re
from pathlib import Path

from programs import WITHOUT_TORCH, run

import cairn

ROOT = Path(__file__).resolve().parents[2]


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    import torch

    state = {"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2).bfloat16(), "n": {"lr": 0.5}}
    cairn.save(state, checkpoint_id=tmp_path)
    program = WITHOUT_TORCH + (
        "import cairn\n"
        "opened = cairn.open(sys.argv[1])\n"
        "assert sorted(opened) == ['half', 'n.lr', 'w']\n"
        "assert opened['w'].tolist() == [[0, 1, 2], [3, 4, 5]]\n"
        "assert opened.read('w', (1, slice(1, 3))).tolist() == [4, 5]\n"
        "assert cairn.open(sys.argv[1], tensors='integers')['half'].nbytes == 4\n"
        "try:\n"
        "    cairn.open(sys.argv[1], tensors='torch')['w']\n"
        "except ModuleNotFoundError as error:\n"
        "    assert 'needs torch' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('torch is there')\n"
        "assert opened['n.lr'] == 0.5\n"
        "assert cairn.verify(sys.argv[1])\n"
        "assert 'torch' not in sys.modules\n"
        "print('read')"
    )
    assert run(program, str(tmp_path)) == "read"


def test_calls_that_need_torch_name_torch() -> None:
    program = WITHOUT_TORCH + (
        "import cairn\n"
        "for name in ('save', 'load', 'FileSystemWriter', 'DefaultLoadPlanner'):\n"
        "    assert not hasattr(cairn, name) and name not in cairn.__all__\n"
        "    try:\n"
        "        getattr(cairn, name)\n"
        "    except AttributeError as error:\n"
        "        assert f'cairn.{name} needs torch' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(name)\n"
        "    try:\n"
        "        exec(f'from cairn import {name}')\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert f\"'cairn.{name}'\" in str(error) and 'need torch' in str(error), error\n"
        "        assert error.name == 'torch'\n"
        "    else:\n"
        "        raise AssertionError(name)\n"
        "assert not hasattr(cairn, 'nonsense')"
    )
    run(program)


def test_help_and_star_imports_need_no_torch() -> None:
    program = WITHOUT_TORCH + (
        "import pydoc, cairn\n"
        "told = ''.join(pydoc.plain(pydoc.render_doc(cairn)).split())\n"  # Python 3.14 breaks long signatures
        "assert 'verify(directory' in told and 'read(directory' in told\n"
        "from cairn import *\n"
        "assert Checkpoint is cairn.Checkpoint and latest is cairn.latest\n"
        "assert 'torch' not in sys.modules"
    )
    run(program)


def test_import_loads_neither_torch_nor_numpy_nor_unused_modules() -> None:
    program = """
        import sys
        before = set(sys.modules)
        import cairn
        loaded = set(sys.modules) - before
        foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
        assert foreign == {"cairn", "nanobind_backend"}, foreign
        slow = loaded & {"asyncio", "concurrent.futures", "dataclasses", "inspect", "logging", "subprocess"}
        assert not slow, slow
        assert "cairn._calls.async_save" not in loaded
    """
    run(program)


def test_every_name_that_is_promised_is_there() -> None:
    for name in cairn.__all__:
        assert getattr(cairn, name) is not None
        assert name in dir(cairn)


def test_an_older_torch_is_refused_with_one_message() -> None:
    program = """
        import torch
        torch.__version__ = "2.6.0+cu124"
        import cairn
        for name in ("save", "AsyncSaver", "DefaultLoadPlanner", "AsyncCheckpointerType", "install"):
            try:
                getattr(cairn, name)
            except ImportError as error:
                assert str(error).startswith("Cairn needs torch ≥ 2.9; this is 2.6.0+cu124."), error
            else:
                raise AssertionError(name)
        for module in ("filesystem", "staging"):
            try:
                exec(f"import cairn.{module}")
            except ImportError as error:
                assert "needs torch ≥" in str(error), error
            else:
                raise AssertionError(module)
        assert cairn.open and cairn.verify and cairn.latest
    """
    run(program)


def test_the_oldest_torch_is_the_one_that_is_declared() -> None:
    from cairn._torch_names.torch_floor import OLDEST

    declared = re.search(r'torch = \["torch>=([\d.]+)"\]', (ROOT / "pyproject.toml").read_text())
    assert declared and declared[1] == ".".join(map(str, OLDEST))
    versions = re.search(r'^VERSIONS = \("([\d.]+)"', (ROOT / "compat/compat.py").read_text(), re.MULTILINE)
    assert versions and versions[1].startswith(f"{declared[1]}.")
