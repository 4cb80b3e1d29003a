"""Errors of devices and limited clocks: whom they are said of, and how much time is put down to them."""

import pytest

from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.explain.advice import advice_of
from otel_gpu.explain.chains import DeviceTrouble
from otel_gpu.explain.devices.xids import XIDS, meaning_of
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.kinds import CauseKind, EffectKind
from tests.activities import GPU, SECOND, T0, device_fault, devices, open_call, snapshot, stall
from tests.unit.explain.streams import (
    MS,
    START,
    STRANGER,
    TRAINER,
    WORKER,
    slow,
    slow_gap,
    usual,
    usual_gap,
)

UUID = GPU["uuid"].removeprefix("GPU-")
DEVICE = DeviceIdentity(0, UUID, None)
OTHER = {
    **GPU,
    "index": 1,
    "uuid": "GPU-other",
    "bus_id": "00000000:5E:00.0",
    "processes": [],
    "parts": [],
}
BUS_ID = "0000:4e:00"
FAILED = 999


def explain(*activities):
    """The chains and the incidents of a stream."""
    explainer = Explainer()
    chains = [chain for one in activities for chain in explainer.push(one)]
    chains += explainer.close()
    return chains, explainer.incidents()


def gpu(limited_ns, *, clock_mhz=990, uncorrected=0, **more):
    """A device that was limited for so long by now; its clocks can be 1,980 MHz."""
    return {
        **GPU,
        "bus_id": "00000000:4E:00.0",
        "limited_ns": {"sw_power_cap": 17, "hw_thermal": limited_ns},
        "errors": {"uncorrected": uncorrected},
        "clock_mhz": clock_mhz,
        **more,
    }


def wait(duration_ms=1000, process=TRAINER, start=START, device=DEVICE):
    """A synchronize call that was blocked on the device for all of its time."""
    return slow(
        duration_ms=duration_ms,
        process=process,
        start=start,
        blocked_ns=duration_ms * MS,
    )._replace(device=device)


def kinds(chain):
    return {cause.kind: cause.time_ns for cause in chain.causes}


def test_a_fault_of_a_process_is_an_incident_of_that_process_and_of_no_other():
    """XID 79: high, with what to do about it; others that use devices have none."""
    chains, incidents = explain(
        usual(TRAINER),
        usual(WORKER),
        devices(99, gpus=[gpu(0), OTHER]),
        device_fault(100, process=TRAINER),
        snapshot(120),
    )
    (chain,), (incident,) = chains, incidents
    assert chain.effect.kind == EffectKind.DEVICE_FAULT
    assert chain.effect.span_id
    assert incident.severity == "high"
    assert incident.processes == (TRAINER,)
    assert [cause.kind for cause in incident.causes] == [CauseKind.GPU_FAULT]
    assert incident.causes[0].trouble == DeviceTrouble(UUID, 79)
    assert incident.advice == (meaning_of(79).advice,)


def test_a_fault_that_names_no_watched_process_is_nobodys_incident():
    """It is said of the device, and by notes."""
    assert explain(usual(), devices(99, gpus=[gpu(0)]), device_fault(100), snapshot(120)) == (
        [],
        [],
    )


def test_a_call_that_hangs_after_a_fault_is_due_to_it():
    """From then on; what it waited before is a wait as ever."""
    hangs = open_call(TRAINER, "cudaStreamSynchronize", START, START + 20 * SECOND, device=DEVICE)
    hangs = hangs._replace(event=hangs.event._replace(blocked_ns=20 * SECOND))
    chains, incidents = explain(
        usual(),
        device_fault(105, process=TRAINER),
        hangs,
        snapshot(130),
    )
    fault, hung = chains
    assert kinds(hung) == {CauseKind.GPU_WAIT: 5 * SECOND, CauseKind.GPU_FAULT: 15 * SECOND}
    assert fault.effect.kind == EffectKind.DEVICE_FAULT
    assert [(one.severity, one.causes[0].kind) for one in incidents] == [
        ("high", CauseKind.GPU_FAULT)
    ] * 2


def test_who_uses_a_device_that_fell_off_its_bus_waits_in_vain_as_well():
    """Also if the driver names another process; not so if only that one's work is concerned."""
    for xid, others_ns in ((79, 400 * MS), (31, None)):
        chains, _ = explain(
            usual(STRANGER),
            devices(99, gpus=[gpu(0), OTHER]),
            device_fault(100.6, xid, process=TRAINER),
            wait(process=STRANGER),
            snapshot(120),
        )
        (strangers,) = [chain for chain in chains if chain.effect.process is STRANGER]
        assert kinds(strangers).get(CauseKind.GPU_FAULT) == others_ns


