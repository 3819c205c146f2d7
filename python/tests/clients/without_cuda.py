"""Stand-ins for the calls that control CUDA, for clients that make them though all their tensors are on the CPU.

Imported before the client, and by the processes that it spawns, which import the main program again.
"""

import torch

# A function for each: torch's compiler, which these clients import, refuses one that has two names.
torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda device: None  # type: ignore[assignment]
torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]
