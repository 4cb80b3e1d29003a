"""Masks secrets in command lines before they are recorded or sent."""

# Programs accept secrets on their command line, although all users of the host can read
# them in /proc. A recording or a trace leaves the host. Masking works by names, so it is a
# safety net and not a guarantee: a secret without a name is not recognized.

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
# Repetitions are bounded: the text is untrusted, and the search must stay linear.
_HEADER = re.compile(
    r"(?i)((?:proxy-)?authorization|x-[\w-]{0,32}(?:key|token))(\s{0,8}:\s{0,8}).+", re.DOTALL
)
# A user and the colon before a password, which ends at the last @ of the word: a password can
# contain more of them, and a token is long. The digest of a container image is not a host.
_USER = re.compile(r"(?:(?<=[a-zA-Z0-9+.-]://)|(?<![\w./+-]))[\w.+%~-]{0,128}:")
_WORD_OF_URL = re.compile(r"[^\s/]+")
_HOST = re.compile(r".+@(?!sha256:)", re.DOTALL)
# In the query of a URL, in JSON, in a list of settings: a name, quoted or not, and its value.
_PAIR = re.compile(r"""(?<![\w.+-])(["']?)([A-Za-z_][\w.+-]{0,127})\1\s{0,8}[=:]\s{0,8}""")
_VALUE = re.compile(r"""(")(?:[^"\\]|\\.)*|(')(?:[^'\\]|\\.)*|[^\s&;,"'{}\]]+""", re.DOTALL)
# Settings in the value of an option in the value of an option.
_MAX_DEPTH = 3
_MAX_PASSES = 8


def mask_secrets(command_args: Iterable[str]) -> list[str]:
    """
    Replace the values of options whose names mean a secret.

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
        masked.append(_mask_whole(argument))
    return masked


def _mask_whole(argument: str) -> str:
    # A mask can remove what hid another secret, such as a space in a password.
    for _ in range(_MAX_PASSES):
        before, argument = argument, _mask_argument(argument, _MAX_DEPTH)
        if argument == before:
            break
    return argument


def _mask_argument(argument: str, depth: int) -> str:
    name, equals, value = argument.partition("=")
    if equals and value and _is_secret(name.lstrip("-+")):
        return f"{name}={MASK}"
    if equals and depth and _NAME.match(name.lstrip("-+")):
        return f"{name}={_mask_argument(value, depth - 1)}"
    shorter = _HEADER.sub(rf"\1\2{MASK}", argument)
    return _mask_pairs(_WORD_OF_URL.sub(_mask_password, shorter))


def _mask_password(word: re.Match[str]) -> str:
    text, (begin, end) = word.string, word.span()
    user = _USER.search(text, begin, end)
    host = _HOST.match(text, user.end(), end) if user else None
    if user is None or host is None:
        return word[0]
    return f"{text[begin : user.end()]}{MASK}{text[host.end() - 1 : end]}"


def _mask_pairs(text: str) -> str:
    parts: list[str] = []
    while found := _find_secret(text):
        begin, quote, end = found
        parts += text[:begin], quote, MASK
        # The rest is searched as it will be after the mask.
        text = text[end:]
    return "".join((*parts, text))


def _find_secret(text: str) -> tuple[int, str, int] | None:
    # The start of the first secret value, its opening quote, and its end.
    for pair in _PAIR.finditer(text):
        if _is_secret(pair[2]) and (value := _VALUE.match(text, pair.end())):
            return pair.end(), value[1] or value[2] or "", value.end()
    return None


def _is_secret(name: str) -> bool:
    # The last word is the kind of the value: "--token-count" is a count.
    if len(name) > _MAX_NAME_CHARACTERS or not _NAME.match(name):
        return False
    words = _WORD.findall(name)
    return bool(words) and _SECRET.fullmatch(words[-1]) is not None
