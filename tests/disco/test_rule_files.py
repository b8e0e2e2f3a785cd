"""Rule files: what is written is read again, and what is no rule is refused by name."""

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import warnings
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from tests.disco.common import SIZES, TRANSFORMER_SIZES, extended_rule, small_rule
from tests.golden import WEIGHTS, disco103

BIAS = "lstm/linear_1/b"
PROVENANCE = {"code": "0.1.0", "environments": "grid57", "budget": 1_000_000, "seed": 7}


def assert_same_rule(rule: disco.DiscoveredRule, other: disco.DiscoveredRule) -> None:
    assert jax.tree.structure(rule) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(rule), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def rule_file(tmp_path):
    """A good rule file."""
    path = tmp_path / "rule.npz"
    disco.save(small_rule(), path, PROVENANCE)
    return path


def read(path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def rewrite(path, **changed) -> None:
    """Writes a rule file with some arrays changed, or left out where None."""
    arrays: dict[str, Any] = read(path) | changed
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


def rewrite_header(path, **changed) -> None:
    header = json.loads(str(read(path)["header"])) | changed
    rewrite(path, header=np.array(json.dumps(header)))


# Good files.


def test_a_saved_rule_is_loaded_bit_for_bit(tmp_path):
    rule = small_rule(discount=0.9, lambda_=0.5, y_cost=0.25, target_params_coefficient=0.8)
    path = tmp_path / "rule.npz"
    disco.save(rule, path, PROVENANCE)
    assert_same_rule(disco.load(path), rule)
    assert_same_rule(disco.load(str(path)), rule)


@pytest.mark.parametrize(
    "rule",
    [extended_rule(), small_rule(sizes=TRANSFORMER_SIZES)],
    ids=["extended", "transformer"],
)
def test_other_rules_than_the_published_are_loaded_bit_for_bit(tmp_path, rule):
    path = tmp_path / "rule.npz"
    disco.save(rule, path)
    assert disco.load(path).sizes == rule.sizes
    assert_same_rule(disco.load(path), rule)


def without_architecture(path) -> None:
    """Makes a file as it was before architectures had names."""
    header = json.loads(str(read(path)["header"]))
    del header["architecture"]
    rewrite(path, header=np.array(json.dumps(header)))


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_the_header_names_the_architecture_and_older_files_are_read_without(tmp_path, name):
    rule = small_rule(sizes=SIZES if name == "lstm" else TRANSFORMER_SIZES)
    path = tmp_path / "rule.npz"
    disco.save(rule, path)
    assert disco.load_header(path)["architecture"] == rule.sizes.architecture == name
    without_architecture(path)
    assert "architecture" not in disco.load_header(path)
    assert_same_rule(disco.load(path), rule)


def test_the_sizes_of_a_published_file_are_those_of_its_arrays(rule_file):
    rewrite(rule_file, header=None)
    assert disco.load(rule_file).sizes == SIZES


@pytest.mark.parametrize("name", ["mamba", 3, None, ["lstm"], "transformer"])
def test_refuses_another_architecture(rule_file, name):
    rewrite_header(rule_file, architecture=name)
    refuses(rule_file, r"has the architecture .*; expected 'lstm' with sizes.transformer_layers 0")


def test_refuses_a_transformer_that_lacks_a_layer(tmp_path):
    path = tmp_path / "rule.npz"
    disco.save(small_rule(sizes=TRANSFORMER_SIZES), path)
    rewrite(path, **{"lstm/transformer/1/mixed/w": None})
    refuses(path, r"missing arrays \['lstm/transformer/1/mixed/w'\]")
    sizes = dataclasses.asdict(TRANSFORMER_SIZES) | {"transformer_layers": 10**12}
    rewrite_header(path, sizes=sizes)
    refuses(path, r"transformer_layers is 1000000000000; expected those of its \d+ arrays")


def test_refuses_a_number_of_action_features_that_means_nothing(rule_file):
    weight = np.zeros((1, 22, 5), np.float32)
    names = ("lstm/sequential", "lstm/~/meta_lstm/~unroll/sequential")
    rewrite(rule_file, **{f"{name}/conv1_d/w": weight for name in names}, header=None)
    refuses(rule_file, r"sizes\.action_features is 11; expected 9 or 10")


def test_the_header_describes_the_rule_and_its_provenance(rule_file):
    header = disco.load_header(rule_file)
    assert header["format_version"] == 1
    assert header["kind"] == "discovered"
    assert header["architecture"] == "lstm"
    assert header["sizes"] == dataclasses.asdict(SIZES)
    assert header["hyper_parameters"]["num_bins"] == 21
    assert header["hyper_parameters"]["discount"] == 0.997
    assert header["provenance"] == PROVENANCE


def test_the_published_file_survives_saving_and_loading(tmp_path):
    published = disco103()
    assert disco.load_header(WEIGHTS) == {}
    assert published.sizes == disco.MetaNetworkSizes()
    assert sum(leaf.size for leaf in jax.tree.leaves(published)) == 754_778
    path = tmp_path / "copy.npz"
    disco.save(published, path)
    assert_same_rule(disco.load(path), published)
    copy, original = read(path), read(WEIGHTS)
    assert set(copy) == set(original) | {"header"}
    for name, value in original.items():
        np.testing.assert_array_equal(copy[name], value)


def test_every_rule_of_the_zoo_loads():
    for name in disco.zoo():
        rule = disco.load(name)
        assert rule.output_shapes(3)["logits"] == (3,)
        assert disco.load_header(name)["provenance"]


# Bad files.


def refuses(path, message: str) -> None:
    with pytest.raises(disco.RuleFileError, match=message) as error:
        disco.load(path)
    assert str(path) in str(error.value)


def test_refuses_a_missing_file(tmp_path):
    path = tmp_path / "nothing.npz"
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz' does not exist.*The zoo has \["):
        disco.load(path)
    with pytest.raises(FileNotFoundError, match=r"'disco_999' does not exist.*The zoo has"):
        disco.load("disco_999")
    with pytest.raises(FileNotFoundError, match="is a directory"):
        disco.load(tmp_path)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.99])
