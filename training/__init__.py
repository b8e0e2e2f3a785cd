"""The trainer: one loop for every agent, on the device or beside host environments."""
