"""The page of supported versions, read from the tests, the locked versions and the code."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from otel_gpu import options
from otel_gpu.capture.bpf.libbpf_file import MINIMUM_VERSION
from otel_gpu.wire.probe_table import COUNTED_APIS, LAYER_NAMES, ApiLayer
from tests.pythons import interpreters
from tools.build_hook import ARCHITECTURES

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"

_ABOUT = """\
Supported versions, and the versions that the tests run. This page is generated from the tests, from
`requirements-dev.lock` and from the code. A test whose program is not available on a host is skipped there, with the
reason.
"""

_KERNELS = """\
## Kernels

Tests run on the kernel of their host: 6.18 for all figures in these docs. One workload was captured by hand on
Debian 12's 6.1.192, in an emulated machine, with each loader. Other versions follow from the documented interfaces and
were not run.

The BPF programs need BTF (`CONFIG_DEBUG_INFO_BTF`) or, through BCC, [the kernel's headers](install.md#on-kernels-without-btf).
They also need uprobes (`CONFIG_UPROBE_EVENTS`), the BPF ring buffer and an attachment's cookie in a uprobe. The cookie
determines the oldest supported version. They need no kprobes and no tracefs. Lockdown in
*confidentiality* mode does not let BPF programs read memory, so no capture is possible.
"""

_NOT_SEEN = """\
## What cannot be observed

- Functions that are not exported: a statically linked CUDA runtime (its driver calls are
  observed), inlined wrappers; NCCL inside another library, as in builds of PyTorch with `USE_STATIC_NCCL`, in
  JAX and TensorFlow.
- Communication without NCCL (custom all-reduces of inference engines, NVSHMEM, symmetric memory), and collectives
  in replays of CUDA graphs: captured calls are counted separately.
- 32-bit programs.
- Work on the device: only the host's side of each call is observed, and times that a program measures itself between CUDA
  events (`gpu.cuda.event.elapsed`).
- RDMA transfers: `ibv_post_send`, `ibv_post_recv` and `ibv_poll_cq` are inline in programs and call a function of the
  driver. So do a vendor's own library (`mlx5dv_…`, `efadv_…`) and a statically linked `libibverbs`. Preparation of transfers,
  events of adapters, and counters of adapters for all processes together are observed.
- Transfers without NCCL: those of kernels themselves (NVSHMEM, DeepEP, GIN, symmetric memory) and a program's own
  collectives, such as vLLM's.
- Processes outside the agent's pid namespace.

`otel-gpu doctor --pid PID` lists the ones that concern one process.
"""

_BUILDS = {
    "NAMES": "every build",
    "ONE_OF_EACH": "one of each version",
    "QUICK": "three that install quickly",
}


class _Held(NamedTuple):
    """What one test says, and of which builds of CPython."""

    says: str
    builds: str
    where: str


def page(notice: str) -> str:
    """
    Return the page.

    Args:
        notice: Says that it is generated.
    """
    parts = ["# Support\n", f"{notice}\n", _ABOUT, *_versions(), "", _KERNELS, *_pythons(), ""]
    return "\n".join([*parts, _NOT_SEEN])


def _versions() -> Iterator[str]:
    locked = _locked()
    ranges = _ranges()
    collector = yaml.safe_load(_text("tests/backends/collector/builder.yaml"))["dist"]["version"]
    jaeger = _required("tests/backends/jaeger/go.mod", "github.com/jaegertracing/jaeger")
    kubernetes = _required("tests/deploy/validate/go.mod", "k8s.io/kubernetes")
    runtime = locked["nvidia-cuda-runtime"]
    layers = {
        name: sum(api.layer == layer for api in COUNTED_APIS) for layer, name in LAYER_NAMES.items()
    }
    loaders = options.OPTIONS["capture.loader"].choices[1:]
    rows = [
        (
            "kernel",
            "5.15 and newer, or with its BPF, such as RHEL 9: `doctor` tries each call",
            "the host's",
        ),
        ("machine", " and ".join(ARCHITECTURES), "x86_64; the other is compiled and not run"),
        ("loader", _listed(loaders), "all of them: one workload, the same events"),
        ("libbpf", f"{_dotted(MINIMUM_VERSION)} and newer", "the host's, and the wheel's"),
        ("Python, of the agent", _project()["requires-python"], "the virtual environment's"),
        (
            "CUDA runtime",
            f"{layers[ApiLayer.RUNTIME]} APIs, all spellings",
            f"the real one {runtime}, without a GPU; a stand-in, {_soname('cudart.c')}",
        ),
        (
            "CUDA driver",
            f"{layers[ApiLayer.DRIVER]} APIs, all spellings",
            f"a stand-in, {_soname('cuda.c')}",
        ),
        (
            "NCCL",
            f"{layers[ApiLayer.NCCL]} APIs, all spellings",
            f"a stand-in, {_soname('nccl.c')}; if provided, the real one",
        ),
        (
            "verbs",
            f"{layers[ApiLayer.VERBS]} calls of libibverbs, their default versions",
            "a stand-in, libibverbs.so.1",
        ),
        *(
            (name, ranges[package], locked[package])
            for name, package in (
                ("OpenTelemetry SDK", "opentelemetry-sdk"),
                ("gRPC", "grpcio"),
                ("protobuf", "protobuf"),
                ("MCP SDK", "mcp"),
            )
        ),
        ("OTLP", _listed(_protocols()), f"rotel {locked['rotel']}, and receivers of the tests"),
        ("Collector", "`collector-config/`", f"{collector}, built with the components of these"),
        ("Jaeger", "2", f"Go module {jaeger}"),
        ("Prometheus", "with native histograms or without", "Debian's package: 2.42 in Debian 12"),
        (
            "ClickHouse",
            "`gateway-clickhouse.yaml`",
            _text("tests/backends/clickhouse/requirements.txt").split()[-1],
        ),
        ("Tempo", "`tempo.yaml`", "3.1.0-dev, commit ad33aa8; in CI, other receivers of OTLP"),
        ("Kubernetes", "`deploy/kubernetes`", f"API server's validation, {kubernetes}; no cluster"),
    ]
    yield "| what | range | tests run it with |"
    yield "| --- | --- | --- |"
    yield from (f"| {what} | {meant} | {tested} |" for what, meant, tested in rows)


def _pythons() -> Iterator[str]:
    yield "## CPython in watched programs\n"
    yield "Builds whose Python frames the tests read:\n"
    yield "| build | from | one of each version |"
    yield "| --- | --- | --- |"
    for name in interpreters.NAMES:
        picked = "yes" if name in interpreters.ONE_OF_EACH else ""
        yield f"| `{name}` | {_origin(name)} | {picked} |"
    yield "\nTests of them:\n"
    yield "| test | builds | in |"
    yield "| --- | --- | --- |"
    for held in _held():
        yield f"| {held.says} | {held.builds} | `{held.where}` |"


def _origin(name: str) -> str:
    install = interpreters._INSTALL.get(name)  # noqa: SLF001 -- the pins are nobody else's matter
    if install is None:
        return "the host, if it has one"
    kind = str(getattr(install, "func").__module__).rpartition(".")[2]  # noqa: B009
    pins: Mapping[str, str] = getattr(install, "keywords")  # noqa: B009
    return {
        "apt": "Debian {suite}, {package}",
        "go": "a standalone build, {version}",
        "maven": "a shared library, {version}",
    }[kind].format(**pins)


def _held() -> Iterator[_Held]:
    """What is parametrised with builds of CPython."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "tests.pythons.interpreters" not in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                names = {
                    node.id
                    for decorator in function.decorator_list
                    for node in ast.walk(decorator)
                    if isinstance(node, ast.Name)
                }
                for constant in sorted(names & _BUILDS.keys()):
                    says = " ".join((ast.get_docstring(function) or function.name).split())
                    yield _Held(says, _BUILDS[constant], str(path.relative_to(ROOT)))


def _protocols() -> Sequence[str]:
    for node in ast.parse(_text("tests/unit/export/otlp/test_exporters.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROTOCOLS":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise LookupError("test_otlp.py has no PROTOCOLS")


def _locked() -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)", _text("requirements-dev.lock"), re.MULTILINE))


def _ranges() -> dict[str, str]:
    project = _project()
    extras = [item for items in project["optional-dependencies"].values() for item in items]
    found = (re.match(r"([\w-]+)(.*)", item) for item in [*project["dependencies"], *extras])
    return {match[1]: match[2].replace(",", ", ") for match in found if match}


def _project() -> Mapping[str, Any]:
    project: Mapping[str, Any] = tomllib.loads(_text("pyproject.toml"))["project"]
    return project


def _required(name: str, module: str) -> str:
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", _text(name), re.MULTILINE)
    if found is None:
        raise LookupError(f"{name} does not require {module}")
    return found[1]


def _soname(source: str) -> str:
    found = re.search(r"A stub (\S+?):? ", _text(f"tests/stubs/{source}"))
    if found is None:
        raise LookupError(f"tests/stubs/{source} does not say what it is")
    return found[1].rstrip(":")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
