"""Symbol tables on disk: what comes back, and what must not."""

import os
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.symbols.symbol_cache import SymbolCache, cache_folder
from otel_gpu.stacks.symbols.symbol_table import SymbolSource

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"
SOURCES = [SymbolSource(None, 4096, 3, 8192, 40), SymbolSource(None, 64, 2, 128, 30)]
KEYS = array("Q", [1, 1 << 30, (1 << 64) - 1])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "symbols"


@pytest.fixture
def cache(folder):
    return SymbolCache(folder)


@pytest.fixture
def stored(cache, folder):
    cache.store(BUILD_ID, SOURCES, KEYS)
    return folder / f"{BUILD_ID}.symbols"


def loaded(cache, build_id=BUILD_ID, sources=SOURCES):
    keys = cache.load(build_id, sources)
    return None if keys is None else list(keys)


def test_a_table_comes_back_in_the_next_run(folder, stored):
    """As it was, though without a copy in memory."""
    keys = SymbolCache(folder).load(BUILD_ID, SOURCES)

    assert list(keys) == list(KEYS)
    assert isinstance(keys, memoryview)
    assert keys.readonly


def test_only_we_may_read_what_is_kept(folder, stored):
    """It tells which programs run here."""
    assert stored.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_table_of_other_sources_is_not_the_same(cache, stored):
    """A debug file that was installed since has other symbols, under the same build id."""
    assert loaded(cache, sources=SOURCES[:1]) is None
    assert loaded(cache, sources=[SOURCES[0]._replace(symbols=4), SOURCES[1]]) is None
    assert loaded(cache, sources=[SOURCES[0]._replace(names_bytes=41), SOURCES[1]]) is None
    assert loaded(cache) == list(KEYS)


def test_a_table_of_another_build_is_not_the_same(cache, stored):
    """Whatever the name of the file."""
    other = BUILD_ID[::-1]
    os.link(stored, stored.with_name(f"{other}.symbols"))
    assert loaded(cache, other) is None
    stored.unlink()
    assert loaded(cache, other) is None


@pytest.mark.parametrize("build_id", ["", "../../etc/shadow", "AB" * 20, "a" * 15, "a" * 65])
def test_a_build_id_that_is_none_is_no_file_name(cache, folder, build_id):
    """It comes from a file of somebody else."""
    cache.store(build_id, SOURCES, KEYS)

    assert loaded(cache, build_id) is None
    assert not folder.exists()


def test_damage_is_noticed(cache, stored):
    """At every single byte, and at either end."""
    good = stored.read_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        stored.write_bytes(bad)
        assert loaded(cache) is None
    for bad in (b"", good[:50], good[:-1], good + b"\0"):
        stored.write_bytes(bad)
        assert loaded(cache) is None
    stored.write_bytes(good)
    assert loaded(cache) == list(KEYS)


@given(st.binary(max_size=400))
def test_noise_is_no_table(tmp_path_factory, noise):
    """Nor a reason to fail."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    (folder / f"{BUILD_ID}.symbols").write_bytes(noise)

    assert loaded(SymbolCache(folder)) is None


def test_a_file_that_others_may_write_is_not_read(cache, stored):
    """They could cut it while we have it mapped."""
    stored.chmod(0o620)

    assert loaded(cache) is None


def test_a_file_of_somebody_else_is_not_read(cache, stored, monkeypatch):
    """Even in our folder."""
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    assert loaded(cache) is None


def test_links_are_not_followed(cache, folder, stored):
    """Neither to a file nor to a folder."""
    stored.rename(folder.parent / "elsewhere")
    stored.symlink_to(folder.parent / "elsewhere")
    assert loaded(cache) is None

    link = folder.parent / "link"
    link.symlink_to(folder)
    assert loaded(SymbolCache(link)) is None


def test_a_folder_that_others_may_enter_is_not_used(cache, folder):
    """It may be prepared by them."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    cache.store(BUILD_ID, SOURCES, KEYS)

    assert list(folder.iterdir()) == []


def test_without_a_folder_nothing_is_kept(tmp_path):
    """Nor does anybody hear of it."""
    (tmp_path / "file").write_text("")
    for cache in (SymbolCache(None), SymbolCache(tmp_path / "file" / "symbols")):
        cache.store(BUILD_ID, SOURCES, KEYS)
        assert loaded(cache) is None


def test_the_oldest_tables_go_when_there_are_too_many(folder):
    """Old is what was not loaded for long."""
    keys = array("Q", range(1000))
    cache = SymbolCache(folder, limit_bytes=30_000)
    builds = [f"{number:040x}" for number in range(4)]
    for time_s, build in enumerate(builds[:3]):
        cache.store(build, SOURCES, keys)
        os.utime(folder / f"{build}.symbols", (time_s, time_s))
    assert loaded(cache, builds[0]) is not None
    cache.store(builds[3], SOURCES, keys)

    assert [build for build in builds if loaded(cache, build)] == [builds[0], builds[2], builds[3]]


def test_what_was_not_finished_is_removed(cache, folder):
    """An agent may be killed while it writes."""
    folder.mkdir(parents=True, mode=0o700)
    (folder / "0123.unfinished").write_text("half")
    (folder / "notes.txt").write_text("somebody's")
    cache.store(BUILD_ID, SOURCES, KEYS)

    assert sorted(path.name for path in folder.iterdir()) == [f"{BUILD_ID}.symbols", "notes.txt"]


def test_a_table_that_is_loaded_outlives_its_file(cache, stored):
    """It may be removed to make room for others."""
    keys = cache.load(BUILD_ID, SOURCES)
    stored.unlink()

    assert list(keys) == list(KEYS)


def test_the_folder_is_the_users_own(monkeypatch):
    """Root's is the system's, so that no other user can prepare it."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert str(cache_folder()) == "/var/cache/otel-gpu/symbols"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", "/users/me/caches")
    assert str(cache_folder()) == "/users/me/caches/otel-gpu/symbols"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/users/me")
    assert str(cache_folder()) == "/users/me/.cache/otel-gpu/symbols"
