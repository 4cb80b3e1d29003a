"""Whose a process is, by name and by number."""

import pytest

from otel_gpu.procfs.users import user_name, user_number
from otel_gpu.wire import UNKNOWN_USER


@pytest.mark.parametrize("uid", [0, 65534, 3_999_999_983])
def test_a_name_leads_back_to_its_user(uid):
    """A user without an entry is named by its number."""
    assert user_number(user_name(uid)) == uid


@pytest.mark.parametrize("name", ["", "no such user", "x\0y", "-1"])
def test_what_names_no_user_is_not_known(name):
    """No text of a recording ends with an error, or is another user."""
    assert user_number(name) == UNKNOWN_USER
