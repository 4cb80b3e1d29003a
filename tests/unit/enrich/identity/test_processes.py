import pytest

from otel_gpu.enrich.clock import UnixClock
from otel_gpu.enrich.identity.processes import ProcessTable

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
TRAINER = {
    "start_boot_ns": 3 * SECOND,
    "exe": "/usr/bin/python3",
    "command_args": ["python", "train.py"],
    "comm": "python",
    "owner": "ada",
    "env": {},
    "otel_context": {},
}


class Forgotten(list):
    def __call__(self, key):
        self.append(key)


@pytest.fixture
def forgotten():
    return Forgotten()


@pytest.fixture
def table(forgotten):
    clock = UnixClock()
    clock.add_sample(0, T0)
    return ProcessTable(clock, forgotten)


def test_an_unknown_process_has_its_comm_for_a_name(table):
    """A record that comes before all facts is not lost, and its image stays the same."""
    image = table.find(10, 5, "python")

    assert (image.service_name, image.comm, image.start_unix_ns) == ("python", "python", T0 + 5)
    assert table.find(10, 5, "other") is image


def test_a_nameless_image_takes_the_first_comm(table):
    """A series that comes first has no comm; the first record that has one gives it."""
    nameless = table.find(10, 5, "")
    named = table.find(10, 5, "python")

    assert nameless.service_name == "unknown_service"
    assert named.service_name == "python"
    assert table.find(10, 5, "") is named


def test_facts_name_an_image(table):
    """After the facts, records of the image have its full names."""
    placeholder = table.find(10, 5, "pt_main")
    table.learn_facts(10, 5, 6, TRAINER)
    image = table.find(10, 5, "pt_main")

    assert image is not placeholder
    assert image.service_name == "train.py"
    assert image.comm == "python"
    assert image.attributes["process.owner"] == "ada"
    assert image.start_unix_ns == placeholder.start_unix_ns


def test_facts_that_say_nothing_new_keep_the_image(table):
    """Exporters know images by identity, so the same facts give the same object."""
    first = table.learn_facts(10, 5, 6, TRAINER)

    assert table.learn_facts(10, 5, 7 * SECOND, TRAINER) is first


def test_facts_with_gaps_keep_what_is_known(table):
    """A zombie's empty command line takes nothing away."""
    table.learn_facts(10, 5, 6, TRAINER)
    image = table.learn_facts(10, 5, 7, {"comm": "python", "exe": None, "command_args": []})

    assert image.service_name == "train.py"
    assert image.attributes["process.executable.path"] == "/usr/bin/python3"


def test_a_reused_pid_is_another_process(table):
    """Facts of one image never name another one under the same pid."""
    table.learn_facts(10, 5, 6, TRAINER)
    reused = table.find(10, 900, "bash")

    assert reused.service_name == "bash"
    assert table.find(10, 5, "").service_name == "train.py"


def test_a_child_has_its_parent_s_names_until_its_own_come(table):
    """A forked worker is its parent's program, as an instance of its own."""
    context = {"service.name": "trainer", "service.instance.id": "i-1", "process.pid": 10}
    parent = table.learn_facts(10, 5, 6, TRAINER | {"otel_context": context})
    child = table.learn_fork(parent, 11, 50)

    assert child.service_name == "trainer"
    assert child.attributes["service.instance.id"] != "i-1"
    assert child.attributes["process.pid"] == 11
    assert child.attributes["process.parent_pid"] == 10
    assert child.attributes["process.creation.time"] == "2023-11-14T22:13:20.000Z"
    assert table.find(11, 50, "python") is child

    own = table.learn_facts(11, 50, 60, TRAINER | {"command_args": ["python", "worker.py"]})
    assert own.service_name == "worker.py"


@pytest.mark.parametrize("order", ["fork, facts", "facts, fork", "facts", "fork"])
def test_workers_of_one_run_have_one_name(table, order):
    """
    An SDK publishes the name of a service in memory that a fork does not inherit.

    So a worker had its parent's name until its own facts were read, and the script's from then on.
    """
    context = {"service.name": "trainer", "service.instance.id": "i-1", "process.pid": 10}
    parent = table.learn_facts(10, 5, 6, TRAINER | {"otel_context": context})
    facts = TRAINER | {"ppid": 10, "start_boot_ns": 45}

    for step in order.split(", "):
        if step == "fork":
            table.learn_fork(parent, 11, 50)
        else:
            table.learn_facts(11, 50, 60, facts)

    worker = table.find(11, 50, "")
    assert worker.service_name == "trainer"
    assert worker.attributes["service.instance.id"] != "i-1"
    assert worker.attributes["process.pid"] == 11


