"""
Works until it is ended, below DEPTH frames, in each of so many processes.

    busy.py DEPTH PROCESSES

The work is what host work of training is like: loops, texts, JSON, sorting, compressed data.
"""

import json
import os
import re
import sys
import zlib

DATA = bytes(range(256)) * 200
WORD = re.compile(r"k\d+")


def add(numbers):
    return sum(number * number for number in range(numbers))


def describe(total):
    return {f"k{number}": total for number in range(300)}


def work():
    while True:
        described = describe(add(3_000))
        json.loads(json.dumps({"numbers": [1, 2, 3] * 20, "described": described}))
        WORD.findall(" ".join(described))
        sorted(range(1_000), key=lambda number: -number)
        zlib.decompress(zlib.compress(DATA, 1))


def below(depth):
    if depth:
        below(depth - 1)
    else:
        work()


for _ in range(int(sys.argv[2]) - 1):
    if not os.fork():
        break
# The module and the work are frames too.
below(int(sys.argv[1]) - 3)
