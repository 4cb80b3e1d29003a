"""The load of the host and of cgroups, read from files that the test wrote."""

import json
import os

import pytest

from otel_gpu.capture.host.pressure import PressureReader
from otel_gpu.wire import bodies

PSI = "some avg10=1.50 avg60=0.20 avg300=0.00 total=12345\n"


@pytest.fixture
def host(tmp_path):
    """Writes files under ``proc`` and ``cgroups``, and reads them as the agent would."""

    class Host:
        proc = tmp_path / "proc"
        cgroups = tmp_path / "cgroup"

        def write(self, files):
            for name, text in files.items():
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

        def read(self, *pids):
            return PressureReader(proc=self.proc, cgroups=self.cgroups).read(pids)

    return Host()


def test_the_host_s_load_is_read(host):
    """PSI by resource, the load average, and pages swapped in and out."""
    host.write(
        {
            "proc/pressure/cpu": PSI + "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
            "proc/pressure/io": PSI,
            "proc/loadavg": "2.25 1.00 0.50 3/456 789\n",
            "proc/vmstat": "nr_free_pages 5\npswpin 11\npswpout 12\n",
        }
    )

    info = host.read()

    assert info["psi"]["cpu"] == {
        "some_avg10": 1.5,
        "some_avg60": 0.2,
        "some_avg300": 0.0,
        "some_total_us": 12345.0,
        "full_avg10": 0.0,
        "full_avg60": 0.0,
        "full_avg300": 0.0,
        "full_total_us": 7.0,
    }
    assert info["psi"]["io"]["some_total_us"] == 12345.0
    assert info["psi"]["memory"] == {}
    assert (info["load1"], info["cpus"]) == (2.25, os.cpu_count())
    assert (info["swap_in_pages"], info["swap_out_pages"]) == (11, 12)
    assert info["cgroups"] == {}


def test_a_host_that_says_nothing_has_no_load(host):
    """A kernel without PSI, or a container without these files, is no error."""
    assert host.read(1, 2) == {
        "psi": {"cpu": {}, "io": {}, "memory": {}},
        "load1": 0.0,
        "cpus": os.cpu_count(),
        "swap_in_pages": 0,
        "swap_out_pages": 0,
        "cgroups": {},
    }


def test_the_throttling_of_a_cgroup_is_its_members(host):
    """In the one hierarchy of version 2, by path, with the watched processes in it."""
    host.write(
        {
            "proc/10/cgroup": "0::/kube/pod\n",
            "proc/11/cgroup": "0::/kube/pod\n",
            "proc/12/cgroup": "0::/free\n",
            "cgroup/kube/pod/cpu.stat": (
                "usage_usec 5\nnr_periods 100\nnr_throttled 7\nthrottled_usec 1500\n"
            ),
            "cgroup/free/cpu.stat": "usage_usec 5\n",
        }
    )

    assert host.read(10, 11, 12, 13)["cgroups"] == {
        "kube/pod": {
            "nr_periods": 100,
            "nr_throttled": 7,
            "throttled_ns": 1_500_000,
            "pids": [10, 11],
        }
    }


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_the_throttling_of_a_version_1_cgroup_is_in_nanoseconds(host, mount):
    """There the controller has a hierarchy of its own, under one of two names."""
    host.write(
        {
            "proc/10/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job:with:colons\n0::/\n",
            f"cgroup/{mount}/job:with:colons/cpu.stat": (
                "nr_periods 100\nnr_throttled 7\nthrottled_time 1500\n"
            ),
        }
    )

    assert host.read(10)["cgroups"] == {
        f"{mount}/job:with:colons": {
            "nr_periods": 100,
            "nr_throttled": 7,
            "throttled_ns": 1500,
            "pids": [10],
        }
    }


