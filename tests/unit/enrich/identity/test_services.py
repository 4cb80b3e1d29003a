import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.enrich.identity.services import (
    UNKNOWN_SERVICE,
    find_python_program,
    name_service,
    parse_resource_attributes,
)


def name(context=None, environment=None, exe=None, args=(), comm=""):
    return name_service(
        context=context or {},
        environment=environment or {},
        exe=exe,
        command_args=args,
        comm=comm,
    )


def test_each_source_of_a_name_gives_way_to_the_one_before():
    """The order is: context, OTEL_SERVICE_NAME, resource attributes, script, comm."""
    context = {"service.name": "from-context"}
    both = {"OTEL_SERVICE_NAME": "from-env", "OTEL_RESOURCE_ATTRIBUTES": "service.name=from-list"}
    listed = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=from%20list"}
    exe, args = "/usr/bin/python3.12", ["python", "/app/train.py"]

    assert name(context, both, exe, args, "comm") == "from-context"
    assert name({}, both, exe, args, "comm") == "from-env"
    assert name({}, listed, exe, args, "comm") == "from list"
    assert name({}, {}, exe, args, "comm") == "train.py"
    assert name({}, {}, "/usr/bin/tritonserver", ["tritonserver"], "comm") == "tritonserver"
    assert name({}, {}, None, ["/opt/bin/server", "-v"], "comm") == "server"
    assert name({}, {}, None, [], "comm") == "comm"
    assert name() == UNKNOWN_SERVICE


def test_blank_names_do_not_count():
    """An empty setting is as if it were not there."""
    environment = {"OTEL_SERVICE_NAME": " ", "OTEL_RESOURCE_ATTRIBUTES": "service.name="}

    assert name({"service.name": ""}, environment, "/bin/server", [], "c") == "server"
    assert name({"service.name": 7}, {}, "/bin/server", [], "c") == "server"


PROGRAMS = [
    (["python", "train.py"], "train.py"),
    (["python", "/app/src/train.py", "--epochs", "3"], "train.py"),
    (["python", "-m", "pkg.mod", "--flag"], "pkg.mod"),
    (["python", "-mpkg.mod"], "pkg.mod"),
    (["python", "-Im", "pkg.mod"], "pkg.mod"),
    (["python", "-u", "train.py"], "train.py"),
    (["python", "-uB", "-O", "train.py"], "train.py"),
    (["python", "-X", "dev", "train.py"], "train.py"),
    (["python", "-Xfaulthandler", "train.py"], "train.py"),
    (["python", "-W", "ignore", "train.py"], "train.py"),
    (["python", "-Wignore", "train.py"], "train.py"),
    (["python", "-uW", "error", "train.py"], "train.py"),
    (["python", "--check-hash-based-pycs", "always", "train.py"], "train.py"),
    (["python", "--", "-odd.py"], "-odd.py"),
    (["python", "-c", "import torch"], None),
    (["python", "-cimport torch", "train.py"], None),
    (["python", "-uc", "import torch", "train.py"], None),
    (["python", "-"], None),
    (["python"], None),
    ([], None),
    (["python", "-X"], None),
    (["python", "-m"], None),
    (["python", "--"], None),
    (["/venv/bin/python", "/venv/bin/torchrun", "--nproc", "8", "train.py"], "torchrun"),
    (["/venv/bin/python3", "/venv/bin/accelerate", "launch", "t.py"], "accelerate"),
    (["python", "/app/server/__main__.py"], "server"),
    (["python", "__main__.py"], "__main__.py"),
    (["python", "bundle.pyz"], "bundle.pyz"),
    (["VLLM::EngineCore"], None),
]


@pytest.mark.parametrize(("args", "expected"), PROGRAMS, ids=str)
def test_the_program_of_a_python_command_line_is_found(args, expected):
    """Options, with their values, are told from the script or module that is run."""
    assert find_python_program(args) == expected


@pytest.mark.parametrize(
    "exe", ["/usr/bin/python3.11", "/usr/bin/python", "/opt/pypy3.10", "/x/python3.13t"]
)
def test_an_interpreter_without_a_program_has_its_own_name(exe):
    """What python -c runs has no name, so the executable's is taken."""
    assert name(exe=exe, args=["python", "-c", "pass"]) == exe.rpartition("/")[2]


def test_only_python_is_looked_into():
    """The first argument of another program is not its name."""
    assert name(exe="/usr/bin/pythonista", args=["pythonista", "train.py"]) == "pythonista"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        (" a = b , c=d,", {"a": "b", "c": "d"}),
        ("team=r%26d%2Cml,k=a%3Db", {"team": "r&d,ml", "k": "a=b"}),
        ("k=a=b", {"k": "a=b"}),
        ("city=K%C3%B6ln", {"city": "Köln"}),
        ("empty=", {"empty": ""}),
        ("a=1,a=2", {"a": "2"}),
        ("a=1,nonsense", {}),
        ("a=1,=2", {}),
        ("a=1,b=%zz", {}),
        ("a=1,b=%ff", {}),
    ],
)
def test_resource_attributes_are_parsed_as_specified(text, expected):
    """Values are percent-decoded; one error discards all."""
    assert parse_resource_attributes(text) == expected


@given(
    context=st.dictionaries(st.just("service.name"), st.text() | st.integers() | st.none()),
    environment=st.dictionaries(
        st.sampled_from(["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"]), st.text()
    ),
    exe=st.none() | st.text() | st.just("/usr/bin/python3"),
    args=st.lists(st.text() | st.text(alphabet="-mcXWu")),
    comm=st.text(),
)
def test_every_process_has_a_name(context, environment, exe, args, comm):
    """Whatever a process calls itself, there is a name and it is not empty."""
    assert name(context, environment, exe, args, comm)
