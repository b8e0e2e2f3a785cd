"""Scores that papers report, as data: `evaluation.published_scores` reads them."""
