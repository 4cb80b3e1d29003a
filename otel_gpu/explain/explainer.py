"""
The explainer: activities in, causal chains out.

It is pure: no clock, no I/O. Time comes from the stream, so a replay explains what the live capture
explained. Its memory is bounded, and what exceeds the limits is counted.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    BlocksActivity,
    CallActivity,
    CaptureActivity,
    CommunicatorActivity,
    DeviceFaultActivity,
    DevicesActivity,
    ExitActivity,
    FabricActivity,
    ForkActivity,
    GapActivity,
    MemoryActivity,
    OpenCallActivity,
    OutOfMemoryActivity,
    PressureActivity,
    SampleActivity,
    StallActivity,
    TimesActivity,
    WhoActivity,
)
from otel_gpu.enrich.cuda_errors import killed_by
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.explain.accounting.chronic import ChronicCauses
from otel_gpu.explain.accounting.recent_times import RecentTimes
from otel_gpu.explain.baselines import Baselines, of_calls
from otel_gpu.explain.budget import ChainLimit
from otel_gpu.explain.causes import Causes
from otel_gpu.explain.chain_builder import ChainBuilder
from otel_gpu.explain.chains import (
    Chain,
    Incident,
)
from otel_gpu.explain.devices.device_causes import DeviceCauses
from otel_gpu.explain.devices.fabric_causes import FabricCauses
from otel_gpu.explain.effects import Candidate, Effects
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.examples import Examples
from otel_gpu.explain.exits import ProcessExits
from otel_gpu.explain.incidents import Incidents
from otel_gpu.explain.memory.allocator_churn import AllocatorChurn
from otel_gpu.explain.memory.out_of_memory import (
    failure_chain,
    failure_of,
    find_failures,
    is_retried,
    recorded_chain,
)
from otel_gpu.explain.nccl.collectives import Collectives
from otel_gpu.explain.nccl.hangs import Hangs
from otel_gpu.explain.nccl.stragglers import Stragglers
from otel_gpu.explain.pending_effects import PendingEffects
from otel_gpu.explain.quotas import Quotas
from otel_gpu.explain.rules import ALLOCATOR_FAMILIES
from otel_gpu.explain.settings import Settings
from otel_gpu.state.cpu_samples import Samples
from otel_gpu.state.device_states import DeviceStates
from otel_gpu.state.memory.blocks import AllocatorState
from otel_gpu.state.memory.call_balance import balance_calls, sum_taken
from otel_gpu.state.memory.code_locations import StackLocations
from otel_gpu.state.memory.history import BlockWalk, walk_back


class Explainer:
    """
    Joins effects to their causes.

    An effect's chain comes out ``settings.settle_ns`` of the stream's time after it, or when the
    stream ends, as events that caused it can come later. A hung call comes out at once, and as a
    slow call when it returns; it counts once.

    Args:
        settings: The limits.
        keeps_closed: Whether ``incidents`` also returns closed ones, within the limits.

    Attributes:
        settings: The limits.
        blocks: What allocators hold, of the whole stream.
        communicators: The progress of ranks with their collectives, of the whole stream.
        churn: Calls that took and released device memory.
        examples: Recorded calls and gaps that show chronic causes.
        histories: What led to the last memory snapshot of each device.
        now_unix_ns: The time of the stream.
        given_up: What exceeded the limits, by kind.
    """

    def __init__(self, settings: Settings | None = None, *, keeps_closed: bool = True) -> None:
        self.settings = settings if settings is not None else Settings()
        self._timeline = EventTimeline(self.settings)
        self._baselines = Baselines(self.settings)
        self._effects = Effects(self._baselines, self.settings)
        self._quotas = Quotas(self._timeline)
        self._samples = Samples(self.settings.max_samples)
        self._device_states = DeviceStates()
        self._device_causes = DeviceCauses(self._device_states)
        self._collectives = Collectives(self._timeline, self.settings)
        self.communicators = self._collectives.communicators
        self._recent = RecentTimes()
        self._causes = Causes(
            timeline=self._timeline,
            quotas=self._quotas,
            settings=self.settings,
            samples=self._samples,
            devices=self._device_causes,
            collectives=self._collectives,
            recent=self._recent,
        )
        # Where reports come window by window, each has its own examples.
        self._keeps_examples = keeps_closed
        self.examples = Examples(
            lambda one: self._chain_builder.explain_example(one),  # noqa: PLW0108 -- made later
            self.settings.max_processes,
        )
        self._incidents = Incidents(
            self.settings, keeps_closed=keeps_closed, find_examples=self.examples.find
        )
        self._hangs = Hangs(
            collectives=self._collectives,
            causes=self._causes,
            incidents=self._incidents,
            settings=self.settings,
        )
        self.churn = AllocatorChurn(self.settings)
        self._exits = ProcessExits()
        self._fabric = FabricCauses(self.settings.max_processes)
        self._chain_builder = ChainBuilder(
            effects=self._effects,
            causes=self._causes,
            device_causes=self._device_causes,
            fabric=self._fabric,
            exits=self._exits,
            settings=self.settings,
        )
        stragglers = Stragglers(self.communicators, self.settings)
        self._chronic = ChronicCauses(
            state=self._baselines.state,
            settings=self.settings,
            more=self.churn.find,
            late=stragglers,
        )
        stragglers.places = self._chronic.places
        self._causes.names = self._chronic.names
        self._hung = self._incidents.hung
        self.blocks = AllocatorState()
        self.histories: dict[int, BlockWalk] = {}
        # Programs whose effects can still settle.
        self._settling = ProcessExits()
        self._pending = PendingEffects(self._effects, self.settings)
        self.now_unix_ns = 0
        self._settled_early = 0
        self._has_times = False
        self._ready: list[Chain] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            AggregatesActivity: self._observe_aggregates,
            BlocksActivity: self._observe_blocks,
            CallActivity: self._observe_call,
            CaptureActivity: self._observe_capture,
            DeviceFaultActivity: self._observe_device_fault,
            DevicesActivity: self._observe_devices,
            CommunicatorActivity: self._observe_communicator,
            ExitActivity: self._observe_exit,
            FabricActivity: self._observe_fabric,
            ForkActivity: self._observe_fork,
            GapActivity: self._observe_gap,
            MemoryActivity: self._observe_memory,
            OpenCallActivity: self._observe_open_call,
            OutOfMemoryActivity: self._observe_out_of_memory,
            PressureActivity: self._observe_pressure,
            SampleActivity: self._observe_sample,
            StallActivity: self._observe_stall,
            TimesActivity: self._observe_times,
            WhoActivity: self._chronic.names.observe,
        }

    def push(self, activity: Activity) -> Sequence[Chain]:
        """Add an activity; return the chains that are complete now."""
        handler = self._handlers.get(type(activity))
        if handler is not None:
            handler(activity)
        return self._take_ready() if self._ready else ()

    def close(self) -> Sequence[Chain]:
        """Return all pending chains and close incidents; nothing follows."""
        for candidate in self._pending.close():
            self._settle(candidate)
        self.communicators.finish(self.now_unix_ns)
        self._chronic.close()
        self._take_chronic(None)
        self._incidents.close()
        return self._take_ready()

    def incidents(self) -> list[Incident]:
        """Return all incidents so far, the worst first."""
        return self._incidents.all()

    def closed_incidents(self) -> Sequence[Incident]:
        """Return the incidents that ended since the last call."""
        return self._incidents.take_closed()

    @property
    def given_up(self) -> Counter[str]:
        """What exceeded the limits, by kind."""
        counts = self._timeline.given_up() + self._incidents.given_up
        counts["settled_early"] += self._settled_early
        counts["samples"] += self._samples.given_up + self._chronic.places.left_out
        return +counts

    def take_left_out(self) -> Counter[ChainLimit]:
        """Return how many effects were not explained since the last call, by reason."""
        left_out = self._pending.left_out
        if not left_out:
            return left_out
        self._pending.left_out = Counter()
        return +left_out

    def take_cut(self) -> Counter[Program | None]:
        """Return how many of them each program lost in favour of other users."""
        return self._pending.cut.take()

    def _take_ready(self) -> Sequence[Chain]:
        ready, self._ready = self._ready, []
        return ready

    def _advance(self, unix_ns: int) -> None:
        if unix_ns <= self.now_unix_ns:
            return
        self.now_unix_ns = unix_ns
        settled_ns = unix_ns - self.settings.settle_ns
        if settled_ns >= self._pending.due_unix_ns:
            for candidate in self._pending.take(settled_ns):
                self._settle(candidate)
        self._take_chronic(settled_ns)
        # At nearly every call nothing ended lately.
        if self._exits:
            self._forget_ended(settled_ns)

    def _take_chronic(self, settled_ns: int | None) -> None:
        for finding in list(self._chronic.take(settled_ns)):
            self._incidents.add_chronic(finding)
            if not self._keeps_examples:
                self.examples.forget(key_of(finding.process))

    def _forget_ended(self, settled_ns: int) -> None:
        for program in self._settling.take_over(settled_ns):
            self._chronic.forget(program)
            self._baselines.forget(program)
        # It can be the cause of another process's effect.
        for program in self._exits.take_over(settled_ns - self.settings.settle_ns):
            self._timeline.forget(program)
            self._samples.forget(program)
            self._recent.forget(program)

    def _observe_exit(self, activity: ExitActivity) -> None:
        process = activity.process
        for exits in (self._settling, self._exits):
            exits.add(key_of(process), process.start_unix_ns, activity.end_unix_ns)
        self.communicators.end(process)
        self._advance(activity.end_unix_ns)

    def _observe_capture(self, activity: CaptureActivity) -> None:
        self._collectives.has_no_calls = activity.lacks("calls")
        self._baselines.learn_layout(activity)
        self._chronic.begin(activity.unix_ns)
        self._recent.begin(activity.unix_ns)
        self._advance(activity.unix_ns)

    def _observe_aggregates(self, activity: AggregatesActivity) -> None:
        for series in activity.series:
            self._timeline.know(series.process)
            if series.api is not None and series.api.layer == wire.LAYER_VERBS:
                self._fabric.know_user(series.process)
        self._baselines.observe(activity)
        self._collectives.observe_aggregates(activity)
        self._advance(activity.unix_ns)
        if not self._has_times:
            self._find_hangs(activity.unix_ns)

    def _observe_times(self, activity: TimesActivity) -> None:
        for time in activity.times:
            self._timeline.know(time.process)
        self._timeline.add_times(activity)
        self._recent.observe(activity, self._baselines.state.accounts.get)
        self._chronic.observe_reading(activity.unix_ns)
        self._baselines.state.observe(activity)
        self._advance(activity.unix_ns)
        # A reading of times explains best why a rank does not come.
        self._has_times = True
        self._find_hangs(activity.unix_ns)

    def _find_hangs(self, unix_ns: int) -> None:
        self._ready += self._hangs.find(unix_ns)
        self._incidents.advance(unix_ns - self.settings.settle_ns)

    def _observe_pressure(self, activity: PressureActivity) -> None:
        self._quotas.observe(activity)
        self._advance(activity.unix_ns)
        self._incidents.advance(activity.unix_ns - self.settings.settle_ns)

    def _observe_fabric(self, activity: FabricActivity) -> None:
        self._fabric.observe(activity)
        self._advance(activity.unix_ns)

    def _observe_stall(self, activity: StallActivity) -> None:
        self._timeline.add_stall(activity)
        self._chronic.places.observe(activity)
        self._advance(activity.end_unix_ns)

    def _observe_sample(self, activity: SampleActivity) -> None:
        self._timeline.know(activity.process)
        self._samples.observe(activity)
        self._chronic.places.observe(activity)
        self._advance(activity.unix_ns)

    def _observe_fork(self, activity: ForkActivity) -> None:
        self._timeline.add_fork(activity)
        self._advance(activity.end_unix_ns)

    def _observe_call(self, activity: CallActivity) -> None:
        event = activity.event
        self._timeline.add_call(activity)
        self._chronic.places.observe_work(activity)
        if self._hung:
            key = (event.pid, event.tid, event.start_ktime_ns)
            self._incidents.end_hung(key, is_killed=killed_by(event.status) > 0)
        is_first = self._baselines.is_first(
            pid=event.pid,
            program_ktime_ns=event.program_ktime_ns,
            api=event.api,
            end_unix_ns=activity.end_unix_ns,
        )
        if activity.api.family in ALLOCATOR_FAMILIES and not event.status:
            baseline = of_calls(
                pid=event.pid,
                program_ktime_ns=event.program_ktime_ns,
                api=event.api,
                copy_kind=event.copy_kind,
            )
            self._baselines.follow_allocator(baseline, event.end_ktime_ns - event.start_ktime_ns)
        if activity.api.family in ALLOCATOR_FAMILIES:
            has_allocator = self.blocks.knows(activity.process)
            self.churn.observe(activity, has_allocator=has_allocator)
        if self._effects.may_be(event):
            self._wait(activity, is_first=is_first)
        self._advance(activity.end_unix_ns)

    def _observe_gap(self, activity: GapActivity) -> None:
        self._timeline.know(activity.process)
        self._chronic.places.observe(activity)
        if self._effects.may_be(activity.event):
            self._wait(activity, is_first=False)
        self._advance(activity.end_unix_ns)

    def _observe_communicator(self, activity: CommunicatorActivity) -> None:
        self._fabric.know_user(activity.process)
        self._collectives.observe(activity)
        self._advance(activity.unix_ns)

    def _observe_open_call(self, activity: OpenCallActivity) -> None:
        event = activity.event
        self._timeline.know(activity.process)
        self._collectives.observe_open_call(activity)
        self._hangs.leave_to_call(key_of(activity.process))
        self._advance(activity.seen_unix_ns)
        if event.root_start_ktime_ns not in (0, event.start_ktime_ns):
            return
        key = (event.pid, event.tid, event.start_ktime_ns)
        is_known = self._incidents.is_hung(key)
        candidate = Candidate(activity, activity.seen_unix_ns, is_first=False, stalls=())
        chain = self._chain_builder.explain(candidate)
        if chain is not None:
            self._incidents.add_hung(key, chain)
            if not is_known:
                self._ready.append(chain)

    def _observe_blocks(self, activity: BlocksActivity) -> None:
        self._timeline.know(activity.process)
        self.blocks.observe(activity)
        self._advance(activity.unix_ns)

    def _observe_memory(self, activity: MemoryActivity) -> None:
        snapshot = activity.snapshot
        history = self.histories[snapshot.device] = walk_back(snapshot)
        for number, failure in enumerate(
            find_failures(snapshot, history, StackLocations(snapshot.stacks)), 1
        ):
            self._add(recorded_chain(failure, number))

    def _observe_devices(self, activity: DevicesActivity) -> None:
        self._device_states.observe(activity)
        self._advance(activity.unix_ns)

    def _observe_device_fault(self, activity: DeviceFaultActivity) -> None:
        self._device_states.observe_fault(activity)
        if activity.process is not None:
            self._timeline.know(activity.process)
            self._add(self._device_causes.chain_of(activity, activity.process))
        self._advance(activity.unix_ns)

    def _observe_out_of_memory(self, activity: OutOfMemoryActivity) -> None:
        self._timeline.know(activity.process)
        self.blocks.observe(activity)
        if not is_retried(activity):
            held = self.blocks.find(activity.process, activity.event.device)
            own_bytes = self._taken_bytes(key_of(activity.process)) - activity.event.reserved_bytes
            failure = failure_of(activity, held, max(0, own_bytes))
            self._add(failure_chain(failure, activity))
        self._advance(activity.unix_ns)

    def _taken_bytes(self, program: ProcessKey) -> int:
        account = self._baselines.state.accounts.get(program)
        taken = balance_calls(account.series.values()) if account else {}
        return sum_taken(taken.values()).live_bytes if taken else 0

    def _add(self, chain: Chain) -> None:
        self._incidents.add(chain)
        self._ready.append(chain)

    def _wait(self, activity: CallActivity | GapActivity, *, is_first: bool) -> None:
        event = activity.event

        def make() -> Candidate:
            # Its stalls came right before it; they can be evicted until it settles.
            thread = event.pid, event.tid
            stalls = self._timeline.stalls(thread, event.start_ktime_ns, event.end_ktime_ns)
            return Candidate(
                activity=activity,
                end_unix_ns=activity.end_unix_ns,
                is_first=is_first,
                stalls=tuple(stalls),
            )

        for candidate in self._pending.add(activity, make):
            self._settled_early += 1
            self._settle(candidate)

    def _settle(self, candidate: Candidate) -> None:
        chain = self._chain_builder.explain(candidate)
        if chain is None:
            self.examples.consider(candidate)
        else:
            self.examples.add(chain)
            self._add(chain)
