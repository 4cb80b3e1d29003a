"""One bound for all caches: their figures, and which of them evict what."""

import gc
import sys

from otel_gpu.limits import caches as caches_module
from otel_gpu.limits.caches import Caches, estimated_bytes, remembered, shared
from otel_gpu.limits.recent import Fifo, GroupedRecent, Recent


class Owner:
    """Has bytes, and knows how many."""

    def __init__(self, count, size_bytes):
        self.kept = {number: bytes(size_bytes) for number in range(count)}
        self.lets_go = True

    @property
    def size_bytes(self):
        return sum(map(len, self.kept.values()))

    def release(self, count):
        for number in list(self.kept)[: count if self.lets_go else 0]:
            del self.kept[number]


def recent(count, size_bytes):
    found = Recent(1 << 20)
    for number in range(count):
        found[number] = bytes(size_bytes)
    return found


def test_what_is_held_within_the_bound_stays():
    """Nothing is released where the sum is small enough, and figures say what there is."""
    caches, small, owner = Caches(), recent(97, 1000), Owner(11, 100)
    caches.register("small", small, release=Recent.release)
    caches.register("owned", owner, "kept", size_bytes="size_bytes", entry_bytes=13)
    caches.keep_within(1 << 20)

    figures = caches.figures()
    assert len(small) == 97
    assert figures["cache_entries"] == {"small": 97, "owned": 11}
    assert figures["cache_bytes"]["owned"] == 11 * (100 + 13)
    assert 97 * 1033 < figures["cache_bytes"]["small"] < 97 * 1300
    assert figures["cache_released"] == {}


def test_at_rest_they_are_looked_at_a_few_times_a_minute():
    """What comes then is released later, and at once when there is much to do."""
    now_s = [1000.0]
    caches, one = Caches(lambda: now_s[0]), recent(3, 1000)
    caches.register("one", one, release=Recent.release)
    caches.keep_within(1, is_at_rest=True)
    held = [len(one)]
    for step_s in (19.0, 2.0, 1.0):
        one["new"] = bytes(1000)
        now_s[0] += step_s
        caches.keep_within(1, is_at_rest=True)
        held.append(len(one))
    caches.keep_within(1)
    held.append(len(one))

    assert held == [0, 1, 0, 1, 0]


def test_what_has_to_stay_is_released_by_none():
    """Others become smaller in its place, and then nothing does."""
    caches, needed, other = Caches(), recent(1009, 10_000), recent(101, 10_000)
    caches.register("needed", needed, release=Recent.release, least=907)
    caches.register("other", other, release=Recent.release)
    caches.keep_within(1_000)

    assert (len(needed), len(other)) == (907, 0)
    assert caches.released == {"needed": 102, "other": 101}


def test_the_largest_releases_its_oldest_first():
    """Only as much goes as has to, and of the cache that holds most."""
    caches, large, small = Caches(), recent(1009, 10_000), recent(101, 100)
    caches.register("large", large, release=Recent.release)
    caches.register("small", small, release=Recent.release)
    caches.keep_within(5_000_000)

    assert len(small) == 101
    assert 5_000_000 // 10_033 * 0.7 < len(large) <= 5_000_000 // 10_033
    assert list(large) == list(range(1009 - len(large), 1009))
    assert caches.released == {"large": 1009 - len(large)}
    assert sum(caches.figures()["cache_bytes"].values()) <= 5_000_000


def test_a_cache_that_lets_go_of_nothing_ends_no_loop():
    """What only its own bound holds is counted, and others make room for it."""
    caches, fixed, stubborn, other = Caches(), Owner(7, 100_000), Owner(5, 200_000), recent(97, 100)
    stubborn.lets_go = False
    caches.register("fixed", fixed, "kept", size_bytes="size_bytes")
    caches.register("stubborn", stubborn, "kept", release=Owner.release, size_bytes="size_bytes")
    caches.register("other", other, release=Recent.release)
    caches.keep_within(1000)

    assert len(fixed.kept) == 7
    assert len(stubborn.kept) == 5
    assert not other


def test_caches_of_one_name_are_added_up_and_gone_ones_forgotten():
    """A cache counts for as long as its owner lives."""
    caches, one, other = Caches(), recent(3, 10), recent(5, 10)
    for cache in (one, other):
        caches.register("same", cache, release=Recent.release)
    caches.keep_within(1 << 20)
    both = caches.held["same"].entries
    del cache, other
    gc.collect()
    caches.keep_within(1 << 20)

    assert (both, caches.held["same"].entries) == (8, 3)


def test_what_many_refer_to_is_in_no_size():
    """An entry has the size of what only it refers to."""

    @shared
    class Process:
        def __init__(self):
            self.text = "x" * 100_000

    class Entry:
        __slots__ = ("process", "text")

        def __init__(self, process, number):
            self.process, self.text = process, str(number) * 1000

    process = Process()
    entries = [Entry(process, number % 10) for number in range(1000)]
    size_bytes = estimated_bytes(entries)

    assert 1000 * 1000 < size_bytes < 1000 * 1300 + sys.getsizeof(entries)


def test_what_a_function_remembers_is_counted_and_goes_at_once(monkeypatch):
    """It is a cache as any other."""
    caches = Caches()
    monkeypatch.setattr(caches_module, "CACHES", caches)
    called = []

    @remembered("squares", 97, 1_000)
    def square(number):
        called.append(number)
        return number * number

    assert [square(number) for number in (*range(101), 100)] == [n * n for n in (*range(101), 100)]
    caches.keep_within(1 << 20)
    held = caches.held["squares"]
    caches.keep_within(10)

    assert len(called) == 101
    assert held == (97, 97_000)
    assert caches.held["squares"] == (0, 0)
    assert caches.released == {"squares": 97}


def test_entries_that_the_limit_or_memory_evicts_are_reported_once():
    """Each with its value; a removed entry is not evicted, and a set key keeps its place or moves."""
    evicted = []
    fifo, used = (kind(2, evict=lambda *entry: evicted.append(entry)) for kind in (Fifo, Recent))
    for mapping in (fifo, used):
        mapping.update(a=1, b=2)
        mapping["a"] = 3
        mapping["c"] = 4
        mapping.pop("c")
    used.release(5)

    assert (list(fifo), list(used)) == (["b"], [])
    assert evicted == [("a", 3), ("b", 2), ("a", 3)]


def test_a_named_mapping_shrinks_with_the_caches(monkeypatch):
    """It is registered where it is made, for as long as it lives."""
    caches = Caches()
    monkeypatch.setattr("otel_gpu.limits.recent.CACHES", caches)
    fifo = Fifo(97, cache="numbers", entry_bytes=1_000)
    fifo.update((number, number) for number in range(101))
    caches.keep_within(50_000)

    assert list(fifo) == list(range(101 - len(fifo), 101))
    assert len(fifo) <= 50
    assert caches.released == {"numbers": 97 - len(fifo)}


def test_entries_of_a_group_are_forgotten_together():
    """Those of others stay, in their order; what was evicted or removed is in no group any more."""
    names = GroupedRecent(3)
    names["a", 1], names["b", 1], names["b", 2] = "one", "uno", "due"
    names["c", 1] = "eins"
    names.discard(("b", 1))
    names.discard(("b", 9))

    assert [names.get(key) for key in (("a", 1), ("b", 1), ("b", 2))] == [None, None, "due"]
    assert names.use(("b", 2)) == "due"
    names.forget("b")
    names.forget("a")
    assert (len(names), names.get(("c", 1))) == (1, "eins")
    names.clear()
    names["c", 1] = "uno"
    assert len(names) == 1
