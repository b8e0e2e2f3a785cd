"""What evaluations write, finished evaluations read from disk, and the report of them."""
