"""Scores of runs: their normalisation, statistics over runs and tasks, and comparisons."""
