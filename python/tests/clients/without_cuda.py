"""Stand-ins for the calls that control CUDA, for clients that make the calls although all tensors are on the CPU.

The program imports this module before the client. Spawned processes import the main program again, and the module too.
"""

import torch

# Each name gets its own function: torch's compiler, which the clients import, refuses a function with two names.
torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda device: None  # type: ignore[assignment]
torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]
