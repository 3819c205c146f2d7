"""Installation: whether ``cairn.install`` is in force in this process, and the arguments that it was given."""

import os
import threading
from typing import TYPE_CHECKING

from cairn._process import ProcessPart, part

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


class Installation(ProcessPart):
    """A forked child inherits the installation: its modules hold Cairn's objects too."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while install() or uninstall() runs
        self.is_installed = False
        #: For calls that leave their own argument at None. None: ``install`` was not given a value.
        self.allow_pickle: bool | None = None
        self.allow_cast: bool | None = None
        self.follow_links: bool | None = None
        self.async_checkpointer_type: AsyncCheckpointerType | None = None
        #: Module and name of each reference to an object of Cairn that was there before the installation.
        self.earlier_references: set[tuple[str, str]] = set()

    def in_child(self) -> "Installation":
        """The same object, with a lock that no thread holds."""
        self.lock = threading.RLock()
        return self

    def forget(self) -> None:
        """Sets all that ``install`` has set back to what it was."""
        self.is_installed = False
        self.allow_pickle = self.allow_cast = self.follow_links = self.async_checkpointer_type = None
        self.earlier_references = set()


def permitted(argument: bool | None, setting: str, variable: str) -> bool:
    """Returns a permission of a call: the call's own `argument`; for None the attribute `setting` of the installation;
    for None there, whether the environment variable is 1."""
    if argument is not None:
        return argument
    installed: bool | None = getattr(part(Installation), setting)
    return os.environ.get(variable) == "1" if installed is None else installed