@pytest.mark.parametrize("line", ["0::/pods/pod/job\n", "4:cpu:/pods/pod/job\n"])
def test_the_quotas_above_a_cgroup_hold_for_it_as_well(host, line):
    """A pod can be limited as a whole, and its containers not at all; the root never is."""
    mount = "cgroup/cpu" if "cpu" in line else "cgroup"
    stat = "nr_periods 9\nnr_throttled {0}\nthrottled_usec {0}\n"
    host.write(
        {
            "proc/10/cgroup": line,
            f"{mount}/pods/pod/job/cpu.stat": stat.format(0),
            f"{mount}/pods/pod/cpu.stat": stat.format(7),
            f"{mount}/pods/cpu.stat": "usage_usec 5\n",
            f"{mount}/cpu.stat": stat.format(0),
        }
    )

    found = host.read(10)["cgroups"]

    prefix = "cpu/" if "cpu" in line else ""
    assert {path: info["nr_throttled"] for path, info in found.items()} == {
        f"{prefix}pods/pod/job": 0,
        f"{prefix}pods/pod": 7,
    }
    assert found[f"{prefix}pods/pod"]["pids"] == [10]


def test_the_root_is_read_for_processes_that_are_in_it(host):
    """Where nobody made groups, its counters say that there was no throttling."""
    stat = "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n"
    host.write({"proc/10/cgroup": "4:cpu:/\n", "cgroup/cpu/cpu.stat": stat})

    assert host.read(10)["cgroups"]["cpu"]["pids"] == [10]


def test_a_process_s_own_cgroup_comes_before_those_above_others(host):
    """The bound on cgroups costs the less likely ones."""
    host.write({f"proc/{n}/cgroup": f"0::/slice{n}/job\n" for n in range(60)})
    stat = "nr_periods 1\nnr_throttled 0\nthrottled_usec 0\n"
    for n in range(60):
        host.write({f"cgroup/slice{n}/job/cpu.stat": stat, f"cgroup/slice{n}/cpu.stat": stat})

    found = host.read(*range(60))["cgroups"]

    assert len(found) == 64
    assert {f"slice{n}/job" for n in range(60)} < found.keys()


def test_the_number_of_cgroups_is_bounded(host):
    """A node with thousands of pods does not make records of megabytes."""
    host.write({f"proc/{n}/cgroup": f"0::/{n}\n" for n in range(100)})
    stat = "nr_periods 1\nnr_throttled 0\nthrottled_usec 0\n"
    host.write({f"cgroup/{n}/cpu.stat": stat for n in range(100)})

    assert len(host.read(*range(100))["cgroups"]) == 64


def test_members_of_a_known_cgroup_are_found_when_there_is_no_room_for_others(host):
    """The bound is on cgroups, and not on the processes in them."""
    stat = "nr_periods 1\nnr_throttled 0\nthrottled_usec 0\n"
    host.write({f"proc/{n}/cgroup": f"0::/{min(n, 63)}\n" for n in range(70)})
    host.write({f"cgroup/{n}/cpu.stat": stat for n in range(64)})

    assert host.read(*range(70))["cgroups"]["63"]["pids"] == list(range(63, 70))


def test_this_host_s_pressure_can_be_recorded():
    """What is read here and now passes the check that a replay does."""
    body = json.dumps(PressureReader().read([os.getpid()])).encode()

    assert bodies.PRESSURE.parse(body)["cpus"] == os.cpu_count()


def test_a_cgroup_is_read_for_a_while_after_its_process_ended(host):
    """What throttled a process may be counted only after its end."""
    host.write(
        {
            "proc/42/cgroup": "1:cpu:/job\n",
            "cgroup/cpu/job/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 7000\n",
        }
    )
    pressure = PressureReader(proc=host.proc, cgroups=host.cgroups)

    pressure.read([42])
    readings = [pressure.read([])["cgroups"] for _ in range(7)]

    assert [bool(reading) for reading in readings] == [True] * 5 + [False] * 2
    assert readings[0]["cpu/job"]["pids"] == [42]
