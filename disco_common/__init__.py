"""Utilities that several top-level packages share. Imports none of these packages."""
