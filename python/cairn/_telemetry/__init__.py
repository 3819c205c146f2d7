"""Reports about calls: the counts of ``cairn.report`` and the records of torch's ``dcp_logger``."""