def test_calls_that_fail_after_a_fault_are_one_incident_with_it():
    """They take no time, and what they usually take is no matter."""
    failed = [
        slow(duration_ms=1, start=START + n * MS, status=FAILED)._replace(device=DEVICE)
        for n in range(3)
    ]
    chains, incidents = explain(
        usual(), device_fault(99.9, process=TRAINER), *failed, snapshot(120)
    )
    assert [chain.causes[0].kind for chain in chains] == [CauseKind.GPU_FAULT] * 4
    (incident,) = incidents
    assert (incident.severity, incident.effects) == ("high", 4)
    assert incident.advice[0] == meaning_of(79).advice


def test_what_only_follows_other_errors_is_no_cause():
    """XID 45 comes with every process that is killed."""
    chains, incidents = explain(
        usual(), device_fault(100.5, 45, process=TRAINER), wait(), snapshot(120)
    )
    assert [kinds(chain) for chain in chains if chain.effect.api] == [
        {CauseKind.GPU_WAIT: 1000 * MS}
    ]
    assert {incident.severity for incident in incidents} == {"low"}


def test_memory_that_could_not_be_corrected_is_a_fault_of_the_device():
    """By NVML's counter, where no XID was said."""
    chains, _ = explain(
        usual(),
        devices(99, gpus=[gpu(0)]),
        wait(),
        devices(102, gpus=[gpu(0, uncorrected=3)]),
        snapshot(120),
    )
    (chain,) = chains
    assert kinds(chain) == {CauseKind.GPU_FAULT: 1000 * MS}
    assert chain.causes[0].trouble == DeviceTrouble(UUID, uncorrected=3)


@pytest.mark.parametrize(
    ("limited_ms", "clock_mhz", "lost_ms"),
    [
        # All of the four seconds, at half of the clocks.
        (4000, 990, 500),
        # A quarter of them, at a quarter.
        (1000, 495, 187.5),
        # Nothing of it.
        (0, 990, None),
        # As fast as ever, whatever limits it: a power cap that costs next to nothing.
        (4000, 1980, None),
        (4000, 1950, None),
        # How fast is not known.
        (2000, 0, 500),
    ],
)
def test_of_a_wait_as_much_is_lost_as_clocks_were_limited(limited_ms, clock_mhz, lost_ms):
    """The share of the time between two readings, and of the clocks; the rest is a wait as ever."""
    chains, incidents = explain(
        usual(),
        devices(98, gpus=[gpu(7, clock_mhz=clock_mhz), OTHER]),
        wait(),
        devices(102, gpus=[gpu(7 + limited_ms * MS, clock_mhz=clock_mhz), OTHER]),
        snapshot(120),
    )
    (chain,) = chains
    assert sum(kinds(chain).values()) == 1000 * MS
    if lost_ms is None:
        assert kinds(chain) == {CauseKind.GPU_WAIT: 1000 * MS}
        return
    assert kinds(chain)[CauseKind.GPU_CLOCKS] == lost_ms * MS
    found = next(cause for cause in chain.causes if cause.kind == CauseKind.GPU_CLOCKS)
    assert found.trouble == DeviceTrouble(
        UUID, reason="hw_thermal", clock_mhz=clock_mhz, clock_limit_mhz=1980
    )
    if lost_ms == 500:
        (incident,) = incidents
        assert (incident.severity, incident.causes[0].kind) == ("high", CauseKind.GPU_CLOCKS)
        assert incident.advice[0] == advice_of(CauseKind.GPU_CLOCKS)


def test_the_highest_clocks_of_the_readings_around_count():
    """After the wait the device rests, which says nothing of the wait."""
    chains, _ = explain(
        usual(),
        devices(98, gpus=[gpu(0, clock_mhz=1485)]),
        wait(),
        devices(102, gpus=[gpu(4000 * MS, clock_mhz=345)]),
        snapshot(120),
    )
    assert kinds(chains[0])[CauseKind.GPU_CLOCKS] == 250 * MS


@pytest.mark.parametrize(
    ("device", "process", "gpus", "is_known"),
    [
        (DEVICE, TRAINER, [OTHER], True),
        (None, TRAINER, [], True),
        # NVML says that process 42 uses the device.
        (DeviceIdentity(0, None, None), TRAINER, [OTHER], True),
        (DeviceIdentity(0, None, None), STRANGER, [OTHER], False),
        (DeviceIdentity(0, "other", None), TRAINER, [OTHER], False),
        # A part of it.
        (DeviceIdentity(0, "0", None), STRANGER, [OTHER], True),
    ],
)
def test_which_device_a_process_means(device, process, gpus, is_known):
    """What CUDA said to it; else who uses it; else a host has only one."""
    chains, _ = explain(
        usual(process),
        devices(98, gpus=[gpu(0), *gpus]),
        wait(process=process, device=device),
        devices(102, gpus=[gpu(4000 * MS), *gpus]),
        snapshot(120),
    )
    assert (CauseKind.GPU_CLOCKS in kinds(chains[0])) == is_known


