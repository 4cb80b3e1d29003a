import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.procfs.redaction import mask_secrets


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--api-key=abc", "x"], ["--api-key=***", "x"]),
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["--hf_token", "abc"], ["--hf_token", "***"]),
        (["--hf_token", "-abc"], ["--hf_token", "***"]),
        (["-password", "abc"], ["-password", "***"]),
        (["--dbPassword=abc"], ["--dbPassword=***"]),
        (["--apiKey=abc"], ["--apiKey=***"]),
        (["--SECRET=a=b"], ["--SECRET=***"]),
        (["HF_TOKEN=abc", "python"], ["HF_TOKEN=***", "python"]),
        (["wandb.api_key=abc"], ["wandb.api_key=***"]),
        (["+wandb.api_key=abc"], ["+wandb.api_key=***"]),
        (["--token", "--verbose", "x"], ["--token", "--verbose", "x"]),
        (["--token", "--other-token", "abc"], ["--token", "--other-token", "***"]),
        (["--token"], ["--token"]),
        (["--token="], ["--token="]),
        (["-H", "Authorization: Bearer abc"], ["-H", "Authorization: ***"]),
        (["-HX-Api-Key: abc def"], ["-HX-Api-Key: ***"]),
        (["postgres://ada:abc@db/x"], ["postgres://ada:***@db/x"]),
        (["--url=https://:abc@host/"], ["--url=https://:***@host/"]),
    ],
)
def test_secrets_that_have_a_name_are_masked(args, expected):
    """The option stays to be seen, its value does not."""
    assert mask_secrets(args) == expected


@pytest.mark.parametrize(
    "args",
    [
        ["python", "train.py", "--lr", "0.1"],
        ["--tokenizer", "llama"],
        ["--max-tokens", "100"],
        ["--token-count=3"],
        ["--monkey=1"],
        ["--keyframes", "3"],
        ["token", "count"],
        ["https://host:8080/path@2"],
        ["a:b", "C:\\x"],
        ["--secretary", "ada"],
        [],
    ],
)
def test_other_arguments_are_left_alone(args):
    """Masking must not hide what a program was asked to do."""
    assert mask_secrets(args) == args


@given(st.lists(st.text(alphabet="-=:/@ tokenkeyA_.+*", max_size=30) | st.text()))
def test_masking_twice_changes_nothing_more(args):
    """A masked command line may be masked again."""
    once = mask_secrets(args)

    assert mask_secrets(once) == once
    assert len(once) == len(args)
