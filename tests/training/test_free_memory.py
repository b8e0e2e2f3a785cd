"""Free memory is bounded by the machine and by control groups."""

import psutil
import pytest

from training import memory_budget


def test_control_groups_bound_the_free_memory(tmp_path, monkeypatch):
    (tmp_path / "cgroup").write_text("0::/jobs/mine\n")
    own = tmp_path / "jobs" / "mine"
    own.mkdir(parents=True)
    for place, bound in ((own, "max"), (own.parent, "1000000")):
        (place / "memory.max").write_text(bound)
        (place / "memory.current").write_text("900000")
        (place / "memory.stat").write_text("file 5\ninactive_file 300000\n")
    monkeypatch.setattr(memory_budget, "_MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(memory_budget, "_CONTROL_GROUPS", tmp_path)
    assert memory_budget.free_memory() == 400_000
    (own / "memory.max").write_text("950000")
    assert memory_budget.free_memory() == 350_000
    monkeypatch.setattr(memory_budget, "_MEMBERSHIP", tmp_path / "none")
    available = psutil.virtual_memory().available
    assert memory_budget.free_memory() == pytest.approx(available, rel=0.2)
