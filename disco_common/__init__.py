"""What several rooms need and none owns. Imports nothing of the others."""
