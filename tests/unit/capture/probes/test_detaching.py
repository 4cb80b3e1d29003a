"""What is detached by this process itself, side by side."""

import errno

from otel_gpu.capture.probes.detaching import Links


def refuse(*_):
    raise OSError(errno.EAGAIN, "no more processes")


def test_one_that_fails_keeps_no_other():
    links, detached = Links(), []
    links.add(refuse)
    links.add(lambda: detached.append(1))
    links.detach_all()
    assert detached == [1]


def test_it_is_detached_once():
    links, detached = Links(), []
    one = links.add(lambda: detached.append(1))
    links.add(lambda: detached.append(2))
    links.detach([one])
    links.detach_all()
    links.detach_all()
    assert detached == [1, 2]
