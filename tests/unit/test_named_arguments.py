"""Calls of our own functions and classes name their arguments from the fourth on, at the latest."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "otel_gpu"
GENERATED = ("wire/__init__.py", "export/semconv.py")
MOST = 3
# Rows of a table, which is read by column.
TABLES = {
    ("capture/probes/arm64_sites.py", "_Form"),
    ("enrich/waits/kernel_reasons.py", "SystemCall"),
}
# Once per event, frame, block or series: a record takes twice as long to make with names.
FREQUENT = {
    ("enrich/name_resolver.py", "SampleActivity"),
    ("enrich/name_resolver.py", "Series"),
    ("enrich/stack_table.py", "Frame"),
    ("explain/traces/idle_causes.py", "count"),
    ("explain/traces/idle_causes.py", "settle"),
    ("importers/nsys/tables.py", "_add_host"),
    ("importers/torch_memory/dictionaries.py", "Block"),
    ("importers/torch_trace/rows.py", "add"),
    ("stacks/merging.py", "Frame"),
    ("stacks/unwind/expressions.py", "_pushed"),
    ("stacks/unwind/frame_steps.py", "_cfa"),
    ("stacks/unwind/frame_steps.py", "_going_on"),
    ("stacks/unwind/frame_steps.py", "_restored"),
    ("stacks/unwind/unwinder.py", "_frame"),
    ("stacks/unwind/unwinder.py", "caller"),
    ("state/capture_state.py", "Series"),
    ("state/capture_state.py", "SeriesDelta"),
    ("state/capture_state.py", "SeriesKey"),
    ("state/differences.py", "Aggregate"),
    ("state/memory/layout.py", "Block"),
    ("state/memory/layout.py", "Segment"),
    ("wire/communicators.py", "Signature"),
    ("wire/decoder.py", "TimesEntry"),
}
# A value of a type without names, or what lru_cache keeps: names would be another key of it.
WITHOUT_NAMES = {
    ("capture/probes/attacher_process.py", "_attach"),
    ("explain/accounting/chronic.py", "find"),
    ("export/metrics/exemplars.py", "duration_of"),
    ("export/metrics/measures.py", "call_attributes"),
    ("export/metrics/measures.py", "duration_of"),
    ("export/spans/activity_spans.py", "call_attributes"),
    ("stacks/read_budget.py", "_lose"),
    ("state/traces/host_time.py", "take"),
}


def _trees() -> Mapping[str, ast.Module]:
    paths = ((path, str(path.relative_to(PACKAGE))) for path in sorted(PACKAGE.rglob("*.py")))
    return {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for path, name in paths
        if name not in GENERATED
    }


def _signatures(trees: Mapping[str, ast.Module]) -> Mapping[str, list[float]]:
    # How many arguments each function and class of a name takes; those that take any number: inf.
    found = defaultdict(list)
    for tree in trees.values():
        for node in ast.walk(tree):
            made = node
            if isinstance(node, ast.ClassDef):
                fields = sum(isinstance(one, ast.AnnAssign) for one in node.body)
                by_name = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
                made = by_name.get("__init__") or by_name.get("__new__")
                if made is None:
                    found[node.name].append(fields)
            if isinstance(made, ast.FunctionDef):
                count = len(made.args.posonlyargs) + len(made.args.args)
                found[node.name].append(float("inf") if made.args.vararg else count)
    return found


def _unnamed(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    signatures = _signatures(trees)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or len(node.args) <= MOST:
                continue
            function = node.func
            name = getattr(function, "id", None) or getattr(function, "attr", "")
            most = max(signatures.get(name, [0]))
            is_starred = any(isinstance(one, ast.Starred) for one in node.args)
            if MOST < most < float("inf") and not is_starred:
                yield module, name


def test_calls_with_more_than_three_arguments_name_them():
    """A reader sees what each argument is; each exception is a call that is still there."""
    assert sorted(set(_unnamed(_trees()))) == sorted(TABLES | FREQUENT | WITHOUT_NAMES)
