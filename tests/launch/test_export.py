"""The command that exports a rule: what it refuses. `test_discover` exports a run's rule."""

import dataclasses
import json

import pytest

from launch.export import export
from tests.launch.common import outcome, start
from tests.launch.discover_tiny import get_settings


def test_folder_that_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="is not the workdir of a discovery run"):
        export(str(tmp_path / "none"), str(tmp_path / "rule.npz"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not the workdir of a discovery run"):
        export(str(tmp_path), str(tmp_path / "rule.npz"))


def test_run_without_checkpoint(tmp_path):
    # Of a machine with more devices than this one.
    settings = dataclasses.replace(get_settings(), devices_per_agent=64)
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(settings)))
    output = tmp_path / "rule.npz"
    status, said = outcome(start("launch.export", f"--workdir={tmp_path}", f"--output={output}"))
    assert status == 2
    assert f"launch.export: '{tmp_path}' has no checkpoint yet." in said
    assert "Traceback" not in said
    assert not output.exists()
