"""Results of a call in torch's classes: the Metadata, and the attributes of the caller's planner and storage."""
