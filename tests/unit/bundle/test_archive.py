"""A bundle's bytes: the same each time, readable by tar, and no change of them goes unnoticed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetmem.controller.bundle import archive, manifest, names, read
from fleetmem.controller.bundle.extract import extract

ABOUT = {"created": "2026-03-01T14:10:00Z", "redacted": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of two hosts."""
    made = tmp_path / "stage"
    for name, text in {
        "run.json": "{}\n",
        "data/gpu.devices.jsonl": '{"host": "a"}\n' * 400,
        "hosts/a/raw/nvidia-smi.txt": "x" * 70_000,
        "hosts/b/raw/empty.txt": "",
    }.items():
        place = made / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return made


@pytest.fixture
def bundle(folder: Path, tmp_path: Path) -> Path:
    """The same, packed."""
    target = tmp_path / "incident.tar.gz"
    archive.write(folder, target, ABOUT)
    return target


def test_the_same_files_give_the_same_bytes(folder: Path, tmp_path: Path, bundle: Path) -> None:
    time.sleep(1.1)  # another second, which must not show
    for path in folder.rglob("*.txt"):
        path.touch()
        path.chmod(0o600)
    again = tmp_path / "again.tar.gz"
    archive.write(folder, again, ABOUT)
    assert again.read_bytes() == bundle.read_bytes()
    assert bundle.stat().st_mode & 0o777 == 0o600


def test_tar_and_sha256sum_read_it(bundle: Path, tmp_path: Path) -> None:
    """Whoever gets it needs nothing of fleetmem's."""
    place = tmp_path / "out"
    place.mkdir()
    subprocess.run(["tar", "-xzf", str(bundle), "-C", str(place)], check=True)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=place, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    first = subprocess.run(["tar", "-tzf", str(bundle)], capture_output=True, text=True)
    assert first.stdout.splitlines()[0] == "manifest.json"


def test_a_whole_bundle_verifies_and_extracts(bundle: Path, folder: Path, tmp_path: Path) -> None:
    whole = read.verify(bundle)
    assert whole.about["redacted"] is True
    assert {one.name for one in whole.entries} >= {"run.json", "SHA256SUMS"}
    out = tmp_path / "new" / "place"
    extract(bundle, out)
    for path in folder.rglob("*"):
        if path.is_file():
            assert (out / path.relative_to(folder)).read_bytes() == path.read_bytes()
    with pytest.raises(read.BundleError, match="exists"):
        extract(bundle, out)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_found(bundle: Path, data: st.DataObject) -> None:
    whole = bundle.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    other = bundle.with_name("flipped.tar.gz")
    other.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
    with pytest.raises(read.BundleError):
        read.verify(other)


@pytest.mark.parametrize("cut", [0, 1, 9, 10, 100, 600, -1, -20, -60])
def test_a_bundle_cut_short_is_found(bundle: Path, cut: int) -> None:
    short = bundle.with_name("short.tar.gz")
    short.write_bytes(bundle.read_bytes()[:cut])
    with pytest.raises(read.BundleError):
        read.verify(short)


def test_something_after_its_end_is_found(bundle: Path) -> None:
    longer = bundle.with_name("longer.tar.gz")
    longer.write_bytes(bundle.read_bytes() + b"x")
    with pytest.raises(read.BundleError):
        read.verify(longer)


# --- what others wrote ---------------------------------------------------------------------


def forged(path: Path, rows: list[tuple[tarfile.TarInfo, bytes]], listed: dict[str, bytes]) -> Path:
    """An archive with a sound manifest for *listed* and whatever *rows* say."""
    entries = tuple(
        manifest.Entry(name, len(data), hashlib.sha256(data).hexdigest())
        for name, data in listed.items()
    )
    first = manifest.Manifest(entries, {}).to_bytes()
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(archive.head("manifest.json", len(first)), io.BytesIO(first))
        for row, data in rows:
            tar.addfile(row, io.BytesIO(data))
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=0))
    return path


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    row = tarfile.TarInfo(name)
    row.type, row.linkname = kind, link
    return row


