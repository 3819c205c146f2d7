"""Settings for all calls of this process, and the rules by which a call applies the settings."""