def test_a_child_with_a_context_of_its_own_keeps_it(table):
    """Also one that runs another program of the same interpreter."""
    table.learn_facts(10, 5, 6, TRAINER | {"otel_context": {"service.name": "trainer"}})
    facts = TRAINER | {"ppid": 10, "start_boot_ns": 45}

    own = table.learn_facts(11, 50, 60, facts | {"otel_context": {"service.name": "feeder"}})
    other = table.learn_facts(12, 51, 60, facts | {"command_args": ["python", "tool.py"]})

    assert (own.service_name, other.service_name) == ("feeder", "tool.py")


def test_a_late_fork_takes_nothing_away(table):
    """The fork's record may come after the child's facts."""
    own = table.learn_facts(11, 50, 60, TRAINER)
    parent = table.find(10, 5, "bash")

    assert table.learn_fork(parent, 11, 50) is own


def test_an_exec_names_the_new_image_by_its_path(table):
    """
    A program that ended before /proc was read still has its name, its owner, and its
    environment, but not the old program's arguments.
    """
    environment = {"OTEL_RESOURCE_ATTRIBUTES": "team=ml"}
    old = table.learn_facts(10, 5, 6, TRAINER | {"env": environment})
    new = table.learn_exec(10, 70, 5, "/usr/bin/nvidia-smi", "nvidia-smi")

    assert new.service_name == "nvidia-smi"
    assert new.attributes["process.executable.path"] == "/usr/bin/nvidia-smi"
    assert new.attributes["process.owner"] == "ada"
    assert new.attributes["team"] == "ml"
    assert "process.command_args" not in new.attributes
    assert table.find(10, 5, "") is old
    assert old.attributes["service.instance.id"] != new.attributes["service.instance.id"]


def test_an_exec_after_its_facts_keeps_them(table):
    """Facts say more than the exec's record, in whichever order they come."""
    table.learn_facts(10, 70, 71, TRAINER)
    image = table.learn_exec(10, 70, 5, "/usr/bin/env", "env")

    assert image.service_name == "train.py"


def test_the_dead_are_remembered_for_a_minute(table, forgotten):
    """Records that arrive late still find their process; after 60 s of ktime it is gone."""
    image = table.learn_facts(10, 5, 6, TRAINER)
    assert table.learn_exit(10, 5, 100 * SECOND, "python") is image

    table.learn_facts(20, 5, 159 * SECOND, TRAINER)
    assert table.find(10, 5, "") is image
    assert forgotten == []

    table.learn_facts(21, 5, 160 * SECOND, TRAINER)
    assert forgotten == [(10, 5)]
    assert table.find(10, 5, "late").service_name == "late"


def test_an_image_that_was_replaced_is_dead(table, forgotten):
    """
    An exec, or a pid that is used again, ends the image before, even when its exit was
    lost.
    """
    table.learn_facts(10, 5, 6, TRAINER)
    table.learn_exec(10, 100 * SECOND, 5, "/bin/b", "b")
    table.find(11, 5, "c")
    table.find(11, 100 * SECOND, "d")

    table.learn_facts(12, 5, 200 * SECOND, TRAINER)

    assert forgotten == [(10, 5), (11, 5)]
    assert table.find(10, 100 * SECOND, "").service_name == "b"


def test_the_dead_are_bounded(forgotten):
    """
    A host that runs short processes by the thousand keeps the latest of them, and those whose last
    figures were not read yet.
    """
    table = ProcessTable(UnixClock(), forgotten, max_programs=100, max_dead=3)
    for pid in range(1, 8):
        table.find(pid, 1, "short")
        table.learn_exit(pid, 1, 10, "short")
    assert forgotten == []

    for ktime_ns in (10, 11):
        table.note_reading(ktime_ns)
    table.find(8, 1, "short")
    table.learn_exit(8, 1, 12, "short")

    assert forgotten == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert len(table) == 3


def test_the_living_are_bounded(forgotten):
    """When exits are lost, the images known longest go; the dead go first."""
    table = ProcessTable(UnixClock(), forgotten, max_programs=3, max_dead=3)
    for pid in (1, 2, 3):
        table.find(pid, 1, "long")
    table.learn_exit(2, 1, 10, "long")
    table.find(4, 1, "new")
    table.find(5, 1, "new")

    assert forgotten == [(2, 1), (1, 1)]
    assert len(table) == len(table._facts) == len(table._current) == 3


def test_the_host_belongs_to_all_processes(table):
    """A capture's host names images learnt before and after."""
    table.find(1, 1, "early")
    table.learn_host({"host": {"name": "node1", "arch": "aarch64", "boot_id": "b"}})

    for image in (table.find(1, 1, "early"), table.find(2, 1, "late")):
        assert image.attributes["host.name"] == "node1"
        assert image.attributes["host.arch"] == "arm64"
