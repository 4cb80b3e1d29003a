"""The processes of a capture: every program under its pid, with its names."""

# Some facts about programs
# -------------------------
#
# A pid alone is ambiguous: it is used again soon after its process ended, and an exec puts another
# program under it. So the kernel side identifies a program by the ktime at which it began; pid and
# that ktime never mean two programs.
#
# Names come from /proc, which knows only running processes, and they come late: a short process can
# be gone before it was read. So a program gets the best names at hand, and better ones later: those
# of its parent after a fork (same program, same environment), the path after an exec, a thread's
# comm when nothing else is known. When better names come, a new Program takes the place of the old
# one, until the program is settled. From then on it stays unchanged, because something of it can
# have been sent.
#
# Records of a process still arrive after its exit, from other CPUs' buffers and in the last reading
# of the aggregates. So ended programs are kept for a while, by ktime and not by the agent's clock,
# since a replay must forget at the same record. An agent that is late learns of many exits at once,
# and reads their last figures after that: however many there are, they are kept until then.

from collections import OrderedDict
from collections.abc import Callable, Mapping

from otel_gpu.enrich.clock import UnixClock
from otel_gpu.enrich.identity.attributes import Facts, Host, describe, facts_of, host_of
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.limits.caches import CACHES
from otel_gpu.wire.bodies import CaptureFacts, ProcessFacts

MAX_PROGRAMS = 8192
MAX_DEAD = 512
REMEMBER_DEAD_NS = 60 * 1_000_000_000
_GAPS: tuple[object, ...] = (None, "", (), {})