def test_refuses_a_truncated_file(rule_file, fraction):
    content = rule_file.read_bytes()
    rule_file.write_bytes(content[: int(fraction * len(content))])
    refuses(rule_file, "truncated")


def test_refuses_a_file_with_a_flipped_byte(rule_file):
    content = bytearray(rule_file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    rule_file.write_bytes(content)
    refuses(rule_file, "damaged|not a rule file|plain arrays")


def test_refuses_what_is_not_npz(rule_file):
    rule_file.write_text("a rule")
    refuses(rule_file, r"not an npz archive \(6 bytes\)")
    with rule_file.open("wb") as file:
        np.save(file, np.zeros(3))
    refuses(rule_file, "not an npz archive")


def test_refuses_a_zip_of_something_else(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "text.txt").write_text("hello")
    path = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "files")
    with pytest.raises(disco.RuleFileError, match=r"archive\.zip"):
        disco.load(path)


def test_refuses_wrong_shapes(rule_file):
    rewrite(rule_file, **{"lstm/linear_1/w": np.zeros((3, 1), np.float32)})
    refuses(rule_file, r"'lstm/linear_1/w' has shape \(3, 1\); expected \(16, 1\)")


def test_refuses_a_scalar_where_an_axis_is_needed(rule_file):
    rewrite(rule_file, **{"lstm/linear_2/b": np.float32(0.0)})
    refuses(rule_file, r"'lstm/linear_2/b' has shape \(\)")


def test_refuses_a_vector_where_a_convolution_is_needed(rule_file):
    rewrite(rule_file, **{"lstm/sequential/conv1_d/w": np.zeros(18, np.float32)})
    refuses(rule_file, r"'lstm/sequential/conv1_d/w' has shape \(18,\); expected \(1, 18, 5\)")
    rewrite(rule_file, header=None)
    refuses(rule_file, r"'lstm/sequential/conv1_d/w' has shape \(18,\); expected 3 axes")


