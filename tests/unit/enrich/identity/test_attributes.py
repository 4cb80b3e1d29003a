import pytest

from otel_gpu.enrich.identity.attributes import (
    MAX_ATTRIBUTES,
    Facts,
    Host,
    describe,
    facts_of,
    host_of,
)

CONTAINER = "8f3b0c52d1a94ee6b7f0c9d8e7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8"
UID = "2b1c1f0e-6c1a-4b7e-9d55-0a1b2c3d4e5f"
CGROUP = f"0::/kubepods/burstable/pod{UID}/{CONTAINER}"
BODY = {
    "start_boot_ns": 5_000_000_000,
    "boot_offset_ns": 1_000_000_000,
    "ppid": 1,
    "vpid": 7,
    "exe": "/usr/bin/python3.12",
    "command_args": ["python", "train.py", "--api-key=hunter2"],
    "comm": "python",
    "owner": "ada",
    "cgroups": [CGROUP],
    "env": {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,host.name=pod-0"},
    "otel_context": {},
    "mountinfo_container_id": None,
}
INFO = {"host": {"name": "node1", "id": "abc", "arch": "x86_64", "boot_id": "boot"}}
UNIX_MINUS_KTIME_NS = 1_700_000_000_120_000_000


def test_a_process_is_described_in_full():
    """All that is known becomes resource attributes, the service first."""
    attributes = describe(4242, 99, facts_of(BODY, UNIX_MINUS_KTIME_NS), host_of(INFO))

    assert list(attributes.items()) == [
        ("service.name", "train.py"),
        ("service.instance.id", "4b2801fc-b326-5ffd-ae43-9554f314ebd4"),
        ("process.pid", 4242),
        ("process.parent_pid", 1),
        ("process.vpid", 7),
        ("process.executable.name", "python3.12"),
        ("process.executable.path", "/usr/bin/python3.12"),
        ("process.command", "python"),
        ("process.command_args", ("python", "train.py", "--api-key=***")),
        ("process.owner", "ada"),
        ("process.creation.time", "2023-11-14T22:13:24.120Z"),
        ("process.linux.cgroup", CGROUP),
        ("container.id", CONTAINER),
        ("k8s.pod.uid", UID),
        ("host.name", "node1"),
        ("host.id", "abc"),
        ("host.arch", "amd64"),
        ("os.type", "linux"),
        ("deployment.environment.name", "prod"),
        ("otel_gpu.resource.claimed", ("deployment.environment.name",)),
    ]


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_settings_of_the_allocator_are_told(name):
    """Whether segments can grow decides what helps against fragmentation."""
    facts = Facts(environment={name: "expandable_segments:True", "OTHER": "1"})

    attributes = describe(4242, 99, facts, Host())

    told = {key: value for key, value in attributes.items() if "environment" in key}
    assert told == {f"process.environment_variable.{name}": "expandable_segments:True"}


def test_little_is_known_of_a_placeholder():
    """An image of which only the comm is known has a name and no guesses."""
    attributes = describe(4242, 99, Facts(comm="pt_main_thread"), Host())

    assert attributes.pop("service.instance.id") == "39a9c38c-138f-53fe-ad03-94b742dc8a8e"
    assert attributes == {
        "service.name": "pt_main_thread",
        "process.pid": 4242,
        "process.executable.name": "pt_main_thread",
        "os.type": "linux",
    }


def test_a_process_speaks_for_its_service_and_not_for_its_place():
    """
    The context's service attributes win, the observed pid and host win, and the SDK's
    own telemetry attributes are left out.
    """
    facts = facts_of(
        BODY
        | {
            "otel_context": {
                "service.name": "trainer",
                "service.instance.id": "i-1",
                "service.namespace": "ml",
                "telemetry.sdk.name": "opentelemetry",
                "process.pid": 7,
                "process.runtime.name": "cpython",
                "host.name": "trainer-pod",
                "deployment.environment.name": "staging",
            }
        },
        0,
    )
    attributes = describe(4242, 99, facts, host_of(INFO))

    assert attributes["service.name"] == "trainer"
    assert attributes["service.instance.id"] == "i-1"
    assert attributes["service.namespace"] == "ml"
    assert attributes["process.pid"] == 4242
    assert attributes["process.runtime.name"] == "cpython"
    assert attributes["host.name"] == "node1"
    assert attributes["deployment.environment.name"] == "staging"
    assert "telemetry.sdk.name" not in attributes


def test_what_a_process_claims_is_marked():
    """And the kernel alone says in which container and pod it is, and whose."""
    claims = {
        "container.id": "f" * 64,
        "k8s.pod.uid": UID,
        "process.owner": "root",
        "k8s.pod.name": "pod-0",
        "service.instance.id": "i-1",
        "otel_gpu.agent.id": "x",
        "otel_gpu.resource.claimed": "",
        "host.name": "other",
    }
    listed = ",".join(f"{key}={value}" for key, value in claims.items())
    env = {"OTEL_RESOURCE_ATTRIBUTES": listed, "OTEL_SERVICE_NAME": "trainer"}

    attributes = describe(4242, 99, facts_of({"env": env}, 0), host_of(INFO))

    assert attributes.keys() & claims.keys() == {
        *("host.name", "k8s.pod.name", "service.instance.id", "otel_gpu.resource.claimed")
    }
    assert attributes["host.name"] == "node1"
    assert attributes["otel_gpu.resource.claimed"] == (
        *("k8s.pod.name", "service.instance.id", "service.name"),
    )


def test_a_container_that_a_user_could_have_named_is_a_claim():
    """Below user@UID.service each user can make cgroups, of whatever name."""
    pod = f"kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope"
    for folder, claimed in (
        ("", None),
        ("user.slice/user-1000.slice/user@1000.service/", ("container.id", "k8s.pod.uid")),
    ):
        attributes = describe(4242, 99, facts_of({"cgroups": [f"0::/{folder}{pod}"]}, 0), Host())

        assert (attributes["container.id"], attributes["k8s.pod.uid"]) == ("a" * 64, UID)
        assert attributes.get("otel_gpu.resource.claimed") == claimed


def test_a_process_that_claims_nothing_has_no_mark():
    assert "otel_gpu.resource.claimed" not in describe(1, 1, Facts(comm="x"), Host())


def test_the_instance_id_outlives_a_restart_of_the_agent():
    """Another agent that begins to watch the same process later calls it the same."""
    facts, host = facts_of(BODY, 0), host_of(INFO)
    instance = describe(4242, 99, facts, host)["service.instance.id"]

    assert describe(4242, 123_456, facts, host)["service.instance.id"] == instance


@pytest.mark.parametrize(
    ("pid", "start_boot_ns", "exec_ktime_ns", "boot_id"),
    [
        (4243, 5_000_000_000, 0, "boot"),
        (4242, 6_000_000_000, 0, "boot"),
        (4242, 5_000_000_000, 77, "boot"),
        (4242, 5_000_000_000, 0, "next boot"),
    ],
)
def test_instance_ids_tell_processes_apart(pid, start_boot_ns, exec_ktime_ns, boot_id):
    """Another pid, start, program or boot is another instance."""
    other = Facts(start_boot_ns=start_boot_ns, exec_ktime_ns=exec_ktime_ns)
    base = describe(4242, 99, Facts(start_boot_ns=5_000_000_000), Host("boot", {}))

    changed = describe(pid, 99, other, Host(boot_id, {}))

    assert changed["service.instance.id"] != base["service.instance.id"]


def test_the_container_may_be_known_from_mounts_only():
    """Where a cgroup namespace hides the path, the mounts tell."""
    facts = facts_of({"cgroups": ["0::/"], "mountinfo_container_id": CONTAINER}, 0)

    assert describe(1, 1, facts, Host())["container.id"] == CONTAINER


def test_the_same_pid_inside_and_outside_is_said_once():
    """process.vpid is there only where it differs."""
    assert "process.vpid" not in describe(7, 1, facts_of({"vpid": 7}, 0), Host())


def test_only_values_that_otlp_carries_are_taken_over():
    """Lists of one type become tuples; maps, mixed lists and huge numbers are dropped."""
    context = {
        "list": ["a", "b"],
        "mixed": ["a", 1],
        "map": {"a": 1},
        "huge": 1 << 63,
        "float": 0.5,
        "truth": True,
        "none": None,
        "": "no key",
        "long": "x" * 5000,
    }

    assert facts_of({"otel_context": context}, 0).context == {
        "list": ("a", "b"),
        "float": 0.5,
        "truth": True,
        "long": "x" * 4096,
    }


def test_facts_are_bounded():
    """A body holds as much as it likes; what is kept of it is limited."""
    facts = facts_of(
        {
            "command_args": ["x" * 10_000] * 1_000,
            "cgroups": ["y" * 10_000] * 1_000,
            "otel_context": {f"key{i}": i for i in range(1_000)},
            "env": {"OTEL_SERVICE_NAME": "z" * 10_000},
        },
        0,
    )

    assert (len(facts.command_args), len(facts.command_args[0])) == (64, 4096)
    assert (len(facts.cgroups), len(facts.cgroups[0])) == (32, 4096)
    assert len(facts.context) == MAX_ATTRIBUTES
    assert facts.environment == {}
