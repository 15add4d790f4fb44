//! The device's own scheduler: what runs, until when, and what runs next.
//!
//! ```text
//!            ┌────────────── nothing to run ──────────────┐
//!            ▼                                            │
//!          IDLE ── other context ──▶ SWITCHING ──▶ (choose a queue) ──▶ RUNNING
//!            ▲  └─ same context ──────────────────────────┘               │
//!            └── completed, time slice over under contention, interrupted ┘
//! ```

use xsched_core::Nanos;

use super::{MAX_CONTEXTS, Model, NONE, Span, SpanKind, Work, phase};

impl Model {
    /// Advances the model to `to`, through every event until then.
    ///
    /// It terminates: each event completes a command, applies a change, or lies at least a time slice after the last
    /// event of its kind, and a time slice is never shorter than 10 us.
    pub(crate) fn advance(&mut self, to: Nanos) {
        while let Some(at) = self.next_event().filter(|at| *at <= to) {
            self.now = self.now.max(at);
            self.handle_instant();
        }
        self.now = self.now.max(to);
    }

    /// When the next event occurs if nothing is submitted until then.
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        let device = match self.phase {
            phase::RUNNING if self.is_contended() => Some(self.phase_end().min(self.slice_end)),
            phase::RUNNING | phase::SWITCHING => Some(self.phase_end()),
            _ => None,
        };
        let change = self.changing.iter().map(|index| self.queue(index).change_at).min();
        device.into_iter().chain(change).min()
    }

    /// Lets a change that was just made take effect.
    pub(super) fn refresh(&mut self) {
        self.handle_instant();
        self.advance(self.now);
    }

    /// Handles everything that happens at one instant: first what ends, then what changes, then what starts.
    fn handle_instant(&mut self) {
        self.renew_slice();
        match self.phase {
            phase::RUNNING if self.phase_end() <= self.now => self.finish_running(),
            phase::SWITCHING if self.phase_end() <= self.now => self.finish_switching(),
            _ => {}
        }
        self.apply_changes();
        if self.phase == phase::RUNNING && self.slice_end <= self.now && self.is_contended() {
            self.stop_running(SpanKind::Sliced);
        }
        if self.phase == phase::IDLE {
            self.dispatch();
        }
    }

    /// A time slice that ended without contention is renewed as often as it takes to reach the present.
    fn renew_slice(&mut self) {
        let over = (self.now - self.slice_end).0;
        if self.phase == phase::RUNNING && over > 0 {
            let slice = self.settings.slice.max(super::SHORTEST_SLICE).0;
            self.slice_end += Nanos(over.div_ceil(slice).saturating_mul(slice));
        }
    }

    /// When the phase ends if nothing interrupts it.
    fn phase_end(&self) -> Nanos {
        if self.phase == phase::SWITCHING {
            return self.since + self.settings.switch_cost;
        }
        let head = self.command(self.running, self.queue(self.running).head);
        self.since + Nanos(head.amount)
    }

    fn dispatch(&mut self) {
        let keeps_device = self.now < self.slice_end && self.wants_device(self.current);
        let Some(next) = (if keeps_device { Some(self.current) } else { self.next_context() }) else {
            return;
        };
        let is_switch = next != self.current;
        if is_switch && self.current != NONE && self.settings.switch_cost > Nanos::ZERO {
            self.current = next;
            self.phase = phase::SWITCHING;
            self.since = self.now;
            return;
        }
        if is_switch || self.slice_end <= self.now {
            self.current = next;
            self.begin_slice();
        }
        if let Some(queue) = self.oldest_queue(next) {
            self.running = queue;
            self.phase = phase::RUNNING;
            self.since = self.now;
            self.queue_mut(queue).has_started = 1;
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

    /// Stops the running command and charges the device time that it used.
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

    /// Device time that the running command has used since it was dispatched.
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

    /// The next context, round robin, that has something to run; the current one comes last.
    fn next_context(&self) -> Option<u32> {
        let after = if self.current == NONE { 0 } else { self.current.wrapping_add(1) };
        let count = super::number(MAX_CONTEXTS);
        (0..count).map(|step| after.wrapping_add(step) % count).find(|&context| self.wants_device(context))
    }

    fn is_contended(&self) -> bool {
        self.live_contexts().any(|context| context != self.current && self.wants_device(context))
    }

    fn wants_device(&self, context: u32) -> bool {
        context != NONE
            && self.live & (1 << (context as usize % MAX_CONTEXTS)) != 0
            && self.context(context).queues.iter().any(|queue| self.is_eligible(queue))
    }

    fn is_eligible(&self, index: u32) -> bool {
        self.is_allowed_by_level(index)
            && self.head(index).is_some_and(|head| matches!(head.work(), Work::Run(_)))
    }

    /// The queue to run next: commands that have started first, then in the order of submission.
    fn oldest_queue(&self, context: u32) -> Option<u32> {
        let eligible = self.context(context).queues.iter().filter(|queue| self.is_eligible(*queue));
        eligible.min_by_key(|queue| {
            let sequence = self.head(*queue).map_or(u64::MAX, |head| head.sequence);
            (self.queue(*queue).has_started == 0, sequence)
        })
    }
}
