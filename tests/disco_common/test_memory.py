"""Free memory is bounded by the machine and by control groups."""

import psutil
import pytest

from disco_common import memory

GROUP_FILES = {
    "v2": ("0::/jobs/mine\n", "jobs", ("memory.max", "memory.current", "inactive_file")),
    "v1": (
        "4:cpu:/other\n3:memory:/jobs/mine\n",
        "memory/jobs",
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ),
}


@pytest.mark.parametrize("version", GROUP_FILES)
def test_control_groups_bound_the_free_memory(tmp_path, monkeypatch, version):
    memberships, folder, (limit, used, droppable) = GROUP_FILES[version]
    (tmp_path / "cgroup").write_text(memberships)
    own = tmp_path / folder / "mine"
    own.mkdir(parents=True)
    for place, bound in ((own, "max"), (own.parent, "1000000")):
        (place / limit).write_text(bound)
        (place / used).write_text("900000")
        (place / "memory.stat").write_text(f"file 5\n{droppable} 300000\n")
    monkeypatch.setattr(memory, "_MEMBERSHIPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_CONTROL_GROUPS", tmp_path)
    assert memory.free_memory() == 400_000
    (own / limit).write_text("950000")
    assert memory.free_memory() == 350_000
    monkeypatch.setattr(memory, "_MEMBERSHIPS", tmp_path / "none")
    available = psutil.virtual_memory().available
    assert memory.free_memory() == pytest.approx(available, rel=0.2)
