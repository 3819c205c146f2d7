"""NumPy's random number generators: seeds, bit generators, and the generators on top of these.

A state from a file is checked before NumPy gets the state: NumPy reads a word at any position that a state names.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cairn._known_objects import Builder, Description, attributes, expect, of_types

_NONE = type(None)
_MT19937_WORDS = 624
_PHILOX_WORDS = 4
# Time grows with the square of each.
_POOL_WORDS_MAX = 64
_SEED_NUMBERS_MAX = 256
_SEED_BITS_MAX = 1 << 12
_CLASSES: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}


def _seed_sequence(description: Description) -> np.random.SeedSequence:
    """``__pyx_unpickle_SeedSequence(class, checksum, None)``; state: entropy, children, pool, words of it, key."""
    expect(not description.by_new and description.items is None)
    kind, _, none = of_types(description.arguments, type, int, _NONE)
    expect(kind is np.random.SeedSequence and none is None)
    entropy, children, pool, pool_words, key = of_types(
        description.state, (int, list, tuple), int, np.ndarray, int, tuple
    )
    expect(children >= 0 and 4 <= pool_words <= _POOL_WORDS_MAX)
    numbers = (*key, *(entropy if isinstance(entropy, (list, tuple)) else (entropy,)))
    expect(len(numbers) <= _SEED_NUMBERS_MAX)
    expect(all(type(number) is int and number.bit_length() <= _SEED_BITS_MAX for number in numbers))
    made = np.random.SeedSequence(entropy, spawn_key=key, pool_size=pool_words, n_children_spawned=children)
    expect(np.array_equal(made.pool, pool))
    return made


def _bit_generator(description: Description) -> Any:
    """``__bit_generator_ctor(class or its name)`` and the state, since NumPy 2 with the seed."""
    expect(not description.by_new and description.items is None and len(description.arguments) == 1)
    seed: Any = 0
    state = description.state
    if type(state) is tuple:
        state, seed = of_types(state, dict, (np.random.SeedSequence, _NONE))
    return _made(description.arguments[0], state, seed)


def _made(kind: Any, state: Any, seed: Any = 0) -> Any:
    made = (_CLASSES[kind] if type(kind) is str else kind)(0 if seed is None else seed)
    expect(type(made) in _CLASSES.values())
    made.state = _checked(type(made).__name__, attributes(state))
    return made


def _checked(name: str, state: dict[str, Any]) -> dict[str, Any]:
    expect(state.get("bit_generator") == name)
    inner = state["state"]
    if name == "MT19937":
        expect(_words(inner["key"], np.uint32, _MT19937_WORDS))
        expect(type(inner["pos"]) is int and 0 <= inner["pos"] <= _MT19937_WORDS)
    elif name == "Philox":
        expect(_words(inner["counter"], np.uint64, 4) and _words(inner["key"], np.uint64, 2))
        expect(_words(state["buffer"], np.uint64, _PHILOX_WORDS))
        expect(type(state["buffer_pos"]) is int and 0 <= state["buffer_pos"] <= _PHILOX_WORDS)
    elif name == "SFC64":
        expect(_words(inner["state"], np.uint64, 4))
    else:
        expect(type(inner["state"]) is int and type(inner["inc"]) is int)
        expect(0 <= inner["state"] < 1 << 128 and 0 <= inner["inc"] < 1 << 128)
    return state


def _words(array: Any, dtype: Any, count: int) -> bool:
    return type(array) is np.ndarray and array.dtype == dtype and array.shape == (count,)


def _generator(description: Description) -> np.random.Generator:
    """``__generator_ctor(bit generator)``; before NumPy 1.24 its name, and its state."""
    return np.random.Generator(_source(description))


def _random_state(description: Description) -> np.random.RandomState:
    """``__randomstate_ctor(bit generator)`` and a state, which holds the bit generator's state too."""
    state = attributes(description.state)
    made = np.random.RandomState(_source(description))
    expect(type(state["has_gauss"]) is int and type(state["gauss"]) is float)
    made.set_state(_checked("MT19937", state))
    return made


def _source(description: Description) -> Any:
    expect(not description.by_new and description.items is None and len(description.arguments) == 1)
    (source,) = description.arguments
    return _made(source, description.state) if type(source) is str else _known(source)


def _known(source: Any) -> Any:
    expect(type(source) in _CLASSES.values())
    return source


CONSTANTS: Mapping[tuple[str, str], Any] = {
    ("numpy.random.bit_generator", "SeedSequence"): np.random.SeedSequence,
    **{(kind.__module__, name): kind for name, kind in _CLASSES.items()},
}
BUILDERS: Mapping[tuple[str, str], Builder] = {
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"): _seed_sequence,
    ("numpy.random._pickle", "__bit_generator_ctor"): _bit_generator,
    ("numpy.random._pickle", "__generator_ctor"): _generator,
    ("numpy.random._pickle", "__randomstate_ctor"): _random_state,
}