def test_refuses_missing_and_unknown_arrays(rule_file):
    rewrite(rule_file, **{BIAS: None, "extra": np.zeros(1, np.float32)})
    refuses(rule_file, rf"missing arrays \['{BIAS}'\], unknown arrays \['extra'\]")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_refuses_numbers_that_are_not_finite(rule_file, bad):
    rewrite(rule_file, **{BIAS: np.array([bad], np.float32)})
    refuses(rule_file, f"'{BIAS}' has 1 non-finite")


def test_refuses_arrays_that_are_not_floats(rule_file):
    rewrite(rule_file, **{BIAS: np.array([1])})
    refuses(rule_file, f"'{BIAS}' is int64; expected floats")


class Mischief:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("name", [BIAS, "header"])
def test_never_unpickles(rule_file, monkeypatch, name):
    monkeypatch.chdir(rule_file.parent)
    rewrite(rule_file, **{name: np.array([Mischief()], object)})
    refuses(rule_file, rf"something other than plain arrays \({name!r} has objects\)")
    assert not os.path.exists("unpickled")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (np.array("{"), "the header is not JSON"),
        (np.array("[1]"), "the header lacks"),
        (np.array("{}"), "the header lacks"),
        (np.array(["a", "b"]), "header"),
        (np.zeros(3), "header"),
    ],
)
def test_refuses_a_header_that_is_none(rule_file, header, message):
    rewrite(rule_file, header=header)
    refuses(rule_file, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99; this code reads 1"),
        ({"kind": "other"}, "of kind 'other'; expected 'discovered'"),
        ({"sizes": {"prediction": 3}}, "the header's sizes"),
        ({"sizes": dataclasses.asdict(SIZES) | {"prediction": 3}}, r"has shape \(.*\); expected"),
        ({"sizes": dataclasses.asdict(SIZES) | {"lifetime": 0}}, "sizes.lifetime is 0; expected"),
        ({"hyper_parameters": {"gamma": 1.0}}, r"unknown hyper-parameters \['gamma'\]"),
        ({"hyper_parameters": {"discount": 3.0}}, "discount is 3.0; expected 0 to 1"),
        ({"hyper_parameters": {"discount": "high"}}, "discount is 'high'; expected a number"),
        ({"hyper_parameters": {"num_bins": 21.5}}, "num_bins is 21.5; expected an integer"),
        ({"hyper_parameters": {"num_bins": True}}, "num_bins is True; expected an integer"),
        ({"hyper_parameters": {"has_lifetime": 1}}, "has_lifetime is 1; expected true or false"),
        ({"hyper_parameters": ["discount"]}, "hyper_parameters is .*expected names"),
        ({"hyper_parameters": None}, "hyper_parameters is None; expected names"),
    ],
)
def test_refuses_a_header_of_another_rule(rule_file, change, message):
    rewrite_header(rule_file, **change)
    refuses(rule_file, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": True}, "format version True; this code reads 1"),
        ({"format_version": 1.0}, r"format version 1\.0; this code reads 1"),
        ({"provenance": ["me"]}, r"provenance is \['me'\]; expected names"),
        ({"provenance": None}, "provenance is None; expected names"),
        ({"sizes": dataclasses.asdict(SIZES) | {"prediction": True}}, "sizes are .*integers"),
        ({"sizes": [1, 2]}, r"sizes are \[1, 2\]; expected integers"),
        ({"hyper_parameters": {"num_bins": 10**12 + 1}}, "num_bins is 1000000000001; expected"),
        ({"hyper_parameters": {"max_value": float("inf")}}, "max_value is inf; expected"),
        ({"hyper_parameters": {"max_value": 1e300}}, r"max_value is 1e\+300; expected"),
        ({"hyper_parameters": {"max_value": 10**400}}, "max_value is inf; expected"),
        ({"hyper_parameters": {"y_cost": float("inf")}}, "y_cost is inf; expected at least 0"),
        ({"hyper_parameters": {"y_cost": 1e300}}, r"y_cost is 1e\+300; expected at least 0"),
        ({"hyper_parameters": {"z_cost": float("nan")}}, "z_cost is nan; expected at least 0"),
        ({"kind": "x" * 10_000}, r"of kind 'x+\.\.\.x+'; expected 'discovered'"),
    ],
)
def test_refuses_a_header_that_means_nothing(rule_file, change, message):
    rewrite_header(rule_file, **change)
    refuses(rule_file, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 50_000, "the header is not JSON"),
        ('{"a":' * 50_000, "the header is not JSON"),
        ("9" * 5_000, "the header lacks format_version"),
        ('{"format_version": ' + "9" * 5_000 + "}", "the header lacks format_version, sizes or"),
    ],
    ids=["lists", "objects", "integer", "version"],
)
def test_refuses_a_header_that_exhausts_its_parser(rule_file, text, message):
    rewrite(rule_file, header=np.array(text))
    refuses(rule_file, message)


