"""What network adapters counted while somebody waited for the device."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.enrich.verbs_results import EVENTS
from otel_gpu.explain.advice import ADAPTER_ADVICE, COUNTED_ADVICE
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.report.wording.formats import describe_kind
from otel_gpu.report.wording.sentences import plain, sentence_of
from otel_gpu.wire.communicators import Communicator
from tests.activities import SECOND, T0, call, calls, open_call, snapshot
from tests.adapters import fabric, port
from tests.unit.explain.streams import (
    MS,
    START,
    STRANGER,
    TRAINER,
    chain_of,
    explain,
    in_ms,
    off_cpu,
    slow,
    slow_gap,
    usual,
    usual_gap,
)

RANK = Communicator(0x5EED, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, {}, ())


def communicator(process=TRAINER):
    """A process has a communicator."""
    return CommunicatorActivity(T0 + 9 * SECOND, process, (1, 0), None, RANK, (), 0)


def readings(*values, name="local_ack_timeout_err", **more):
    """One reading a second; the effects of these tests are in the last of them."""
    at_s = START // SECOND - len(values) + 2
    return [fabric(at_s + n - 0.5, port(**{name: value}, **more)) for n, value in enumerate(values)]


def waiting(*activities, process=TRAINER):
    """The only chain of a process with a communicator that waits 100 ms for the device."""
    waits = off_cpu(0, 99, reason="driver")
    *before, last = activities
    return chain_of(communicator(process), usual(), *before, waits, slow(blocked_ns=99 * MS), last)


def test_what_was_lost_meanwhile_is_a_cause_that_takes_no_time():
    """How long it took, nobody measured: the wait for the device keeps all of it."""
    chain = waiting(*readings(7, 7, 7, 20))

    assert in_ms(chain.causes) == [(CauseKind.GPU_WAIT, 100), (CauseKind.NETWORK, 0)]
    assert chain.unexplained_ns == 0
    (evidence,) = chain.causes[1].evidence
    assert evidence.reason == "mlx5_0 port 1: 13 local_ack_timeout_err"
    at = T0 + START
    assert evidence.start_unix_ns <= at
    assert evidence.end_unix_ns >= at + 100 * MS


def test_it_makes_no_incident_worse_and_comes_with_its_advice():
    """Low, led by the wait for the device."""
    waits = off_cpu(0, 99, reason="driver")
    *before, last = readings(7, 7, 7, 20)
    stream = (communicator(), usual(), *before, waits, slow(blocked_ns=99 * MS), last)
    _, explainer = explain(*stream)

    (incident,) = explainer.incidents()
    assert incident.severity == "low"
    assert [cause.kind for cause in incident.causes] == ["gpu_wait", "network"]
    assert COUNTED_ADVICE in incident.advice


def test_who_does_not_use_the_network_has_no_part_in_it():
    """Its wait is for its own device."""
    chain = waiting(*readings(7, 7, 20), process=STRANGER)

    assert [cause.kind for cause in chain.causes] == ["gpu_wait"]


def test_nothing_counted_is_no_cause():
    """Nor is traffic, nor what was counted at other times."""
    (first, *_) = readings(7, 7, 7, port_xmit_data=4)
    quiet = readings(7, 7, 7, port_xmit_data=8)[1:]

    chain = waiting(first, *quiet)

    assert [cause.kind for cause in chain.causes] == ["gpu_wait"]


@pytest.mark.parametrize(
    ("name", "values", "is_cause"),
    [
        ("np_cnp_sent", (0, 100, 200, 300, 400), False),
        ("np_cnp_sent", (0, 100, 200, 300, 501), True),
        ("out_of_sequence", (5, 5, 5, 5, 6), True),
        ("symbol_error", (0, 100, 200, 300, 301), True),
        ("link_downed", (3, 3, 3, 3, 4), True),
    ],
)
def test_what_is_usual_is_no_cause_unless_it_is_an_error(name, values, is_cause):
    """A network that marks packets all the time did not keep this call."""
    chain = waiting(*readings(*values, name=name))

    assert [cause.kind for cause in chain.causes][1:] == (["network"] if is_cause else [])


def test_a_port_that_goes_away_is_a_cause():
    """The adapter says nothing any more; another one is as it was."""
    at_s = START // SECOND
    both = [fabric(at_s - n, port(), port("mlx5_1")) for n in (2, 1)]

    chain = waiting(*both, fabric(at_s + 0.5, port("mlx5_1")))

    assert chain.causes[1].evidence[0].reason == "mlx5_0 port 1: went down"


def test_a_call_that_hangs_has_what_was_counted_so_far():
    """It is asked before it returns, and a link that fails is what it waits for."""
    at_s = START // SECOND
    before, after = (fabric(at_s + n, port(link_downed=n)) for n in (0, 1))
    hangs = open_call(TRAINER, "cudaStreamSynchronize", START, START + 12 * SECOND)

    chain = chain_of(communicator(), before, after, hangs)

    network = chain.causes[-1]
    assert (network.kind, network.time_ns) == ("network", 0)
    assert network.evidence[0].reason == "mlx5_0 port 1: 1 link_downed"


def test_a_gap_of_the_program_s_own_work_has_nothing_to_do_with_it():
    """Only who waits is kept waiting."""
    *before, last = readings(7, 7, 20)

    chain = chain_of(communicator(), usual_gap(), *before, slow_gap(), last)

    assert [cause.kind for cause in chain.causes] == ["host_work"]


def test_many_counters_are_told_by_the_most_of_them():
    """And how many more there are."""
    names = ("out_of_sequence", "packet_seq_err", "rnr_nak_retry_err", "out_of_buffer", "rx_drops")
    first = port(**dict.fromkeys((*names, "np_cnp_sent"), 1))
    later = port(**{name: 2 + n for n, name in enumerate(names)}, np_cnp_sent=1001)
    at_s = START // SECOND

    chain = waiting(fabric(at_s - 1, first), fabric(at_s + 1, later))

    assert chain.causes[1].evidence[0].reason == (
        "mlx5_0 port 1: 1,000 np_cnp_sent, 5 rx_drops, 4 out_of_buffer, 3 rnr_nak_retry_err, "
        "2 other counters"
    )


def event(name, at_s=START / SECOND, process=TRAINER):
    """What an adapter said to a process that asked."""
    status = wire.VERBS_EVENT_STATUS + EVENTS.index(name)
    return call(process, "ibv_get_async_event", round(at_s * SECOND), 0, status=status)


def test_what_an_adapter_says_is_an_incident_of_who_asked():
    """High, apart from what else went wrong, with what the adapters counted meanwhile."""
    at_s = START // SECOND
    counted = [fabric(at_s + n - 0.5, port(link_downed=n)) for n in (0, 1)]
    other = slow(process=STRANGER, start=START + SECOND, blocked_ns=99 * MS)

    chains, explainer = explain(
        usual(STRANGER), counted[0], event("IBV_EVENT_PORT_ERR"), counted[1], other
    )

    (chain,) = [one for one in chains if one.effect.kind == "network_event"]
    assert (chain.effect.api, chain.severity) == ("IBV_EVENT_PORT_ERR", "high")
    assert [one.reason for one in chain.causes[0].evidence] == [
        "IBV_EVENT_PORT_ERR",
        "mlx5_0 port 1: 1 link_downed",
    ]
    worst, *_ = explainer.incidents()
    assert (worst.severity, worst.lost_ns, worst.effects) == ("high", 0, 1)
    assert worst.advice == (ADAPTER_ADVICE,)
    assert [image.pid for image in worst.processes] == [TRAINER.pid]
    assert plain(sentence_of(worst)) == "A network adapter, or a queue of it, failed"
    assert describe_kind(worst.chains[0].effect) == "network adapter event IBV_EVENT_PORT_ERR"


def test_a_user_of_verbs_is_known_by_its_calls():
    """It needs no communicator to wait for the network."""
    *before, last = readings(7, 7, 7, 20)
    waits = off_cpu(0, 99, reason="driver")
    registered = snapshot(9, calls(TRAINER, "ibv_reg_mr", [MS]))

    chain = chain_of(registered, usual(), *before, waits, slow(blocked_ns=99 * MS), last)

    assert [cause.kind for cause in chain.causes] == ["gpu_wait", "network"]
