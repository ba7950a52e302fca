"""Which torch a kernel is compiled for, and which files are trusted."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from otel_fr.capture.native import build, store


def _torch(root: Path, version: str = "2.6.0+cu124", flags: str = '"-D_GLIBCXX_USE_CXX11_ABI=0"') -> Path:
    """A package folder of torch, as far as a build looks at it."""
    config = root / "torch" / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    config.parent.mkdir(parents=True)
    config.write_text(f"set(TORCH_CXX_FLAGS {flags})\n")
    (root / "torch" / "version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
    return root / "torch"


def test_the_target_is_read_from_the_installation(tmp_path: Path) -> None:
    old = build.Target.installed(_torch(tmp_path / "old"))
    assert (old.version, old.new_abi) == ("2.6.0", False)
    new = build.Target.installed(_torch(tmp_path / "new", "2.14.1", '""'))
    assert (new.version, new.new_abi) == ("2.14.1", True)
    assert "torch2.6.0-cxx110-" in old.file_name
    assert old.file_name.split("-")[-1] == new.file_name.split("-")[-1]
    with pytest.raises(build.BuildError, match="has no torch"):
        build.Target.installed(tmp_path)


def test_a_wheel_has_the_same_target(tmp_path: Path) -> None:
    source = _torch(tmp_path)
    wheel = tmp_path / "torch.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in source.rglob("*"):
            archive.write(path, path.relative_to(tmp_path))
        archive.writestr("torch/lib/libtorch_cuda.so", "large")
    root = build.unpack(wheel, tmp_path / "unpacked")
    assert build.Target.installed(root).file_name == build.Target.installed(source).file_name
    assert not (root / "lib" / "libtorch_cuda.so").exists()
    with pytest.raises(build.BuildError, match="cannot be unpacked"):
        build.unpack(source / "version.py", tmp_path / "other")


def test_the_compiler_is_the_one_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o700)
    assert build.find_compiler({"CXX": f"{own} -pipe"}) == [str(own), "-pipe"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.find_compiler({"CXX": "missing"}) is None
    (tmp_path / "g++").symlink_to(own)
    assert build.find_compiler({}) == [str(tmp_path / "g++")]


def test_only_private_folders_and_own_files_are_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "kernels"
    with pytest.raises(FileNotFoundError):
        store.check_private(folder)
    store.make_private(folder)
    store.check_private(folder)
    folder.chmod(0o750)
    with pytest.raises(OSError, match="has mode 750"):
        store.check_private(folder)
    with pytest.raises(OSError, match="has mode 750"):
        store.make_private(folder)
    folder.chmod(0o700)
    store.make_private(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(OSError, match="not a folder of this user"):
        store.check_private(link)
    with pytest.raises(OSError, match="not a folder of this user"):
        store.make_private(link)
    kernel = folder / "kernel.so"
    assert not store.is_own_file(kernel)
    kernel.write_bytes(b"")
    kernel.chmod(0o700)
    assert store.is_own_file(kernel)
    kernel.chmod(0o720)
    assert not store.is_own_file(kernel)
    (folder / "other.so").symlink_to(kernel)
    assert not store.is_own_file(folder / "other.so")


@pytest.mark.parametrize(
    ("above", "is_trusted"),
    [
        ({}, True),
        ({"/data": (4711, 0o755)}, False),
        ({"/data": (0, 0o775)}, False),
        ({"/data/user": (1000, 0o757)}, False),
        ({"/data/user": (1000, 0o775)}, True),
        ({"/data": (0, 0o1777)}, True),
        ({"/data/user": (1000, 0o700), "/data/user/.cache": (1000, 0o775)}, True),
        ({"/data": (0, 0o775), "/data/user": (1000, 0o700)}, False),
    ],
)
def test_others_must_not_be_able_to_replace_the_cache(
    above: dict[str, tuple[int, int]], *, is_trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``above``: owner and mode of folders; the others are root's. Root's group has a member, the user's has none."""

    def status(path: Path) -> os.stat_result:
        owner, mode = above.get(str(path), (0, 0o755))
        return os.stat_result((stat.S_IFDIR | mode, 0, 0, 1, owner, owner, 0, 0, 0, 0))

    trusted = nullcontext() if is_trusted else pytest.raises(OSError, match="above /data/user")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        patch.setattr(os, "stat", status)
        patch.setattr(pwd, "getpwuid", lambda user: pwd.struct_passwd(("one", "x", user, user, "", "/", "/bin/sh")))
        members = {0: ["operator"], 1000: []}
        patch.setattr(grp, "getgrgid", lambda group: grp.struct_group(("all", "x", group, members[group])))
        with trusted:
            store._check_above(Path("/data/user/.cache/otel-fr"))


def test_a_kernel_is_the_file_that_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    monkeypatch.setattr(store, "running_file_name", lambda _: "kernel.so")
    folder = store.cache_folder({"XDG_CACHE_HOME": str(tmp_path)})
    store.make_private(folder)
    (folder / "kernel.so").write_bytes(b"checked")
    store.seal(folder / "kernel.so")
    ((path, handle),) = store.candidates(torch, {"XDG_CACHE_HOME": str(tmp_path)})
    path.replace(folder / "other.so")
    path.write_bytes(b"another")
    assert os.pread(handle, 7, 0) == b"checked"
    os.close(handle)
    (folder / "other.so").chmod(0o666)
    (folder / "other.so").replace(path)
    assert not list(store.candidates(torch, {"XDG_CACHE_HOME": str(tmp_path)}))


def test_why_no_kernel_is_loaded_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "running_file_name", lambda _: "kernel.so")
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = store.cache_folder(env)
    kernel = folder / "kernel.so"

    def why() -> str:
        return store.why_missing(ModuleType("torch"), env)

    assert why() == "none was compiled on this machine"
    store.make_private(folder)
    assert why() == f"{folder} has none"
    kernel.touch(0o600)
    assert why() == f"{kernel} is damaged"
    kernel.chmod(0o622)
    assert why() == f"{kernel} must be a file that only this user can change"
    folder.chmod(0o750)
    assert why() == f"{folder} has mode 750; remove it, or empty it and set mode 700"


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "otel-fr" / "kernels"
    monkeypatch.setenv("HOME", "/home/someone")
    expected = Path("/home/someone/.cache/otel-fr/kernels")
    assert store.cache_folder({}) == store.cache_folder({"XDG_CACHE_HOME": "relative"}) == expected


def test_a_damaged_kernel_is_not_loaded(tmp_path: Path) -> None:
    """The dynamic linker would end the rank: with SIGBUS where the file ends early, or with an assertion."""
    kernel = tmp_path / "kernel.so"
    assert not store.is_whole(kernel)
    kernel.write_bytes(bytes(range(256)) * 40)
    assert not store.is_whole(kernel)
    store.seal(kernel)
    assert store.is_whole(kernel)
    whole = kernel.read_bytes()
    for damaged in (whole[:5000], whole[:-1], whole[:900] + b"x" + whole[901:], whole + b"x", whole[-40:], b""):
        kernel.write_bytes(damaged)
        assert not store.is_whole(kernel)
