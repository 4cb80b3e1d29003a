"""A token is a secret, or there is none."""

import os
import re

import pytest

from otel_gpu.mcp.tokens import TokenError, find_token, is_authorized, new_token

TOKEN = "correct-horse-battery-staple"  # noqa: S105 -- opens nothing


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def test_a_token_is_read_from_a_file(file):
    """The line end is not part of it."""
    assert find_token(file, {"OTEL_GPU_MCP_TOKEN": "another-token-that-loses"}) == TOKEN


def test_a_token_is_read_from_the_environment():
    """For services that have their secrets there."""
    assert find_token(None, {"OTEL_GPU_MCP_TOKEN": TOKEN}) == TOKEN
    assert find_token(None, {}) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o602, 0o666])
def test_a_file_that_others_may_use_is_no_secret(file, mode):
    """Nor is one that others may write."""
    file.chmod(mode)

    with pytest.raises(TokenError, match=f"other users have access .mode {mode:04o}"):
        find_token(file, {})


@pytest.mark.parametrize(
    "text",
    ["", "short", "with spaces in the token", "nön-ascii-ist-kein-token", "ctrl-\x01-control-ctrl"],
)
def test_what_protects_nothing_is_no_token(file, text):
    """An empty file would let everybody in."""
    file.write_text(text)

    with pytest.raises(TokenError, match="not a token"):
        find_token(file, {})
    with pytest.raises(TokenError, match="OTEL_GPU_MCP_TOKEN: not a token"):
        find_token(None, {"OTEL_GPU_MCP_TOKEN": text})


def test_what_is_no_file_is_refused(tmp_path):
    """Neither a folder nor a pipe nor nothing keeps us waiting."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)

    for path, told in (
        (tmp_path, "is not a file"),
        (pipe, "is not a file"),
        (tmp_path / "no", "No such"),
    ):
        with pytest.raises(TokenError, match=re.escape(told)):
            find_token(path, {})


def test_only_the_token_opens():
    """All of it, after the scheme's name in any case."""
    assert is_authorized(f"Bearer {TOKEN}", TOKEN)
    assert is_authorized(f"bearer {TOKEN}", TOKEN)
    for header in ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ",
                   "Bearer \xff\ud800"):  # fmt: skip
        assert not is_authorized(header, TOKEN)


def test_new_tokens_differ():
    """Each run has its own."""
    tokens = {new_token() for _ in range(50)}

    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 43
