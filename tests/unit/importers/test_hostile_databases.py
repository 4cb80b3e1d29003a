"""Whatever a database holds: events or one clear error, never anything else."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu import pipeline
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError
from otel_gpu.explain.explainer import Explainer
from otel_gpu.export.exports import open_exports
from otel_gpu.importers import open_capture
from otel_gpu.options import Config, ExportConfig
from otel_gpu.report.collector import Collector
from otel_gpu.report.json_form import make_document, to_text
from tests.unit.importers.exports import Export


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """An export with a few rows in every table."""
    export = Export()
    export.add("TARGET_INFO_GPU", 0, "H100", 9, 0, 132, 80 << 30)
    for number in range(25):
        export.range(1_000 * number, 900, f"step {number}")
        export.call(1_000 * number, 5, 2 * number + 1)
        export.kernel(1_000 * number + 10, 400, 2 * number + 1)
        export.call(1_000 * number + 20, 5, 2 * number + 2, "cudaMemcpyAsync")
        export.copy(1_000 * number + 500, 100, 2 * number + 2)
    return export.write(tmp_path_factory.mktemp("hostile") / "x.sqlite")


def import_all(path):
    """Take a database all the way: spans, metrics, chains, report."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(export=ExportConfig(otlp_file=str(Path(folder) / "out.jsonl")))
        with (
            open_capture("nsys", path, config) as capture,
            open_exports(config, {}, live=False) as exports,
        ):
            blame = pipeline.ExplainStage(config, exports)
            collector = Collector(Explainer(), rejected=capture.counts.rejected)
            observers = [exports.observe, blame.observe, collector.observe]
            pipeline.process_events(capture.events(), Enricher(), observers)
            blame.close()
            report = collector.finish(str(path), capture.counts.notes)
            assert exports.shutdown(9)
    to_text(make_document(report))
    return capture.counts


def test_the_original_is_sound(original):
    """So that what follows is about the changes."""
    tally = import_all(original)

    assert tally.taken["activities of devices"] == 50
    assert tally.taken["calls of the host"] == 50
    assert tally.rejected == Counter()


@given(data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_file_is_imported_or_refused(original, tmp_path_factory, data):
    """Bytes changed, a piece cut off: one error of ours at most."""
    content = bytearray(original.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=20)):
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(16, len(content))) :]
    path = tmp_path_factory.mktemp("bytes") / "x.sqlite"
    path.write_bytes(content)

    try:
        import_all(path)
    except RecordingError as error:
        assert str(path) in str(error)  # noqa: PT017 -- it may also succeed


def test_a_file_that_is_cut_off_is_refused_with_a_hint(original, tmp_path):
    """The hint says how to copy one that is in use."""
    path = tmp_path / "cut.sqlite"
    path.write_bytes(original.read_bytes()[:8192])

    with pytest.raises(RecordingError, match="is damaged, or of another format") as error:
        import_all(path)

    assert ".backup" in error.value.hint
