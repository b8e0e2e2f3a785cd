"""The trainer: one training loop for all agents, with JAX or host environments."""
