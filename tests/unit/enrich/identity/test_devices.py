from otel_gpu.enrich.identity.devices import MAX_DEVICES, DeviceTable, bare_uuid
from otel_gpu.enrich.identity.identities import DeviceIdentity

IMAGE = (42, 1_000)
OTHER = (42, 2_000)
UUID_A = bytes.fromhex("0f1e2d3c4b5a69788796a5b4c3d2e1f0")
UUID_B = bytes.fromhex("ffffffffffffffffffffffffffffffff")


def test_a_uuid_is_written_without_prefix():
    """The text is what nvidia-smi prints, less "GPU-"."""
    assert bare_uuid(UUID_A) == "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def test_zeroes_and_wrong_lengths_are_no_uuid():
    """A device whose UUID was not read has none."""
    assert [bare_uuid(b""), bare_uuid(bytes(16)), bare_uuid(b"short")] == [None, None, None]


def test_uuid_and_name_add_up():
    """The UUID from one call and the name from another describe one device."""
    table = DeviceTable()
    table.learn(IMAGE, 0, UUID_A, "")
    table.learn(IMAGE, 0, bytes(16), "NVIDIA H100 80GB HBM3")

    assert table.find(IMAGE, 0) == DeviceIdentity(
        0, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "NVIDIA H100 80GB HBM3"
    )


def test_another_uuid_is_another_device():
    """A name never sticks to a UUID that it was not told with."""
    table = DeviceTable()
    table.learn(IMAGE, 0, UUID_A, "H100")
    table.learn(IMAGE, 0, UUID_B, "")

    assert table.find(IMAGE, 0) == DeviceIdentity(0, "ffffffff-ffff-ffff-ffff-ffffffffffff", None)


def test_an_index_means_something_only_inside_its_image():
    """Another image's device 0 may be another GPU, so it has no name from here."""
    table = DeviceTable()
    table.learn(IMAGE, 0, UUID_A, "H100")

    assert table.find(OTHER, 0) == DeviceIdentity(0, None, None)
    assert table.find(IMAGE, 1) == DeviceIdentity(1, None, None)


def test_an_unknown_index_is_no_device():
    """-1 stands for a device that the kernel side did not learn."""
    assert DeviceTable().find(IMAGE, -1) is None


def test_indices_are_bounded():
    """No process makes the table grow by inventing devices."""
    table = DeviceTable()
    table.learn(IMAGE, MAX_DEVICES, UUID_A, "H100")
    table.learn(IMAGE, -5, UUID_A, "H100")

    assert table._by_program == {}
    assert table.find(IMAGE, MAX_DEVICES) is None


def test_a_forgotten_image_has_no_devices():
    """Forgetting takes the names away."""
    table = DeviceTable()
    table.learn(IMAGE, 0, UUID_A, "H100")
    table.forget(IMAGE)
    table.forget(IMAGE)

    assert table.find(IMAGE, 0) == DeviceIdentity(0, None, None)
