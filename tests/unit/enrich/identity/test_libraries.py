"""What a library is, from its file's name."""

import pytest

from otel_gpu.enrich.identity.libraries import is_standard_library, layer_of, source_of


@pytest.mark.parametrize(
    ("layer", "modules"),
    [
        ("driver", "libcuda.so libcuda.so.1 libcuda.so.535.104.05 libnvidia-ptxjitcompiler.so.1"),
        (
            "cuda",
            (
                "libcudart.so.12 libcudart.so.12.4.127 libcudart-9335f6a2.so.12 libcublasLt.so.12"
                " libcudnn_ops.so.9 libnccl.so.2 libnvrtc-builtins.so.12.4 libcusparseLt.so.0"
            ),
        ),
        ("python", "python python3 python3.11 python3.13t libpython3.12.so.1.0 libpython3.10d.so"),
        (
            "python_module",
            (
                "select.cpython-311-x86_64-linux-gnu.so _socket.cpython-314t-aarch64-linux-gnu.so"
                " _queue.abi3.so"
            ),
        ),
        (
            "foreign_calls",
            (
                "libffi.so.8 libffi-9334f6a2.so.8.1.2 _ctypes.cpython-312-x86_64-linux-gnu.so"
                " _cffi_backend.cpython-311-x86_64-linux-gnu.so"
            ),
        ),
        (
            "c_library",
            (
                "libc.so.6 libc-2.31.so ld-linux-x86-64.so.2 ld-2.31.so libpthread-2.31.so libm.so.6"
                " libstdc++.so.6.0.30 libc.musl-x86_64.so.1 ld-musl-aarch64.so.1 [vdso]"
                " libgomp-a34b3233.so.1"
            ),
        ),
        (
            "",
            (
                "libtorch_cuda.so trainer libc10.so libcudaq.so libcalc.so pythonic select_layers.so"
                " libcudart_static_wrapper.so libnccl-net-ofi.so my-libc.so _socketio.so libpythonize.so"
            ),
        ),
    ],
)
def test_a_library_is_told_by_its_file_name(layer, modules):
    """Versions, a wheel's hash and CPython's tag do not matter; what only begins alike is not."""
    assert {module: layer_of(module) for module in modules.split()} == dict.fromkeys(
        modules.split(), layer
    )


def test_no_module_is_the_program_s_own():
    """Code without a file was made by the program."""
    assert layer_of("") == ""


@pytest.mark.parametrize(
    ("file", "is_standard"),
    [
        ("/usr/lib/python3.11/threading.py", True),
        ("/opt/conda/lib/python3.13t/multiprocessing/queues.py", True),
        ("/usr/lib/python311.zip/queue.py", True),
        ("/opt/app/python311.zip/queue.py", True),
        ("/src/cpython/Lib/queue.py", True),
        ("<frozen importlib._bootstrap>", True),
        # Of Red Hat and SUSE.
        ("/usr/lib64/python3.9/threading.py", True),
        ("/usr/lib64/python3.9/site-packages/yaml/__init__.py", False),
        # Frozen into a program, as PyInstaller and cx_Freeze do it.
        ("queue.py", True),
        ("multiprocessing/connection.py", True),
        ("/opt/app/_internal/base_library.zip/codecs.py", True),
        ("/opt/app/lib/library.zip/threading.py", True),
        ("/opt/app/lib/library.zip/torch/utils/data/dataloader.py", False),
        # Scripts that were started by a path that begins here.
        ("train.py", False),
        ("code.py", False),
        ("src/queue.py", False),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", False),
        ("/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py", False),
        ("/app/queue.py", False),
        ("<string>", False),
        ("", False),
    ],
)
def test_a_file_of_the_standard_library_is_told_by_its_path(file, is_standard):
    """What was installed beside it is not of it."""
    assert is_standard_library(file) is is_standard


@pytest.mark.parametrize(
    "file",
    ["/usr/lib64/python3.9/queue.py", "/x/python311.zip/queue.py", "/src/Lib/queue.py", "queue.py"],
)
def test_a_source_of_the_standard_library_has_one_name_wherever_it_is(file):
    assert source_of(file) == "lib/python/queue.py"
