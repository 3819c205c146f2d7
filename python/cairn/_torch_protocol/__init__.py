"""Torch's protocol of saves and loads: the classes whose hooks the engine replaces, and the engine's work behind a
hook."""
