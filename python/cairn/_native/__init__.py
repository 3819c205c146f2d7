"""The planners, storages and stagers of torch's protocol that the engine stands in for."""
