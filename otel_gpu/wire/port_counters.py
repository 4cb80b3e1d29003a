"""
Counters of network ports under /sys/class/infiniband, by the names of their files.

Files of ``counters`` are InfiniBand's; those of ``hw_counters`` are the driver's (``mlx5``,
``bnxt_re``, ``efa``). Files without a row here are not read.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Meaning(StrEnum):
    """The unit or event that a counter counts."""

    TRANSMITTED_BYTES = "transmitted_bytes"
    RECEIVED_BYTES = "received_bytes"
    TRANSMITTED_PACKETS = "transmitted_packets"
    RECEIVED_PACKETS = "received_packets"
    WAITED_TICKS = "waited_ticks"
    RETRANSMIT = "retransmit"
    OUT_OF_SEQUENCE = "out_of_sequence"
    NOT_READY = "receiver_not_ready"
    CONGESTION = "congestion"
    ERROR = "error"
    LINK_DOWN = "link_down"


TRAFFIC: Final = frozenset(
    {
        Meaning.TRANSMITTED_BYTES,
        Meaning.RECEIVED_BYTES,
        Meaning.TRANSMITTED_PACKETS,
        Meaning.RECEIVED_PACKETS,
        Meaning.WAITED_TICKS,
    }
)
"""Counters that rise all the time on a healthy network."""


class Counter(NamedTuple):
    """The meaning of a counter, and the amount that one count stands for."""

    meaning: Meaning
    factor: int = 1


def _rows(meaning: Meaning, *names: str) -> dict[str, Counter]:
    return dict.fromkeys(names, Counter(meaning))


# InfiniBand counts data in words of four bytes. Drivers without these files count bytes.
_WORD_BYTES = 4
COUNTERS: Final[Mapping[str, Counter]] = {
    "port_xmit_data": Counter(Meaning.TRANSMITTED_BYTES, _WORD_BYTES),
    "tx_bytes": Counter(Meaning.TRANSMITTED_BYTES),
    "port_rcv_data": Counter(Meaning.RECEIVED_BYTES, _WORD_BYTES),
    "rx_bytes": Counter(Meaning.RECEIVED_BYTES),
    **_rows(Meaning.TRANSMITTED_PACKETS, "port_xmit_packets", "tx_pkts"),
    **_rows(Meaning.RECEIVED_PACKETS, "port_rcv_packets", "rx_pkts"),
    **_rows(Meaning.WAITED_TICKS, "port_xmit_wait"),
    **_rows(
        Meaning.RETRANSMIT,
        *("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "roce_adp_retrans"),
        *("roce_slow_restart", "duplicate_request"),
        *("to_retransmits", "seq_err_naks_rcvd", "dup_req"),
        *("retrans_pkts", "retrans_timeout_events"),
    ),
    **_rows(Meaning.OUT_OF_SEQUENCE, "out_of_sequence", "oos_drop_count"),
    **_rows(Meaning.NOT_READY, "rnr_nak_retry_err", "out_of_buffer", "rnr_naks_rcvd"),
    **_rows(
        Meaning.CONGESTION,
        *("np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored"),
        *("tx_cnp_pkts", "rx_cnp_pkts", "rx_ecn_marked_pkts", "impaired_remote_conn_events"),
    ),
    # Without counters of work that is flushed when a queue is closed, or that no program reads.
    **_rows(
        Meaning.ERROR,
        *("symbol_error", "link_error_recovery", "port_rcv_errors", "port_xmit_discards"),
        *("port_rcv_remote_physical_errors", "port_rcv_constraint_errors"),
        *("port_xmit_constraint_errors", "local_link_integrity_errors"),
        *("excessive_buffer_overrun_errors", "req_cqe_error", "resp_cqe_error"),
        *("req_remote_access_errors", "req_remote_invalid_request", "resp_local_length_error"),
        *("resp_remote_access_errors", "req_transport_retries_exceeded"),
        *("req_rnr_retries_exceeded", "rx_icrc_encapsulated"),
        *("max_retry_exceeded", "unrecoverable_err", "bad_resp_err", "remote_access_err"),
        *("remote_op_err", "tx_roce_errors", "tx_roce_discards"),
        *("rx_roce_errors", "rx_roce_discards"),
        *("unresponsive_remote_events", "rx_drops", "rdma_read_wr_err", "rdma_write_wr_err"),
    ),
    **_rows(Meaning.LINK_DOWN, "link_downed"),
}
"""By name; of several traffic counters with the same meaning, the first one that a port has is used."""
