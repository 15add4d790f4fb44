"""What can go wrong. The words are those of the command line."""


class Error(Exception):
    """Anything that XSched could not do."""


class NoScheduler(Error):
    """No scheduler service is running."""


class SchedulerFailed(Error):
    """The scheduler service does not answer, or answers something that makes no sense."""


class NotAllowed(Error):
    """This user may not do that."""


class Refused(Error):
    """The scheduler service said no, and why."""


class OutOfRange(Error, ValueError):
    """A priority, share, time or name that cannot be."""


class NotSupported(Error):
    """The library or the device cannot do that."""


class UnscheduledWarning(RuntimeWarning):
    """What was asked for has no effect now, because nobody schedules this program. The program runs on."""