def test_refuses_floats_that_float32_cannot_hold(rule_file):
    rewrite(rule_file, **{BIAS: np.array([1e300])})
    refuses(rule_file, f"'{BIAS}' has 1 non-finite")


# Archives that are not to be trusted.


def edit_members(path, edit, compression=zipfile.ZIP_STORED) -> None:
    """Writes an archive again from the (name, content) pairs that `edit` makes of its members."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Of two members of one name.
        for name, content in edit(members):
            archive.writestr(name, content)


def npy(dtype: str, shape: str, data: bytes = b"", version: int = 1) -> bytes:
    """An array's file that says whatever one wants."""
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def with_bias(content: bytes):
    """An edit that puts other content in place of the bias."""
    return lambda members: [
        (name, content if name == f"{BIAS}.npy" else old) for name, old in members
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            npy("'<f4'", "(25000000000,)"),
            r"'lstm/linear_1/b' claims 100000000000 bytes .* and has 0",
        ),
        (npy("'<f4'", "(99999999999999999999,)"), "claims 399999999999999999996 bytes"),
        (npy("'<f4'", "(2,)", bytes(4)), "claims 8 bytes .* and has 4"),
        (npy("'<f4'", "(1,)", bytes(8)), "claims 4 bytes .* and has 8"),
        (npy("'<f4'", "(-1,)", bytes(4)), "is damaged"),
        (npy("'<f4'", "(True,)", bytes(4)), "is damaged"),
        (npy("'<f4'", "(" * 900), "is damaged"),
        (npy("'<f4'", "-" * 1500 + "1"), "is damaged"),
        (npy("'|O'", "(1,)", bytes(8)), "pickled objects are never loaded"),
        (npy("'<c8'", "(1,)", bytes(8)), "is complex64; expected floats"),
        (npy("'none'", "(1,)", bytes(8)), "is damaged"),
        (npy("'<f4'", "(1,)", bytes(4), version=3), r"npy format \(3, 0\)"),
        (npy("'<f4'", "(1,)", bytes(4))[:20], "is damaged"),
        (b"", "is damaged"),
    ],
)
def test_refuses_an_array_that_claims_what_is_not_so(rule_file, content, message):
    edit_members(rule_file, with_bias(content))
    refuses(rule_file, message)