HOSTILE = {
    "parent": archive.head("../up.txt", 1),
    "absolute": archive.head("/tmp/up.txt", 1),
    "link": special("a", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": special("a", tarfile.LNKTYPE, "manifest.json"),
    "device": special("a", tarfile.CHRTYPE),
    "fifo": special("a", tarfile.FIFOTYPE),
    "folder": special("a", tarfile.DIRTYPE),
    "long": archive.head("a" * 5000, 1),
    "hidden": archive.head(".bashrc", 1),
    "escape": archive.head("a\x1b[2Jb", 1),
    "not listed": archive.head("b", 1),
    "manifest again": archive.head("manifest.json", 1),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_member_ends_the_reading(kind: str, tmp_path: Path) -> None:
    row = HOSTILE[kind]
    path = forged(tmp_path / "x.tar.gz", [(row, b"x" * row.size)], {"a": b"x"})
    out = tmp_path / "out"
    with pytest.raises(read.BundleError, match=r"manifest|ordinary file|header") as found:
        extract(path, out)
    assert "begin with" not in str(found.value)
    assert "\n" not in str(found.value)
    assert "\x1b" not in str(found.value)
    assert not out.exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.tar.gz"]


def test_a_stream_that_unpacks_without_end_is_given_up(tmp_path: Path) -> None:
    """10 GB of zeros beside a manifest of one byte: read no further than the manifest allows."""
    row = archive.head("a", 10 << 30)
    first = manifest.Manifest(
        (manifest.Entry("a", 1, hashlib.sha256(b"x").hexdigest()),), {}
    ).to_bytes()
    path = tmp_path / "bomb.tar.gz"
    head = archive.head("manifest.json", len(first)).tobuf(tarfile.USTAR_FORMAT)
    padding = bytes(-len(first) % 512)
    with gzip.GzipFile(path, "wb", compresslevel=1, mtime=0) as file:
        file.write(head + first + padding + row.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            file.write(bytes(1 << 20))
    with pytest.raises(read.BundleError):
        read.verify(path)


def test_a_name_record_that_asks_for_gigabytes_is_not_read(tmp_path: Path) -> None:
    row = tarfile.TarInfo("././@LongLink")
    row.type, row.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
    first = manifest.Manifest((), {}).to_bytes()
    path = tmp_path / "long.tar.gz"
    head = archive.head("manifest.json", len(first)).tobuf(tarfile.USTAR_FORMAT)
    plain = head + first + bytes(-len(first) % 512) + row.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    path.write_bytes(gzip.compress(plain, mtime=0))
    with pytest.raises(read.BundleError, match="ordinary file"):
        read.verify(path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": "fleetmem-bundle/9"}', '{"schema": "fleetmem-bundle/1"}'],
)
def test_a_manifest_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(manifest.ManifestError) as found:
        manifest.parse(text.encode())
    assert "\n" not in str(found.value)


def test_a_manifest_with_two_names_of_one_file_is_refused() -> None:
    digest = hashlib.sha256(b"").hexdigest()
    entries = (manifest.Entry("Data", 0, digest), manifest.Entry("data", 0, digest))
    with pytest.raises(manifest.ManifestError, match="twice"):
        manifest.parse(manifest.Manifest(entries, {}).to_bytes())


def test_a_manifest_says_what_it_was_made_of() -> None:
    entry = manifest.Entry("run.json", 3, hashlib.sha256(b"{}\n").hexdigest())
    whole = manifest.Manifest((entry,), {"hosts": 2})
    again = manifest.parse(whole.to_bytes())
    assert (again.entries, again.about, again.root) == ((entry,), {"hosts": 2}, whole.root)
    assert json.loads(whole.to_bytes())["root"] == whole.root


@given(st.lists(st.text(max_size=80), max_size=30, unique=True))
def test_hosts_have_folders_of_their_own(hosts: list[str]) -> None:
    folders = [names.of_host(host) for host in hosts]
    if len({host.lower() for host in hosts}) == len(hosts):
        assert len({one.lower() for one in folders}) == len(hosts)
    assert all(names.fault(f"hosts/{one}/raw/a.txt") is None for one in folders)
