"""The functions that the package exports for torch programs: save, load, async_save, install, conversion."""
