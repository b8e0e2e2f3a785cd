"""The trainer: collection, replay, updates, records and checkpoints of agents.

Its backends are `device` (JAX environments) and `host` (simulators). `self_contained` records
agents that train themselves. Discovery (`meta`) uses collection and replay in its own inner loop.
"""
