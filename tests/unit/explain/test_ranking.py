"""The causes of many effects as those of one."""

from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.explain.chains import Cause
from otel_gpu.explain.ranking import CauseSums, clear_resource

NFS = Resource("file", "/data/1.tar", "nfs4", "/data", is_remote=True)
DISK = Resource("file", "/tmp/x", "ext4", "/")


def test_of_many_effects_what_was_waited_for_is_said_if_it_was_clearly_one_thing():
    """However many other things there were, and in whatever order they come."""
    sums = CauseSums(8, 4)
    for number in range(100):
        other = Resource("file", f"/tmp/{number}")
        sums.add([Cause("io", 30, 0.3, None, (), (), NFS if number % 5 else other)])
    [cause] = sums.causes(10_000)

    assert (cause.time_ns, cause.resource) == (3_000, NFS)


def test_what_is_not_clear_is_not_said():
    """Nor what is not known."""
    assert clear_resource([]) is None
    assert clear_resource([(None, 10)]) is None
    assert clear_resource([(NFS, 10), (DISK, 10)]) is None
    assert clear_resource([(DISK, 1), (NFS, 3)]) == NFS
