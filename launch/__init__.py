"""The commands."""

import sys

from launch import start

_module = start.module_to_run()
start.begin(_module, sys.argv)

if _module not in ("launch", "launch.help"):
    from environments import MissingPackageError

    try:
        import agents  # noqa: F401
    except MissingPackageError as error:
        raise SystemExit(str(error)) from None
