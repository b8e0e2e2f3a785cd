"""What is said where a package is missing."""

import sys
from importlib import metadata

import pytest

from environments.errors import how_to_install


def test_an_extra_is_installed_by_this_projects_name():
    sentence = how_to_install("crafter")
    assert "`pip install --editable '.[crafter]'` in a checkout" in sentence
    assert "'disco-update-rules[crafter]'" in sentence


@pytest.mark.parametrize("minor", [sys.version_info.minor, sys.version_info.minor + 1])
def test_an_engine_without_a_release_for_this_python(minor, monkeypatch):
    requirement = f'an-engine>=1; python_version < "3.{minor}" and extra == "engine"'
    monkeypatch.setattr(metadata, "requires", lambda name: ["an-engine", requirement])
    sentence = how_to_install("engine")
    if minor == sys.version_info.minor:
        assert f"expected a Python older than 3.{minor}" in sentence
        assert f"`make install PYTHON=python3.{minor - 1}`" in sentence
        assert "pip install" not in sentence
    else:
        assert "pip install --editable '.[engine]'" in sentence


def test_an_uninstalled_checkout_still_says_what_to_do(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert "'.[nethack]'" in how_to_install("nethack")
