"""Without a device: training the cost model on logs, and judging model and search on what was recorded."""
