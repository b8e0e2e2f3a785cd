"""One module or package per suite: its environments, protocol, papers and default settings."""
