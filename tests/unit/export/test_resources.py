from otel_gpu.export.resources import (
    ObservedResource,
    ProcessResources,
    agent_resource,
    place_attributes,
    scope,
)
from tests.unit.export import samples


def test_a_resource_is_the_observed_process():
    """Nothing of the agent's own identity is stamped on it."""
    resource = ProcessResources({}).of(samples.PROCESS)

    assert dict(resource.attributes) == {
        "service.name": "trainer",
        "service.instance.id": "i-1",
        "process.pid": 42,
    }
    assert resource.schema_url == "https://opentelemetry.io/schemas/1.44.0"


def test_the_agents_place_is_the_process_place_too():
    """What the operator says about the place holds, unless the process says otherwise."""
    environ = {
        "OTEL_RESOURCE_ATTRIBUTES": "k8s.cluster.name=gpu%201, zone=b,service.name=agent,"
        "service.instance.id=x,process.pid=1,process.owner=root",
        "OTEL_SERVICE_NAME": "agent",
    }
    image = samples.Program(1, 1, "x", 1, {"service.name": "trainer", "zone": "c"})

    assert dict(ProcessResources(environ).of(image).attributes) == {
        "k8s.cluster.name": "gpu 1",
        "zone": "c",
        "service.name": "trainer",
    }


def test_malformed_pairs_are_left_out_with_a_warning(caplog):
    """One bad pair does not cost the good ones."""
    found = place_attributes({"OTEL_RESOURCE_ATTRIBUTES": "a=1,,broken,=x,b=2=3"})

    assert found == {"a": "1", "b": "2=3"}
    assert "'broken' is not key=value" in caplog.text


def test_an_images_resource_is_made_once():
    """Every span of an image has the same Resource object, until it is forgotten."""
    resources = ProcessResources({})

    first = resources.of(samples.PROCESS)

    assert resources.of(samples.PROCESS) is first
    resources.forget(samples.PROCESS)
    assert resources.of(samples.PROCESS) is not first


def test_equal_resources_are_one_to_an_encoder():
    """Copies compare and hash alike; others do not."""
    one = ObservedResource({"a": 1})

    assert one == ObservedResource({"a": 1})
    assert hash(one) == hash(ObservedResource({"a": 1}))
    assert one != ObservedResource({"a": 2})


def test_the_agent_has_a_resource_of_its_own():
    """The agent's identity comes from the capture, so a replay gives the same."""
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "zone=b,service.name=x"}

    resource = agent_resource(samples.CAPTURE, environ)

    assert dict(resource.attributes) == {
        "zone": "b",
        "service.name": "otel-gpu",
        "service.version": "9.8.7",
        "service.instance.id": "63617074-7572-4531-a361-707475726531",
        "process.pid": 1,
        "host.name": "node-1",
        "host.id": "machine",
        "host.arch": "amd64",
    }
    assert resource == agent_resource(samples.CAPTURE, environ)


def test_a_scope_names_source_version_and_schema():
    """A scope says which of our sources spoke, and in which version."""
    cuda = scope("otel_gpu.cuda", "1.2")

    assert (cuda.name, cuda.version, cuda.schema_url) == (
        "otel_gpu.cuda",
        "1.2",
        "https://opentelemetry.io/schemas/1.44.0",
    )
