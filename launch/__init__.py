"""The commands: a module each, and `launch.support`, what they share."""
