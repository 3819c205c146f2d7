"""The names of ``torch.distributed.checkpoint`` under ``cairn``, and their objects."""
