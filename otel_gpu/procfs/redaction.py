"""Hides secrets in command lines before they are recorded or sent anywhere."""

# Command lines carry secrets: anyone on the host may read them in /proc, so programs
# accept them there all the same. A recording or a trace travels further than the host.
# Masking goes by names, so it is a safety net and not a promise: a secret that is passed
# without a name is not recognized.

import re
from collections.abc import Iterable

MASK = "***"

_MAX_NAME_CHARACTERS = 128

_SECRET = re.compile(
    r"(?i)apikey|auth|authorization|cookie|credentials?|jwt|key|pass|passphrase|passwd|password|pwd|"
    r"secret|sig|signature|token"
)
# "apiKey" is two words, as are "api-key", "api_key" and "wandb.api_key".
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAME = re.compile(r"[A-Za-z_][\w.+-]*\Z")
# Repetitions are bounded: the text is anyone's, and searching it must stay linear.
_HEADER = re.compile(
    r"(?i)((?:proxy-)?authorization|x-[\w-]{0,32}(?:key|token))(\s{0,8}:\s{0,8}).+", re.DOTALL
)
# Up to the last @ of a host, as a password may hold others; the digest of an image is none.
_PASSWORD = re.compile(
    r"((?:[a-zA-Z0-9+.-]://|(?<![\w./+-]))[\w.+%~-]{0,128}):[^\s/]{1,256}@(?!sha256:)"
)
# In the query of a URL, in JSON, in a list of settings: a name, quoted or not, and its value.
_PAIR = re.compile(r"""(?<![\w.+-])(["']?)([A-Za-z_][\w.+-]{0,127})\1\s{0,8}[=:]\s{0,8}""")
_VALUE = re.compile(r"""(")(?:[^"\\]|\\.)*|(')(?:[^'\\]|\\.)*|[^\s&;,"'{}\]]+""", re.DOTALL)
# Settings in the value of an option in the value of an option.
_MAX_DEPTH = 3


def mask_secrets(command_args: Iterable[str]) -> list[str]:
    """
    Replace values that their option's name calls secret.

    Masks ``--api-key=VALUE``, ``--api-key VALUE``, ``API_KEY=VALUE``, also as the value of an option
    (``--env=API_KEY=VALUE``), in the query of a URL and in JSON; authorization headers; passwords
    before the host (``user:VALUE@host``). Masking twice changes nothing more.
    """
    masked: list[str] = []
    value_is_secret = False
    for argument in command_args:
        if value_is_secret and not argument.startswith("--"):
            masked.append(MASK)
            value_is_secret = False
            continue
        name, equals, _ = argument.lstrip("-+").partition("=")
        value_is_secret = _is_secret(name) and not equals and argument.startswith("-")
        masked.append(_mask_argument(argument, _MAX_DEPTH))
    return masked


def _mask_argument(argument: str, depth: int) -> str:
    name, equals, value = argument.partition("=")
    if equals and value and _is_secret(name.lstrip("-+")):
        return f"{name}={MASK}"
    if equals and depth and _NAME.match(name.lstrip("-+")):
        return f"{name}={_mask_argument(value, depth - 1)}"
    shorter = _HEADER.sub(rf"\1\2{MASK}", argument)
    return _mask_pairs(_PASSWORD.sub(rf"\1:{MASK}@", shorter))


def _mask_pairs(text: str) -> str:
    parts: list[str] = []
    end = 0
    for pair in _PAIR.finditer(text):
        if (
            pair.start() >= end
            and _is_secret(pair[2])
            and (value := _VALUE.match(text, pair.end()))
        ):
            parts += text[end : pair.end()], value[1] or value[2] or "", MASK
            end = value.end()
    return "".join((*parts, text[end:]))


def _is_secret(name: str) -> bool:
    # The last word says what the value is: "--token-count" is a count.
    if len(name) > _MAX_NAME_CHARACTERS or not _NAME.match(name):
        return False
    words = _WORD.findall(name)
    return bool(words) and _SECRET.fullmatch(words[-1]) is not None
