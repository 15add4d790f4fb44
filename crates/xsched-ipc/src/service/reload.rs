//! New settings for a running service.

use std::sync::{Arc, Mutex, PoisonError};

use xsched_core::Nanos;

use super::{Options, Service};
use crate::notifier::Notifier;

/// Gives a running service new settings, from another thread: the service reads no files itself.
#[derive(Clone, Debug)]
pub struct Reloader {
    settings: Arc<Mutex<Option<Options>>>,
    notifier: Arc<Notifier>,
}

impl Reloader {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self { settings: Arc::default(), notifier: Arc::new(Notifier::new()?) })
    }

    /// Has the service use these limits, quotas, rules and settings of grants from now on, and the policy and its parameters if
    /// they differ from the previous settings. Programs keep the hints that they have. The other options are not changed.
    pub fn apply(&self, options: Options) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
        self.notifier.notify();
    }

    pub(super) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    fn take(&self) -> Option<Options> {
        self.notifier.acknowledge();
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Service {
    /// For the thread that reads the configuration again.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    pub(super) fn reload(&mut self, now: Nanos) {
        let Some(new) = self.reloader.take() else { return };
        // A policy that an administrator has set at run time stays, unless the configuration has changed.
        let is_other_policy = !std::ptr::eq(new.policy, self.options.policy);
        let are_other_params = new.params != self.options.params;
        if is_other_policy {
            self.coordinator.set_policy(new.policy);
        }
        if are_other_params {
            self.params = new.params;
            self.coordinator.configure(new.params);
        }
        if is_other_policy || are_other_params {
            self.coordinator.note_policy(now);
            self.counters.policy_change();
            self.read_nice_values();
            self.is_decision_due = true;
        }
        self.usages.set_quota(new.quota);
        for session in self.sessions.iter().filter(|session| session.process().is_some()) {
            let uid = session.peer.uid;
            self.coordinator.set_queue_limit(uid, self.usages.queues(uid));
        }
        let Options { policy, params, limits, quota, rules, grants, .. } = new;
        let are_others_confined = grants.confine != self.options.grants.confine;
        self.options = Options { policy, params, limits, quota, rules, grants, ..self.options.clone() };
        if are_others_confined {
            self.confine_again();
        }
    }
}
