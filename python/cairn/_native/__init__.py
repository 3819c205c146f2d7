"""The planners, storages and stagers of torch's protocol that the engine can replace."""
