"""Scores that papers report, as JSON files, and the papers' own aggregates of them."""
