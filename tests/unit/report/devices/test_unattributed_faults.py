"""What the document says of errors of devices and of limited clocks."""

import io
import json

from rich.console import Console

from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.collector import Collector
from otel_gpu.report.json_form import make_document
from otel_gpu.report.render.text.document import write_text
from otel_gpu.report.wording.sentences import loss_of, plain, sentence_of
from tests.activities import capture, device_fault, snapshot
from tests.unit.explain.devices.test_device_causes import UUID, devices, gpu, wait
from tests.unit.explain.streams import MS, TRAINER, usual


def document_of(*activities):
    collector = Collector(Explainer())
    for activity in activities:
        collector.observe(activity)
    return collector.finish("test")


def test_an_error_of_a_device_is_told_with_its_number_and_what_to_do():
    """In sentences, in the text and in the JSON document."""
    document = document_of(capture(), usual(), device_fault(100, process=TRAINER), snapshot(120))
    (incident,) = document.incidents

    assert plain(sentence_of(incident)) == (
        "Its GPU had an error: XID 79, the device has fallen off the bus (0000:4e:00)"
    )
    assert plain(loss_of(incident)) == "trainer (42) met an error of its GPU"
    written = make_document(document)
    assert written["chains"][0]["effect"]["kind"] == "device_fault"
    trouble = written["chains"][0]["causes"][0]["trouble"]
    assert (trouble["device"], trouble["xid"]) == ("0000:4e:00", 79)
    json.dumps(written, allow_nan=False)
    console = Console(file=io.StringIO(), width=200)
    write_text(document, console)
    assert "HIGH: trainer (42) met an error of its GPU" in console.file.getvalue()
    assert "do: The device cannot be reached any more" in console.file.getvalue()


def test_limited_clocks_are_told_with_their_reason_and_megahertz():
    """And on which device."""
    document = document_of(
        capture(),
        usual(),
        devices(98, gpus=[gpu(0)]),
        wait(),
        devices(102, gpus=[gpu(4000 * MS)]),
        snapshot(120),
    )
    (incident,) = document.incidents
    assert plain(sentence_of(incident)) == (
        f"The clocks of its GPU were limited: hw_thermal at 990 of 1,980 MHz ({UUID})"
    )


def test_errors_of_nobody_are_noted():
    """With how many there were of each kind."""
    faults = [device_fault(100 + n, 79 if n % 2 else 31, times=2) for n in range(7)]
    document = document_of(capture(), usual(), *faults, snapshot(120))
    assert document.incidents == ()
    page_faults, fell_off = [note for note in document.notes if "XID" in note]
    assert page_faults == (
        "A device had an error that is of no watched process: XID 31, a page fault of the device's "
        "memory (0000:4e:00), 8 times."
    )
    assert fell_off.endswith("XID 79, the device has fallen off the bus (0000:4e:00), 6 times.")


def test_many_kinds_of_errors_are_bounded():
    """5,003 numbers, which only a forged recording has."""
    faults = [device_fault(100, n) for n in range(5003)]
    notes = [one for one in document_of(capture(), *faults).notes if "errors of devices" in one]
    assert notes == ["4,971 more errors of devices are of no watched process."]
