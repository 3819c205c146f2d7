"""A switch that ``cairn.install`` sets for all calls that leave the switch's keyword at None."""


class InstalledSwitch:
    """`value`: the argument of ``install``, None if not given; `is_installed`: whether ``install`` is in force."""

    def __init__(self) -> None:
        self.value: bool | None = None
        self.is_installed = False

    def note_installation(self, value: bool | None) -> None:
        """For ``cairn.install``. None keeps an earlier value."""
        self.is_installed = True
        self.value = self.value if value is None else value

    def note_removal(self) -> None:
        """For ``cairn.uninstall``."""
        self.is_installed = False
        self.value = None