@pytest.mark.parametrize("at_s", [(98, 98), (98, 99), (98, 90)])
def test_readings_that_do_not_reach_into_the_wait_say_nothing(at_s):
    """As when the host's clock was set back between them."""
    chains, _ = explain(
        usual(),
        devices(at_s[0], gpus=[gpu(0)]),
        devices(at_s[1], gpus=[gpu(4000 * MS)]),
        wait(),
        snapshot(120),
    )
    assert kinds(chains[0]) == {CauseKind.GPU_WAIT: 1000 * MS}


def test_a_counter_that_began_anew_says_nothing():
    """The driver was loaded again."""
    chains, _ = explain(
        usual(),
        devices(98, gpus=[gpu(4000 * MS, uncorrected=9)]),
        wait(),
        devices(102, gpus=[gpu(0)]),
        snapshot(120),
    )
    assert kinds(chains[0]) == {CauseKind.GPU_WAIT: 1000 * MS}


def test_one_reading_says_nothing():
    """What was before it, nobody knows."""
    chains, _ = explain(usual(), wait(), devices(102, gpus=[gpu(4000 * MS)]), snapshot(120))
    assert kinds(chains[0]) == {CauseKind.GPU_WAIT: 1000 * MS}


def test_of_what_still_hangs_only_what_was_read_counts():
    """Half of the wait lies behind the last reading."""
    hangs = open_call(TRAINER, "cudaStreamSynchronize", START, START + 10 * SECOND, device=DEVICE)
    hangs = hangs._replace(event=hangs.event._replace(blocked_ns=10 * SECOND))
    chains, _ = explain(
        usual(),
        devices(99, gpus=[gpu(0)]),
        devices(105, gpus=[gpu(6 * SECOND)]),
        hangs,
    )
    assert kinds(chains[0])[CauseKind.GPU_CLOCKS] == 2500 * MS


def test_whom_others_wait_for_may_have_a_device_with_limited_clocks():
    """As the process that makes the data, or a rank that is late: the chain ends at its device."""
    made = wait(200, WORKER)._replace(device=DeviceIdentity(0, UUID, None))
    waiting = stall(
        TRAINER,
        START,
        START + 200 * MS,
        START + 200 * MS,
        reason="ipc",
        waker_pid=77,
        waker_tid=77,
        waker_comm="worker",
    )
    chains, _ = explain(
        usual_gap(),
        devices(98, gpus=[gpu(0)]),
        made,
        waiting,
        slow_gap(200, blocked_ns=200 * MS),
        devices(102, gpus=[gpu(4000 * MS)]),
        snapshot(120),
    )
    found = next(chain for chain in chains if chain.effect.kind == EffectKind.SLOW_GAP)
    (ipc,) = found.causes
    assert {(one.kind, one.time_ns) for one in ipc.via} == {
        (CauseKind.GPU_CLOCKS, 100 * MS),
        (CauseKind.GPU_WAIT, 100 * MS),
    }
    limited = next(one for one in ipc.via if one.kind == CauseKind.GPU_CLOCKS)
    assert limited.culprit.pid == WORKER.pid
    assert limited.trouble.reason == "hw_thermal"


def test_time_of_the_host_is_not_the_devices_fault():
    """A call that had no CPU."""
    chains, _ = explain(
        usual(),
        devices(98, gpus=[gpu(0)]),
        slow(duration_ms=1000, run_queue_ns=1000 * MS)._replace(device=DEVICE),
        devices(102, gpus=[gpu(4000 * MS)]),
        snapshot(120),
    )
    assert kinds(chains[0]) == {CauseKind.RUN_QUEUE: 1000 * MS}


def test_each_number_stands_once_and_says_what_to_do():
    """And one that nobody knows is as bad as most."""
    assert len({one.number for one in XIDS}) == len(XIDS)
    assert all(one.meaning and one.advice for one in XIDS)
    assert meaning_of(10_007).severity == "high"
    assert "10007" in meaning_of(10_007).advice


def test_faults_are_bounded():
    """5,003 of them, of nobody."""
    explainer = Explainer()
    for number in range(5_003):
        explainer.push(device_fault(100 + number / 1000))
    states = explainer._device_states
    assert len(list(states.faults(TRAINER, "", 0, T0 * 2))) == 0
    assert len(states._faults) == 256
