"""Local checkpoints, with the interface of NVRx's: each rank keeps its part of the state on its own node."""
