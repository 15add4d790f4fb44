//! The rounds of the service: what each does, and in which order.
//!
//! ```text
//!   notifications, ended processes ─► decision, orders ─► requests, new connections ─► listings
//!   all that have arrived                                 for 100 us, at least one      for 100 us, at least one
//! ```
//!
//! A notification waits for at most one round, however many requests and connections there are. A request of a scheduled process
//! waits for its turn like one of a tool: it arrives on the same socket as notifications, and is put aside ([`Service::defer`]).

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::io::Errno;
use xsched_core::Nanos;

use super::{
    AWAITED, COMMAND_LINES, DRIVER, EXPECTED, End, GROUPS, LISTENER, METRICS, OTHER, PIDFD, RELOAD, SOCKET,
    Service, THREAD_STATES, TIMER, TOOLS, WATCHDOG,
};
use crate::threads::make_this_thread_prompt;

/// How long requests and new connections are handled before notifications are received again.
const REQUEST_TIME_PER_ROUND: Nanos = Nanos::from_micros(100);
/// How many events of tools are taken from the kernel at once.
const MAX_TOOL_EVENTS: usize = 64;
/// How many events that scheduling depends on are taken from the kernel at once: of as many processes as two users can have.
const MAX_SCHEDULING_EVENTS: usize = 1_024;
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Service {
    /// Runs the service until it is stopped. Then frees all processes and removes the socket.
    pub fn run(mut self) -> Result<End, Errno> {
        make_this_thread_prompt();
        let mut events = Vec::with_capacity(MAX_SCHEDULING_EVENTS);
        // Sets the timer for the idle exit: no connection may ever come.
        self.run_due_tasks(Nanos::now());
        loop {
            events.clear();
            let timeout = self.has_deferred_work().then_some(&NO_WAIT);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(why) => return Err(why),
            }
            let now = Nanos::now();
            for event in &events {
                self.scheduling_event(event, now);
            }
            self.run_due_tasks(now);
            let has_requests =
                self.has_deferred_requests() || events.iter().any(|event| event.data.u64() == TOOLS);
            if has_requests {
                self.handle_requests()?;
            }
            self.send_listings();
            if has_requests || self.is_decision_due {
                self.run_due_tasks(Nanos::now());
            }
            if let Some(end) = self.end {
                self.shut_down();
                return Ok(end);
            }
        }
    }

    /// Whether the next round has something to do even if nothing arrives.
    fn has_deferred_work(&self) -> bool {
        self.has_deferred_requests() || self.listings.due() == Some(Nanos::ZERO)
    }

    fn has_deferred_requests(&self) -> bool {
        !self.tool_events.is_empty() || !self.deferred_requests.is_empty()
    }

    fn scheduling_event(&mut self, event: &Event, now: Nanos) {
        let (token, flags) = (event.data.u64(), event.flags);
        match token & OTHER {
            SOCKET => self.socket_event(token, flags, now),
            PIDFD => self.process_ended(token),
            _ if token == TIMER => self.timer.acknowledge(),
            _ if token == TOOLS => {}
            _ if token == WATCHDOG => self.watchdog.acknowledge(),
            _ if token == COMMAND_LINES => self.store_command_lines(),
            _ if token == METRICS => self.store_rendered_metrics(),
            _ if token == THREAD_STATES => self.store_thread_states(),
            _ if token == DRIVER => self.store_driver_reply(),
            _ if token == RELOAD => self.reload(now),
            _ if token == GROUPS => self.end_grants_of_removed_groups(now),
            _ if token & 0xffff_ffff == AWAITED => self.awaited_exited(token, now),
            _ if token & 0xffff_ffff == EXPECTED => self.forget_expected(token),
            _ => self.end = Some(End::Stopped),
        }
    }

    /// Handles requests and accepts connections for at most [`REQUEST_TIME_PER_ROUND`], but at least one request of a scheduled
    /// process and one of a tool.
    fn handle_requests(&mut self) -> Result<(), Errno> {
        let mut now = Nanos::now();
        let until = now + REQUEST_TIME_PER_ROUND;
        if self.tool_events.is_empty() {
            let mut events = Vec::with_capacity(MAX_TOOL_EVENTS);
            match epoll::wait(&self.tools_epoll, spare_capacity(&mut events), Some(&NO_WAIT)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(why) => return Err(why),
            }
            self.tool_events.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
        }
        while now < until {
            let is_handled = self.handle_deferred_request(now);
            match self.tool_events.pop_front() {
                Some((token, _)) if token & OTHER == LISTENER => self.accept(now),
                Some((token, flags)) => self.socket_event(token, flags, now),
                None if is_handled => {}
                None => break,
            }
            now = Nanos::now();
        }
        Ok(())
    }

    /// Runs everything that is due now, and sets the timer for the next.
    fn run_due_tasks(&mut self, now: Nanos) {
        let is_due = |due: Option<Nanos>| due.is_some_and(|due| due <= now);
        if is_due(self.nice_due) {
            self.nice_due = None;
            self.read_nice_values();
        }
        if is_due(self.stall_check_due) {
            self.check_stalls(now);
        }
        if is_due(self.driver_query_due) {
            self.query_driver(now);
        }
        if is_due(self.group_check_due) {
            self.check_groups(now);
        }
        if is_due(self.accept_due) {
            self.accept_due = None;
            self.resume_accepting();
        }
        if is_due(self.unread_due) {
            self.close_blocked(now);
        }
        if is_due(self.poll_due) {
            self.poll_due = self.coordinator.step(now);
            self.after_decision(now);
        } else {
            self.decide_if_due(now);
        }
        if is_due(self.events_due) {
            self.send_events();
        }
        let idle_exit = self.options.idle_exit.filter(|_| self.sessions.is_empty());
        let exit_due = || idle_exit.map(|delay| self.empty_since + Nanos::from(delay));
        if is_due(exit_due()) {
            if self.expected.is_empty() {
                self.end = Some(End::Idle);
            } else {
                self.empty_since = now;
            }
        }
        let exit_due = idle_exit.map(|delay| self.empty_since + Nanos::from(delay));
        let listings_due = self.listings.due().filter(|due| *due > now);
        let dues = [
            self.poll_due,
            self.nice_due,
            self.stall_check_due,
            self.driver_query_due,
            self.group_check_due,
            self.accept_due,
            self.unread_due,
            self.events_due,
            exit_due,
            listings_due,
        ];
        self.timer.wake_at(dues.into_iter().flatten().min());
    }
}
