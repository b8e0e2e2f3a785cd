"""Names that users choose: printed as they are, or refused."""

import pytest

from disco_common.terminal import console, printable, require_printable
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders, rule_contenders

HARMLESS = (r"a$\foo$", "mine[a]", "p[/bold]", "_hidden", ":smile:", "<b>", "Å-漢字", "%{x}", "{0}")
REFUSED = ("red\x1b[31m", "two\nlines", "bell\x07", "csi\x9b31m", "not utf-8 \udcff", "line\u2028")


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_names_are_printed_as_they_are(name, capsys):
    assert printable(name) == name
    require_printable("The name", name)
    console().print(name)
    assert capsys.readouterr().out == f"{name}\n"


@pytest.mark.parametrize("name", REFUSED)
def test_other_names_are_printed_with_escapes(name):
    shown = printable(name)
    assert shown.isprintable()
    assert shown.encode().decode("unicode_escape") == name


@pytest.mark.parametrize("name", REFUSED)
def test_rules_of_such_names_are_refused(name):
    """Before their files are read: none is there."""
    with pytest.raises(ValueError, match=r"--rule '.*: the name '.*; expected others\.") as caught:
        make_contenders(rule_contenders([f"{name}.npz"], EvaluationConfig()), EvaluationConfig())
    assert str(caught.value).isprintable()
