"""The names of ``torch.distributed.checkpoint`` under ``cairn``, and the objects that they stand for."""
