"""Changes that parsers stumble over: bits, sizes, cuts, splices and words that mean something."""

import random
import re
from collections.abc import Callable, Sequence

MAX_BYTES = 1 << 20
"""Of an input; one that grows beyond is cut."""

# Around what a field of 8, 16, 32 and 64 bits can hold, with and without a sign.
_NUMBERS = (
    *(0, 1, 2, 7, 8, 127, 128, 255, 256, 4095, 4096, 32767, 32768, 65535, 65536),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 53) + 1),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
_TEXT_NUMBERS = (
    *(b"0", b"-1", b"-0", b"1e999", b"-1e999", b"NaN", b"1e-400", b"0.5", b"9007199254740993"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9" * 400),
)
_DIGITS = re.compile(rb"-?\d+")
_TOKENS = (b"\0", b"\n", b'"', b"\\", b"[", b"{", b"]", b"\xff", b"\xed\xa0\x80", b"\x1b[", b"%n")


def mutate(random_: random.Random, inputs: Sequence[bytes], tokens: Sequence[bytes] = ()) -> bytes:
    """Return one of the inputs with a few changes; some come from others of them."""
    data = bytearray(random_.choice(inputs))
    other = random_.choice(inputs)
    for _ in range(random_.choice((1, 1, 1, 2, 3, 5, 8, 20))):
        change = random_.choice(_CHANGES)
        change(random_, data, other, (*_TOKENS, *tokens, *tokens, *tokens))
    return bytes(data[:MAX_BYTES])


def _part(random_: random.Random, data: Sequence[int]) -> tuple[int, int]:
    """Return where a part begins and ends; short ones are more likely."""
    begin = random_.randrange(len(data) + 1)
    longest = min(len(data) - begin, random_.choice((1, 4, 16, 64, 512, 1 << 16)))
    return begin, begin + random_.randint(0, longest)


def _flip_bit(random_: random.Random, data: bytearray, *_: object) -> None:
    if data:
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _set_byte(random_: random.Random, data: bytearray, *_: object) -> None:
    if data:
        data[random_.randrange(len(data))] = random_.randrange(256)


def _set_number(random_: random.Random, data: bytearray, *_: object) -> None:
    size = random_.choice((1, 2, 4, 4, 8, 8))
    if len(data) >= size:
        at = random_.randrange(len(data) - size + 1)
        at -= at % random_.choice((1, size))
        value = random_.choice(_NUMBERS) + random_.choice((0, 0, 0, 1, -1, len(data)))
        order = random_.choice(("little", "little", "big"))
        data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, order)


def _set_length(random_: random.Random, data: bytearray, *_: object) -> None:
    """Change a number that could be a size or a place in the input."""
    size = random_.choice((2, 4, 8))
    order = random_.choice(("little", "little", "big"))
    for _ in range(20):
        if len(data) < size:
            return
        at = random_.randrange(len(data) - size + 1)
        value = int.from_bytes(data[at : at + size], order)
        if 0 < value <= 2 * len(data):
            value = random_.choice((value - 1, value + 1, 2 * value, len(data), value << 24, 0))
            data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, order)
            return


def _set_text_number(random_: random.Random, data: bytearray, *_: object) -> None:
    found = list(_DIGITS.finditer(data, random_.randrange(len(data) + 1)))[:64]
    if found:
        one = random_.choice(found)
        data[one.start() : one.end()] = random_.choice(_TEXT_NUMBERS)


def _cut(random_: random.Random, data: bytearray, *_: object) -> None:
    del data[random_.randrange(len(data) + 1) :]


def _remove(random_: random.Random, data: bytearray, *_: object) -> None:
    begin, end = _part(random_, data)
    del data[begin:end]


def _repeat(random_: random.Random, data: bytearray, *_: object) -> None:
    begin, end = _part(random_, data)
    times = min(random_.choice((1, 1, 2, 16, 1000)), MAX_BYTES // max(1, end - begin))
    data[end:end] = data[begin:end] * times


def _swap(random_: random.Random, data: bytearray, *_: object) -> None:
    size = random_.choice((1, 4, 8, 24, 64))
    if len(data) >= 2 * size:
        first = random_.randrange(len(data) - size + 1)
        second = random_.randrange(len(data) - size + 1)
        one, two = data[first : first + size], data[second : second + size]
        data[first : first + size], data[second : second + size] = two, one


def _splice(random_: random.Random, data: bytearray, other: bytes, *_: object) -> None:
    begin, end = _part(random_, other)
    at = random_.randrange(len(data) + 1)
    data[at : at + random_.choice((0, end - begin))] = other[begin:end]


def _join(random_: random.Random, data: bytearray, other: bytes, *_: object) -> None:
    at = random_.randrange(len(data) + 1)
    data[at:] = other[random_.randrange(len(other) + 1) :]


def _insert_token(
    random_: random.Random, data: bytearray, _: bytes, tokens: Sequence[bytes]
) -> None:
    token = random_.choice(tokens)
    at = random_.randrange(len(data) + 1)
    times = random_.choice((1, 1, 1, 3, 5000)) if len(token) < 8 else 1
    data[at : at + random_.choice((0, 0, len(token)))] = token * times


def _fill(random_: random.Random, data: bytearray, *_: object) -> None:
    begin, end = _part(random_, data)
    data[begin:end] = bytes([random_.choice((0, 0, 0xFF, 0x41))]) * (end - begin)


_CHANGES: tuple[Callable[..., None], ...] = (
    *(_flip_bit, _flip_bit, _set_byte, _set_number, _set_number, _set_length, _set_length),
    *(_set_text_number, _cut, _remove, _repeat, _swap, _splice, _splice, _join),
    *(_insert_token, _insert_token, _fill),
)
