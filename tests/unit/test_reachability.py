"""Whether NCCL's own service can be reached, as ``doctor`` says it."""

from otel_gpu import reachability
from otel_gpu.reachability import check_ras
from tests.ras_servers import serving, speaks


def test_a_service_that_listens_is_said():
    """And what to set where nobody asks it."""
    with serving(speaks()) as service:
        assert check_ras(service.address).detail == f"{service.address} takes connections"


def test_one_that_nobody_asks_is_pointed_out(monkeypatch):
    """At the address that NCCL has by default."""
    with serving(speaks()) as service:
        monkeypatch.setattr(reachability, "_RAS_ADDRESS", service.address)
        finding = check_ras("")

    assert finding.status == "ok"
    assert "nccl.ras asks it which ranks do not answer" in finding.detail


def test_that_nobody_listens_is_no_fault():
    """No job may run now."""
    with serving(speaks()) as service:
        address = service.address
    finding = check_ras(address)

    assert finding.status == "ok"
    assert finding.detail.startswith(f"nobody listens on {address}")
