"""A switch that ``cairn.install`` sets for all calls that leave its keyword at None."""


class InstalledSwitch:
    """`value`: what ``install`` was given, None if nothing; `is_installed`: whether ``install`` is in force."""

    def __init__(self) -> None:
        self.value: bool | None = None
        self.is_installed = False

    def note_installation(self, value: bool | None) -> None:
        """For ``cairn.install``. None leaves an earlier value in force."""
        self.is_installed = True
        self.value = self.value if value is None else value

    def note_removal(self) -> None:
        """For ``cairn.uninstall``."""
        self.is_installed = False
        self.value = None
