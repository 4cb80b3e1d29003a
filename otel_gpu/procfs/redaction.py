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
    r"(?i)apikey|auth|authorization|credentials?|key|passphrase|passwd|password|pwd|secret|token"
)
# "apiKey" is two words, as are "api-key", "api_key" and "wandb.api_key".
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAME = re.compile(r"[A-Za-z][\w.+-]*\Z")
# Repetitions are bounded: the text is anyone's, and searching it must stay linear.
_HEADER = re.compile(
    r"(?i)((?:proxy-)?authorization|x-[\w-]{0,32}(?:key|token))(\s{0,8}:\s{0,8}).+", re.DOTALL
)
_URL_PASSWORD = re.compile(r"([a-zA-Z0-9+.-]://[^\s/:@]{0,128}):[^\s/@]{1,256}@")


def mask_secrets(command_args: Iterable[str]) -> list[str]:
    """
    Replace values that their option's name calls secret.

    Masks ``--api-key=VALUE``, ``--api-key VALUE``, ``API_KEY=VALUE``, authorization
    headers and passwords in URLs. Masking twice changes nothing more.
    """
    masked: list[str] = []
    value_is_secret = False
    for argument in command_args:
        if value_is_secret and not argument.startswith("--"):
            masked.append(MASK)
            value_is_secret = False
            continue
        option = argument.lstrip("-+")
        name, equals, value = option.partition("=")
        secret = _is_secret(name)
        value_is_secret = secret and not equals and argument.startswith("-")
        if secret and equals and value:
            masked.append(argument[: len(argument) - len(value)] + MASK)
        elif ":" in argument:
            shorter = _HEADER.sub(rf"\1\2{MASK}", argument)
            masked.append(_URL_PASSWORD.sub(rf"\1:{MASK}@", shorter))
        else:
            masked.append(argument)
    return masked


def _is_secret(name: str) -> bool:
    # The last word says what the value is: "--token-count" is a count.
    if len(name) > _MAX_NAME_CHARACTERS or not _NAME.match(name):
        return False
    words = _WORD.findall(name)
    return bool(words) and _SECRET.fullmatch(words[-1]) is not None
