"""The warnings of Cairn: one class per fact that a caller may want to filter or to turn into an error."""

from typing import TYPE_CHECKING

from cairn._torch_names import modules


class PickleWarning(UserWarning):
    """A saved value can be loaded only with ``allow_pickle=True``."""


class ConversionWarning(UserWarning):
    """A load converted tensors from one dtype to another."""


class DamageWarning(UserWarning):
    """A part of a checkpoint is damaged, and another part that holds the same was read in its place."""


class IgnoredKeysWarning(UserWarning):
    """A load loaded nothing, or left out keys below a dict that is empty in the state dict to load."""


class DeviceWarning(UserWarning):
    """Tensors inside a value are on the CPU because this process lacks the device from which they were saved."""


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
