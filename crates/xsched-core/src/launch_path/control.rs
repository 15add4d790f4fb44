//! The program's own control of a queue, and the move of a queue from one scheduler's gate to another's.

use super::LaunchPath;
use crate::gate::Gate;
use crate::sync::{Movable, Mutex, Shared, lock};

/// The gate in front of the queue, and the gates it has moved away from.
pub(super) struct Gates {
    pub(super) current: Movable<Gate>,
    /// Held while the program opens or closes the gate and while the queue moves to another gate, so that the new gate is
    /// closed if and only if the old one was.
    control: Mutex<Control>,
}

#[derive(Default)]
struct Control {
    /// The gate can no longer be closed.
    is_released: bool,
    /// Former gates with threads inside, which still launch on this queue.
    former: Vec<Shared<Gate>>,
}

impl Gates {
    pub(super) fn new(gate: Shared<Gate>) -> Self {
        Self { current: Movable::new(gate), control: Mutex::default() }
    }
}

impl LaunchPath {
    /// Stops new launches without waiting for those under way. Returns false after [`LaunchPath::release`].
    pub(crate) fn close_without_waiting(&self) -> bool {
        let control = lock(&self.gates.control);
        if control.is_released {
            return false;
        }
        self.gate().count_all();
        self.gate().close();
        drop(control);
        self.release_deferred();
        true
    }

    /// Stops new launches and waits until no thread is launching.
    pub(crate) fn close(&self) {
        if !self.close_without_waiting() {
            return;
        }
        // Once the device has stopped the queue, a launch under way does not run, and may block inside the driver until the
        // queue resumes.
        let give_up = || self.is_preempted();
        self.gate().wait_until_empty(give_up);
        let former = lock(&self.gates.control).former.clone();
        for gate in &former {
            gate.wait_until_empty(give_up);
        }
        lock(&self.gates.control).former.retain(|gate| gate.is_occupied());
    }

    /// Undoes [`LaunchPath::close`].
    pub(crate) fn open(&self) {
        let _control = lock(&self.gates.control);
        self.gate().open();
    }

    /// Opens the gate permanently: the queue is being destroyed, and the program can no longer resume it.
    pub(crate) fn release(&self) {
        let mut control = lock(&self.gates.control);
        control.is_released = true;
        self.gate().open();
        drop(control);
        self.release_deferred();
    }

    /// Moves the queue to another gate: its scheduler was replaced, and with it the page that holds the gates.
    ///
    /// The program's own settings move along. Threads that wait at the old gate continue at the new one.
    pub fn move_to(&self, gate: Shared<Gate>) {
        let mut control = lock(&self.gates.control);
        let old = self.gate();
        gate.adopt(old);
        let former = self.gates.current.redirect(gate);
        let was_busy = !old.epoch().is_idle() || old.is_occupied();
        control.former.retain(|gate| gate.is_occupied());
        control.former.extend(former.filter(|gate| gate.is_occupied()));
        if was_busy {
            // What is in flight was counted at the old gate.
            self.assume_busy();
        }
        old.retire();
        drop(control);
        self.release_deferred();
    }
}
