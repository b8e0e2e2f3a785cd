"""The commands."""

import os
import sys

from launch.support import start


def require_platform() -> None:
    """End the program with what to install, if the packages that commands need are missing."""
    from environments import MissingPackageError  # It takes a second.

    try:
        import agents  # noqa: F401
    except MissingPackageError as error:
        raise SystemExit(str(error)) from None


_module = start.module_to_run()
start.end_at_interrupts(_module)
start.begin(_module, sys.argv)
# The lists of commands, and the script `disco`, answer some questions without those packages.
if _module not in ("launch", "launch.support.help") and os.path.basename(sys.argv[0]) != "disco":
    require_platform()
