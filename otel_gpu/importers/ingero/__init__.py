"""
The database that Ingero writes, as events.

Some facts about that database
------------------------------

Facts first, because the schema does not say them. They were read from the tool's source
(github.com/ingero-io/ingero) and checked against databases of it.

A row of ``events`` has one time, and what it is the time of depends on the row: of a CUDA
call the **start**, of a ``sched_switch`` the **end** of the interval off the CPU, which
lasted ``duration``. Both are CLOCK_MONOTONIC shifted once, at the tool's start, so they
never jump.

A ``sched_switch`` row knows a thread and calls it ``pid`` and ``tid`` alike. Which process
it is of is said by other rows of the thread, if there are any. Only threads whose number
is that of a watched process or of a forked child are seen at all: of a process's other
threads nothing is known. Why the thread left the CPU, and when it could run again, is not
recorded, and the thread in ``arg1`` is whoever had that CPU just before.

``process_fork`` rows are also written for threads.

Rows are **chosen**: the first ten seconds, all synchronizations, all switches of CUDA
processes, and calls of more than three times the running median. The rest is counted in
``event_aggregates``, by minute, where ``count`` includes the ``stored`` ones. But a minute
whose events are still being worked off when it is written is written again later, over
the first time, and with it goes what was counted first. It shows: then there are more
rows than ``stored`` says. The rows that the count includes are the ones written last.

Results of calls are in rows only. Frees have no size. ``gpu_id`` is always 0. Frames of
Python functions have the line of ``def`` and stand before the native ones, although those
are further in. What the tool lost is not counted by it.

Its ``causal_chains`` say that things happened at about the same time. They are not
imported.
"""
