import re
from importlib.metadata import files
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.enrich.cuda_errors import DRIVER_ERRORS, RUNTIME_ERRORS, error_name


def header(name: str) -> str:
    for file in files("nvidia-cuda-runtime") or ():
        if file.name == name:
            return Path(file.locate()).read_text(encoding="utf-8")
    pytest.fail(f"nvidia-cuda-runtime holds no {name}", pytrace=False)


def enumerators(text: str, enumeration: str) -> dict[int, str]:
    (body,) = re.findall(enumeration, text, re.DOTALL)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    return {int(value, 0): name for name, value in re.findall(r"(\w+)\s*=\s*(\w+)", body)}


def test_runtime_errors_are_those_of_the_header():
    """Every cudaError_t of CUDA's own header is there, under its number."""
    expected = enumerators(
        header("driver_types.h"), r"enum __device_builtin__ cudaError\s*\{(.*?)\}"
    )

    assert expected == RUNTIME_ERRORS


def test_driver_errors_are_those_of_the_header():
    """Every CUresult of CUDA's own header is there, under its number."""
    expected = enumerators(header("cuda.h"), r"typedef enum cudaError_enum \{(.*?)\} CUresult")

    assert expected == DRIVER_ERRORS


@pytest.mark.parametrize(
    ("layer", "status", "name"),
    [
        (wire.LAYER_RUNTIME, 35, "cudaErrorInsufficientDriver"),
        (wire.LAYER_RUNTIME, 700, "cudaErrorIllegalAddress"),
        (wire.LAYER_DRIVER, 2, "CUDA_ERROR_OUT_OF_MEMORY"),
        (wire.LAYER_DRIVER, 700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (wire.LAYER_RUNTIME, 123456, "cudaError_123456"),
        (wire.LAYER_DRIVER, -5, "CUDA_ERROR_-5"),
    ],
)
def test_a_result_is_named_by_its_layer(layer, status, name):
    """The two layers number the same errors alike and name them differently."""
    assert error_name(layer, status) == name
