"""Modules that take the place of simulators which cannot be installed here.

With this folder on the path, `import deepmind_lab` and `import minerl` find them. They have those
parts of the interface that the adapters use, refuse what the real ones refuse, and keep what they
were asked, for tests to see.
"""
