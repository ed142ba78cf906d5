"""The engine's clock: simpy's, with one event for all that happens at one instant."""

from __future__ import annotations

from collections.abc import Callable, Sized
from contextlib import suppress
from typing import Any

import simpy
from simpy.events import EventPriority

LAST = EventPriority(2)  # priority of an event that comes after all others of its instant; simpy's own are 0 and 1
Due = tuple[Callable[[Any], object], Any]
Dues = dict[float, list[Due]]  # by instant


class Instant(simpy.Event):
    """One event for every instant, as long as there is only one thing to call: what happens then is the clock's own business."""

    def __init__(self, env: simpy.Environment, fire: Callable[[Any], None]) -> None:
        super().__init__(env)
        self._ok, self._value, self._calls = True, None, [fire]  # as a Timeout: it has happened and only waits for its turn

    @property
    def callbacks(self) -> list[Callable[[Any], None]]:
        """The same at every instant: simpy takes an event's callbacks away when it happens, this one happens again."""
        return self._calls

    @callbacks.setter
    def callbacks(self, _: object) -> None:
        pass


class Clock:
    """Calls `what(of)` after `delay` seconds; at one instant in the order in which it was asked to. `now` in seconds."""

    def __init__(self) -> None:
        self.rest: Callable[[], None] = lambda: None  # called when all that was due at an instant has happened
        self._begin()

    def _begin(self) -> None:
        self.env = simpy.Environment()
        self.now = 0.0
        self._due: Dues = {}
        self._instant = Instant(self.env, self._fire)

    def after(self, delay: float, what: Callable[[Any], object], of: Any) -> None:
        """Call `what(of)` in `delay` seconds."""
        at = self.now + delay
        due = self._due.get(at)
        if due is None:
            self._due[at] = [(what, of)]
            self.env.schedule(self._instant, delay=delay)
        else:
            due.append((what, of))

    def at_last(self, what: Callable[[], None]) -> None:
        """Call `what()` when nothing else is left to happen at this instant."""
        last = self.env.event()
        last._ok, last._value = True, None  # as a Timeout does: it has happened and only waits for its turn
        last.callbacks.append(lambda _: what())
        self.env.schedule(last, priority=LAST)

    def run(self) -> None:
        """Until nothing is left to happen."""
        self.rest()
        self.env.run()

    def alone(self, held: Sized) -> Dues:
        """From 0 to the end of the first instant after which `held` holds anything. What is left to happen then; the clock is back at 0."""
        self.rest()
        env, step = self.env, self.env.step
        with suppress(simpy.core.EmptySchedule):
            while not held:
                step()
                while held and env.peek() == env.now:
                    step()
        left = self._due
        self._begin()
        return left

    def expect(self, dues: Dues) -> None:
        """Take up what `alone` has left, at 0."""
        for at, due in dues.items():
            if at in self._due:
                self._due[at] += due
            else:
                self._due[at] = due
                self.env.schedule(self._instant, delay=at)

    def _fire(self, _: simpy.Event) -> None:
        self.now = now = self.env.now
        for what, of in self._due.pop(now):
            what(of)
        self.rest()