class ProcessTable:
    """
    Finds the program of any record, known or not.

    Holds up to ``max_programs``, and up to ``max_dead`` ended ones among them, besides those whose
    last figures are still to be read; calls ``forget`` with each key that it drops.
    """

    def __init__(
        self,
        clock: UnixClock,
        forget: Callable[[ProcessKey], object],
        *,
        max_programs: int = MAX_PROGRAMS,
        max_dead: int = MAX_DEAD,
    ) -> None:
        self._clock = clock
        self._forget = forget
        self._max_programs = max_programs
        self._max_dead = max_dead
        self._host = Host()
        # In the order in which the programs were learnt.
        self._programs: OrderedDict[ProcessKey, Program] = OrderedDict()
        self._facts: dict[ProcessKey, Facts] = {}
        # Programs that get no better names any more.
        self._settled: dict[ProcessKey, Program] = {}
        # In the order of their ends, with the ktime of that.
        self._dead: OrderedDict[ProcessKey, int] = OrderedDict()
        # When the maps were last read, and before that: one reading is several records.
        self._read_ktime_ns = self._read_before_ktime_ns = 0
        # The program that runs under a pid now, if known.
        self._current: dict[int, ProcessKey] = {}
        CACHES.register("processes", self, "_programs")
        CACHES.register("processes", self, "_facts")

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def settled(self) -> Mapping[ProcessKey, Program]:
        """The programs that stay unchanged, as a live view."""
        return self._settled

    def may_improve(self, key: ProcessKey) -> bool:
        """Return whether a program can still get better names; an unknown one cannot."""
        return key in self._programs and key not in self._settled

    def settle(self, pid: int, program_ktime_ns: int) -> None:
        """Keep a program unchanged from now on."""
        program = self.find(pid, program_ktime_ns, "")
        # In a full table it can be evicted already.
        if (pid, program_ktime_ns) in self._programs:
            self._settled[pid, program_ktime_ns] = program

    def note_reading(self, ktime_ns: int) -> None:
        """Note a reading of the kernel's figures, also of programs that ended before it."""
        if ktime_ns > self._read_ktime_ns:
            self._read_before_ktime_ns, self._read_ktime_ns = self._read_ktime_ns, ktime_ns

    def find(self, pid: int, program_ktime_ns: int, comm: str) -> Program:
        """
        Return the program of a record.

        Args:
            pid: The record's.
            program_ktime_ns: The record's.
            comm: The name of a program without any other; can be empty.
        """
        key = (pid, program_ktime_ns)
        program = self._programs.get(key)
        if program is None or (comm and not program.comm):
            program = self._put(key, self._facts.get(key, Facts())._replace(comm=comm))
        return program

    def learn_host(self, info: CaptureFacts) -> None:
        """Set the capture's host; every process is on it."""
        self._host = host_of(info)
        for key in list(self._programs):
            self._put(key, self._facts[key])

    def learn_facts(
        self, pid: int, program_ktime_ns: int, ktime_ns: int, body: ProcessFacts
    ) -> Program:
        """Add the facts from /proc; facts that are missing stay as they were."""
        key = (pid, program_ktime_ns)
        facts = facts_of(body, self._clock.offset_ns(ktime_ns))
        known = self._facts.get(key)
        if known is not None:
            facts = _complete(facts, known)
        self._bury_expired(ktime_ns)
        return self._put(key, self._with_context(facts))

    def learn_fork(self, parent: Program, child_pid: int, child_program_ktime_ns: int) -> Program:
        """Return a child with its parent's names until its own are known."""
        key = (child_pid, child_program_ktime_ns)
        known = self._programs.get(key)
        if known is not None and self._facts[key].start_boot_ns is not None:
            return self._put(key, self._with_context(self._facts[key]))
        inherited = self._facts.get(key_of(parent), Facts(parent.comm))
        self._bury_expired(child_program_ktime_ns)
        return self._put(
            key,
            inherited._replace(
                start_boot_ns=None,
                exec_ktime_ns=0,
                created_unix_ns=self._clock.to_unix_ns(child_program_ktime_ns),
                ppid=parent.pid,
                vpid=None,
                context=_inheritable(inherited.context),
            ),
        )

    def learn_exec(
        self, pid: int, program_ktime_ns: int, old_program_ktime_ns: int, path: str, comm: str
    ) -> Program:
        """
        Return the new program of a process.

        It keeps the facts of the process and its environment, which programs seldom change on the
        way. Its arguments are not known before its own facts come.
        """
        key = (pid, program_ktime_ns)
        old_key = (pid, old_program_ktime_ns)
        facts = self._facts.get(old_key, Facts())._replace(
            comm=comm,
            exec_ktime_ns=program_ktime_ns,
            exe=path or None,
            command_args=(),
            context={},
        )
        known = self._facts.get(key)
        if known is not None:
            facts = _complete(known._replace(exec_ktime_ns=program_ktime_ns), facts)
        if old_key != key:
            self._die(old_key, program_ktime_ns)
        self._bury_expired(program_ktime_ns)
        return self._put(key, facts)

    def learn_exit(self, pid: int, program_ktime_ns: int, ktime_ns: int, comm: str) -> Program:
        """Return a program that ended; it is forgotten later."""
        program = self.find(pid, program_ktime_ns, comm)
        self._die((pid, program_ktime_ns), ktime_ns)
        self._bury_expired(ktime_ns)
        return program

    def _with_context(self, facts: Facts) -> Facts:
        # A child that runs its parent's program has its parent's context if it has none of its own:
        # a fork publishes nothing, so its name would depend on whether its facts were read in time.
        parent = self._facts.get(self._current.get(facts.ppid or 0, (0, 0)))
        if facts.context or parent is None or not facts.command_args:
            return facts
        if (parent.exe, parent.command_args) != (facts.exe, facts.command_args):
            return facts
        return facts._replace(context=_inheritable(parent.context))

    def _put(self, key: ProcessKey, facts: Facts) -> Program:
        pid, program_ktime_ns = key
        known = self._programs.get(key)
        if known is not None and key in self._settled:
            return known
        attributes = describe(pid, program_ktime_ns, facts=facts, host=self._host)
        self._facts[key] = facts
        if known is not None and known.comm == facts.comm and known.attributes == attributes:
            # Exporters identify programs by identity, so one without better names stays.
            return known
        program = Program(
            pid=pid,
            program_ktime_ns=program_ktime_ns,
            comm=facts.comm,
            # The clock can have learnt more since; the first value stays.
            start_unix_ns=self._clock.to_unix_ns(program_ktime_ns)
            if known is None
            else known.start_unix_ns,
            attributes=attributes,
        )
        self._programs[key] = program
        if known is None:
            self._supersede(key)
            if len(self._programs) > self._max_programs:
                # The one that ended first, else the oldest: its exit was lost.
                self._bury(next(iter(self._dead or self._programs)))
        return program

    def _supersede(self, key: ProcessKey) -> None:
        # A pid has one process at a time: a newer program means that the older one is gone.
        pid, program_ktime_ns = key
        current = self._current.get(pid)
        if current is not None and program_ktime_ns < current[1]:
            self._die(key, current[1])
            return
        self._current[pid] = key
        if current is not None:
            self._die(current, program_ktime_ns)

    def _die(self, key: ProcessKey, ktime_ns: int) -> None:
        if key in self._programs and key not in self._dead:
            self._dead[key] = ktime_ns
            self._bury_excess()

    def _bury_excess(self) -> None:
        while len(self._dead) > self._max_dead:
            key, died_ktime_ns = next(iter(self._dead.items()))
            if died_ktime_ns > self._read_before_ktime_ns:
                return
            self._bury(key)

    def _bury_expired(self, now_ktime_ns: int) -> None:
        while self._dead:
            key, died_ktime_ns = next(iter(self._dead.items()))
            if died_ktime_ns + REMEMBER_DEAD_NS > now_ktime_ns:
                return
            self._bury(key)

    def _bury(self, key: ProcessKey) -> None:
        self._dead.pop(key, None)
        self._programs.pop(key, None)
        self._facts.pop(key, None)
        self._settled.pop(key, None)
        if self._current.get(key[0]) == key:
            del self._current[key[0]]
        self._forget(key)


def _complete(facts: Facts, known: Facts) -> Facts:
    # A zombie, or an unreadable process, has facts with gaps; facts never contain an exec.
    present = {name: value for name, value in facts._asdict().items() if value not in _GAPS}
    present |= {"exec_ktime_ns": known.exec_ktime_ns, "context": facts.context}
    return known._replace(**present)


def _inheritable(context: Mapping[str, object]) -> dict[str, object]:
    # A child is an instance of its own, and the mapping of its context is not inherited either.
    return {
        key: value
        for key, value in context.items()
        if key != "service.instance.id" and not key.startswith("process.")
    }
