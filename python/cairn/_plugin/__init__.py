"""Cairn's storages under torch's driver: claims, and the items that torch's plans name."""
