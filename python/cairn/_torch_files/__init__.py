"""Files of ``torch.save``: conversion to a checkpoint and back, reading in boxes, reading as a saved state."""
