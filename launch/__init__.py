"""The commands: a module each, and `launch.support`, what they share."""

import importlib.util
import sys

if importlib.util.find_spec("absl") is None:  # Said before a command imports it.
    sys.exit("The commands need more packages: pip install --editable '.[platform]' in a checkout.")
