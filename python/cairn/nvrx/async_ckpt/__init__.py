"""Asynchronous checkpoints: the modules of ``nvidia_resiliency_ext.checkpointing.async_ckpt``."""
