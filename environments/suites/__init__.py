"""One module or package per suite: its environments, protocol and papers."""
