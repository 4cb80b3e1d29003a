"""
A program that parks in a known chain of calls: one frame of every kind that Python has.

It prints ``pthread_self`` of its two threads once both are parked, and ends with its
input. The comment of each call that is underway then names the function that it is in.
"""

import ctypes
import functools
import os
import sys
import threading
import time

LOCK = threading.Lock()


def park():
    LOCK.acquire()  # in park


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)  # in decorated.<locals>.wrapper

    return wrapper


@decorated
def plain(depth):
    if depth:
        return plain.__wrapped__(depth - 1)  # in plain, outer
    return (
        1,
        park(),  # in plain, inner
        2,
    )


def generate():
    yield 0
    yield plain(1)  # in generate


async def inner():
    values = generate()
    next(values)
    return next(values)  # in inner


async def outer():
    return await inner()  # in outer


class Örtliche:  # noqa: PLC2401
    """Its name is Latin-1; that of a method takes two bytes a character."""

    @property
    def eigenschaft(self):
        return [outer().send(None) for _ in (1,)]  # in Örtliche.eigenschaft

    def 名前(self, _):  # noqa: N802, PLC2401
        return self.eigenschaft  # in Örtliche.名前

    @classmethod
    def klasse(cls):
        return sorted(  # in Örtliche.klasse
            [1],
            key=cls().名前,
        )


@ctypes.CFUNCTYPE(None)
def called_by_c():
    call = lambda: Örtliche.klasse()  # noqa: E731, PLW0108 # in called_by_c.<locals>.<lambda>
    call()  # in called_by_c


def main():
    eval("called_by_c()")  # noqa: S307 # in main


def other():
    park()  # in other


def say_when_parked(*threads):
    line = park.__code__.co_firstlineno + 1
    while any(sys._current_frames()[thread.ident].f_lineno != line for thread in threads):
        time.sleep(0.001)
    print(*(thread.ident for thread in threads), flush=True)  # noqa: T201
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    LOCK.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    threading.Thread(target=say_when_parked, args=(threading.main_thread(), thread)).start()
    main()  # in <module>