def test_refuses_a_small_file_of_gigabytes_before_it_reads_them(rule_file):
    """Zeros; they would unpack to 1.2 GB."""
    size = 300_000_000
    block = bytes(1 << 20)
    with (
        zipfile.ZipFile(rule_file, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("zeros.npy", "w") as member,
    ):
        member.write(npy("'<f4'", f"({size},)"))
        for _ in range(4 * size // len(block)):
            member.write(block)
        member.write(bytes(4 * size % len(block)))
    before = peak_memory()
    refuses(rule_file, r"claims 12\d+ bytes of arrays in a file of \d+ bytes; expected at most")
    assert peak_memory() - before < 100e6


def peak_memory() -> float:
    """Bytes that this process has had at most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_refuses_two_arrays_of_one_name(rule_file):
    edit_members(rule_file, lambda members: [*members, members[0]])
    refuses(rule_file, r"holds two arrays '.*'; expected each once")


def test_refuses_a_member_without_a_suffix_beside_its_array(rule_file):
    edit_members(rule_file, lambda members: [*members, (BIAS, b"text")])
    refuses(rule_file, f"holds '{BIAS}', which is not an array; expected names that end in '.npy'")


def test_refuses_other_compressions_and_encryption(rule_file):
    edit_members(rule_file, list, zipfile.ZIP_BZIP2)
    refuses(rule_file, "by compression method 12; expected stored or deflated")
    edit_members(rule_file, list)
    content = bytearray(rule_file.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 8] |= 1  # The flag of the first member in the archive's directory.
    rule_file.write_bytes(content)
    refuses(rule_file, "holds the encrypted array")
    content[directory + 8] &= ~1
    content[directory + 10 : directory + 12] = (77).to_bytes(2, "little")
    rule_file.write_bytes(content)
    refuses(rule_file, "by compression method 77")


def test_every_flipped_bit_is_noticed_or_harmless(rule_file):
    """A sample of them, of compressed data too."""
    rule, original = disco.load(rule_file), rule_file.read_bytes()
    for bit in np.random.default_rng(0).integers(8 * len(original), size=150).tolist():
        content = bytearray(original)
        content[bit // 8] ^= 1 << bit % 8
        rule_file.write_bytes(content)
        with contextlib.suppress(disco.RuleFileError):
            assert_same_rule(disco.load(rule_file), rule)


def test_refuses_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "rule.npz")
    with pytest.raises(FileNotFoundError, match=r"rule\.npz' is not a regular file"):
        disco.load(tmp_path / "rule.npz")


# Saving.


def test_refuses_to_save_what_float32_cannot_hold(tmp_path):
    rule = small_rule()
    parameters = dict(rule.parameters)
    parameters["lifetime/lstm"] = {
        name: np.full(x.shape, 1e300) for name, x in parameters["lifetime/lstm"].items()
    }
    with pytest.raises(ValueError, match=r"lifetime/lstm/\w of the rule is not finite in float32"):
        disco.save(dataclasses.replace(rule, parameters=parameters), tmp_path / "rule.npz")


def test_refuses_to_save_a_provenance_that_is_not_json(tmp_path):
    with pytest.raises(ValueError, match=r"provenance for .*rule\.npz is not JSON"):
        disco.save(small_rule(), tmp_path / "rule.npz", {"code": object()})


def save_damaged(path) -> None:
    rule = small_rule()
    bias = rule.parameters["lifetime/lstm"]["b"].at[0].set(jnp.nan)
    parameters = rule.parameters | {"lifetime/lstm": rule.parameters["lifetime/lstm"] | {"b": bias}}
    disco.save(dataclasses.replace(rule, parameters=parameters), path)


def test_refuses_to_save_a_damaged_rule(rule_file):
    before = rule_file.read_bytes()
    with pytest.raises(ValueError, match="lifetime/lstm/b of the rule is not finite"):
        save_damaged(rule_file)
    assert rule_file.read_bytes() == before


def test_refuses_to_save_under_another_suffix(tmp_path):
    with pytest.raises(ValueError, match=r"must end in '\.npz'"):
        disco.save(small_rule(), tmp_path / "rule.pkl")
    assert list(tmp_path.iterdir()) == []


def test_refuses_to_save_into_a_missing_folder(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        disco.save(small_rule(), tmp_path / "nowhere" / "rule.npz")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_interrupted_save_leaves_the_old_file(rule_file, monkeypatch, call):
    before = rule_file.read_bytes()

    def disk_full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, disk_full)
    with pytest.raises(OSError, match="No space left"):
        disco.save(small_rule(seed=1), rule_file)
    assert rule_file.read_bytes() == before
    assert list(rule_file.parent.iterdir()) == [rule_file]


def test_a_rule_is_shown_by_its_settings():
    rule = disco.load("three_families")
    text = repr(rule)
    assert len(text) < 1_000
    assert text.startswith("AnchoredRule(sizes=MetaNetworkSizes(")
    assert "lambda_=0.9" in text


def test_recommended_settings(tmp_path):
    found = disco.recommended("three_families")
    assert (found["learning_rate"], found["end_learning_rate"]) == (0.02, 0.1)
    disco.save(disco.load("three_families"), tmp_path / "bare.npz")
    assert disco.recommended(tmp_path / "bare.npz") == {}
