"""Studies of one rule: what its predictions mean, and how sensitive its agents are."""
