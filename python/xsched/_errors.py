"""The exceptions. Their messages are those of the command line."""


class Error(Exception):
    """The base class of all errors of this package."""


class NoScheduler(Error):
    """No scheduler service is running."""


class SchedulerFailed(Error):
    """The scheduler service does not reply, or sends an invalid reply."""


class NotAllowed(Error):
    """This user may not perform the operation."""


class Refused(Error):
    """The scheduler service rejected the request; the message gives the reason."""


class OutOfRange(Error, ValueError):
    """An invalid priority, share, time or name."""


class NotSupported(Error):
    """The library or the device does not support the operation."""


class UnscheduledWarning(RuntimeWarning):
    """The request has no effect now, because this program is not scheduled. The program continues."""
