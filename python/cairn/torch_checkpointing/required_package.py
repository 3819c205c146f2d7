"""The installed package ``torch_checkpointing``, which the classes of ``cairn.torch_checkpointing`` derive from."""

import importlib.util

OLDEST = "0.1.1"


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("torch_checkpointing") is not None
    except ModuleNotFoundError:
        return False


def check() -> None:
    """Raises ModuleNotFoundError if torch_checkpointing is missing, and ImportError if the package is older than
    `OLDEST`."""
    if not _is_installed():
        raise ModuleNotFoundError(
            f"cairn.torch_checkpointing needs Meta's package: pip install 'torch_checkpointing>={OLDEST}'",
            name="torch_checkpointing",
        )
    if importlib.util.find_spec("torch_checkpointing.default_resharder") is None:
        from torch_checkpointing.version import __version__

        raise ImportError(
            f"cairn.torch_checkpointing needs torch_checkpointing {OLDEST} or later, found {__version__}: "
            f"pip install --upgrade torch_checkpointing",
            name="torch_checkpointing",
        )


check()
