//! The native scheduler: what runs, until when, and what comes next.
//!
//! ```text
//!            ┌────────────── nothing to run ──────────────┐
//!            ▼                                            │
//!          IDLE ── other context ──▶ SWITCHING ──▶ (choose a queue) ──▶ RUNNING
//!            ▲  └─ same context ──────────────────────────┘               │
//!            └── finished, slice over and others want it, interrupted ────┘
//! ```

use xsched_core::Nanos;

use super::{CONTEXTS, Model, NONE, Span, SpanKind, Work, phase};

impl Model {
    /// Moves the model to `to`, through everything that happens until then.
    ///
    /// It ends: each event finishes a command, carries out a change, or lies at least a slice after the last one of
    /// its kind, and a slice is never shorter than 10 us.
    pub(crate) fn advance(&mut self, to: Nanos) {
        while let Some(at) = self.next_event().filter(|at| *at <= to) {
            self.now = self.now.max(at);
            self.turn();
        }
        self.now = self.now.max(to);
    }

    /// When something will happen next if nothing is submitted until then.
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        let device = match self.phase {
            phase::RUNNING if self.is_wanted_by_others() => Some(self.phase_end().min(self.slice_end)),
            phase::RUNNING | phase::SWITCHING => Some(self.phase_end()),
            _ => None,
        };
        let change = self.changing.iter().map(|index| self.queue(index).change_at).min();
        device.into_iter().chain(change).min()
    }

    /// Lets a change that was just made take effect.
    pub(super) fn refresh(&mut self) {
        self.turn();
        self.advance(self.now);
    }

    /// All that happens at one instant. What ends comes first, then what changes, then what begins.
    fn turn(&mut self) {
        self.renew_slice();
        match self.phase {
            phase::RUNNING if self.phase_end() <= self.now => self.finish_running(),
            phase::SWITCHING if self.phase_end() <= self.now => self.finish_switching(),
            _ => {}
        }
        self.apply_changes();
        if self.phase == phase::RUNNING && self.slice_end <= self.now && self.is_wanted_by_others() {
            self.stop_running(SpanKind::Sliced);
        }
        if self.phase == phase::IDLE {
            self.dispatch();
        }
    }

    /// A slice that ended while nobody else wanted the device begins anew, as often as it takes to reach now.
    fn renew_slice(&mut self) {
        let over = (self.now - self.slice_end).0;
        if self.phase == phase::RUNNING && over > 0 {
            let slice = self.settings.slice.max(super::SHORTEST_SLICE).0;
            self.slice_end += Nanos(over.div_ceil(slice).saturating_mul(slice));
        }
    }

    /// When the phase ends if nobody interferes.
    fn phase_end(&self) -> Nanos {
        if self.phase == phase::SWITCHING {
            return self.since + self.settings.switch_cost;
        }
        let head = self.command(self.running, self.queue(self.running).head);
        self.since + Nanos(head.amount)
    }

    fn dispatch(&mut self) {
        let keeps_its_turn = self.now < self.slice_end && self.wants_device(self.current);
        let Some(next) = (if keeps_its_turn { Some(self.current) } else { self.next_context() }) else {
            return;
        };
        let changes = next != self.current;
        if changes && self.current != NONE && self.settings.switch_cost > Nanos::ZERO {
            self.current = next;
            self.phase = phase::SWITCHING;
            self.since = self.now;
            return;
        }
        if changes || self.slice_end <= self.now {
            self.current = next;
            self.begin_slice();
        }
        if let Some(queue) = self.oldest_queue(next) {
            self.running = queue;
            self.phase = phase::RUNNING;
            self.since = self.now;
            self.queue_mut(queue).begun = 1;
        }
    }

    fn begin_slice(&mut self) {
        self.slice_end = self.now + self.settings.slice.max(super::SHORTEST_SLICE);
    }

    fn finish_switching(&mut self) {
        self.write_log(None, SpanKind::Switch);
        self.phase = phase::IDLE;
        self.begin_slice();
    }

    fn finish_running(&mut self) {
        let index = self.running;
        self.stop_running(SpanKind::Finished);
        let queue = self.queue_mut(index);
        queue.finished = queue.finished.wrapping_add(1);
        self.pop(index);
        self.settle(index);
    }

    /// Takes the running command off the device and charges for what it used.
    pub(super) fn stop_running(&mut self, kind: SpanKind) {
        let (index, used) = (self.running, self.used_by_running());
        self.write_log(Some(index), kind);
        let head = self.queue(index).head;
        let command = self.command_mut(index, head);
        command.amount = command.amount.saturating_sub(used.0);
        let queue = self.queue_mut(index);
        queue.busy += used;
        let context = queue.context;
        self.context_mut(context).busy += used;
        self.phase = phase::IDLE;
        self.running = NONE;
    }

    /// Device time the running command has used since it got the device.
    pub(super) fn used_by_running(&self) -> Nanos {
        if self.phase == phase::RUNNING { self.now - self.since } else { Nanos::ZERO }
    }

    fn write_log(&mut self, queue: Option<u32>, kind: SpanKind) {
        let context = queue.map_or(self.current, |index| self.queue(index).context);
        let (start, end, pid) = (self.since, self.now, self.context(context).pid);
        if start < end {
            self.log.push(Span { start, end, pid, context, queue, kind });
        }
    }

    /// The next context in the round that has something to run; the current one comes last.
    fn next_context(&self) -> Option<u32> {
        let after = if self.current == NONE { 0 } else { self.current.wrapping_add(1) };
        let count = super::number(CONTEXTS);
        (0..count).map(|step| after.wrapping_add(step) % count).find(|&context| self.wants_device(context))
    }

    fn is_wanted_by_others(&self) -> bool {
        self.live_contexts().any(|context| context != self.current && self.wants_device(context))
    }

    fn wants_device(&self, context: u32) -> bool {
        context != NONE
            && self.live & (1 << (context as usize % CONTEXTS)) != 0
            && self.context(context).queues.iter().any(|queue| self.is_eligible(queue))
    }

    fn is_eligible(&self, index: u32) -> bool {
        self.is_let_through(index) && self.head(index).is_some_and(|head| matches!(head.work(), Work::Run(_)))
    }

    /// First come, first served; what has begun is finished before another begins.
    fn oldest_queue(&self, context: u32) -> Option<u32> {
        let eligible = self.context(context).queues.iter().filter(|queue| self.is_eligible(*queue));
        eligible.min_by_key(|queue| {
            let sequence = self.head(*queue).map_or(u64::MAX, |head| head.sequence);
            (self.queue(*queue).begun == 0, sequence)
        })
    }
}
