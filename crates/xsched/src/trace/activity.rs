//! What a task or a queue does, as events report it.

/// What a task or a queue is doing.
pub(crate) struct Activity {
    pub(crate) has_work: bool,
    pub(crate) held: bool,
    /// Its process does not run.
    pub(crate) stalled: bool,
    /// When the current state began.
    pub(crate) since: u64,
}

/// What changes about a task or a queue.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    HasWork(bool),
    Held(bool),
    Stalled(bool),
}

/// The state of a task or queue that has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkState {
    Running,
    Held,
    Stalled,
}

impl Activity {
    /// Without work since this time.
    pub(crate) fn idle(since: u64) -> Self {
        Self { has_work: false, held: false, stalled: false, since }
    }

    pub(crate) fn state(&self) -> Option<WorkState> {
        match (self.has_work, self.held) {
            (false, _) => None,
            (true, _) if self.stalled => Some(WorkState::Stalled),
            (true, false) => Some(WorkState::Running),
            (true, true) => Some(WorkState::Held),
        }
    }

    /// Changes the state. Returns the previous state and when it began, if it ends now. A state that begins and ends at the same
    /// time never took effect and is dropped.
    pub(crate) fn apply(&mut self, change: Change, now: u64) -> Option<(WorkState, u64)> {
        let (before, since) = (self.state(), self.since);
        match change {
            Change::HasWork(has_work) => self.has_work = has_work,
            Change::Held(held) => self.held = held,
            Change::Stalled(stalled) => self.stalled = stalled,
        }
        if before == self.state() {
            return None;
        }
        self.since = now;
        before.filter(|_| since < now).map(|before| (before, since))
    }
}
