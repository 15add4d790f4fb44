"""The time that the verification may take, and its division among the stages."""

import time

# The first time limits the stages of a full verification, the second those of a quick one.
TIME_LIMITS_S = {"full": 15 * 60, "quick": 3 * 60}
# Compiling everything takes 5 minutes on a usual machine. It has a limit of its own: the stages keep their time however long it takes.
BUILD_LIMIT_S = 30 * 60
# Left for the report and the clean-up.
RESERVE_S = 5


class OutOfTime(Exception):
    """The time of the verification is used up."""


class Budget:
    """A deadline. A stage gets the time that it requests, or its part of the time that is left."""

    def __init__(self, limit_s, requested, clock=time.monotonic):
        """`requested`: the seconds that each remaining stage requests, in their order."""
        self.clock = clock
        self.limit_s = limit_s
        self.began = clock()
        self.requested = list(requested)
        self.stage_end = self.began + limit_s

    def used(self):
        """The seconds since the beginning."""
        return self.clock() - self.began

    def left(self):
        """The seconds until the verification has to end."""
        return self.limit_s - RESERVE_S - self.used()

    def begin_stage(self, least_s):
        """Starts the next stage. Returns its seconds, and the part of its request that they are, at most 1.

        Raises OutOfTime if they are fewer than `least_s`, the least with which the stage has a meaning.
        """
        request = self.requested.pop(0)
        left = self.left()
        given = min(request, left * request / (request + sum(self.requested)) if self.requested else left)
        # A stage gets its whole request if the later stages' requests leave enough.
        given = max(given, min(request, left - sum(self.requested)))
        if given < least_s:
            raise OutOfTime(f"{max(0, left):.0f} s were left for all remaining stages; this one needs {least_s:.0f} s")
        self.stage_end = self.clock() + given
        return given, given / request

    def stage_left(self):
        """The seconds that the current stage has left."""
        return min(self.stage_end - self.clock(), self.left())

    def timeout(self, most_s):
        """A limit for a single program: a stage may use more than its part, but not the time of the whole verification."""
        left = self.left()
        if left <= 0:
            raise OutOfTime(f"the time of {self.limit_s / 60:.0f} minutes is used up")
        return min(most_s, left)
