"""The files that evaluations write, and the report of stored evaluations."""
