//! What the agent has achieved, for the device plugin: a container starts after its pod's grant is in force.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

/// The result of one pass of the agent over all pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassResult {
    /// The pass began after this many requests.
    pub request: u64,
    /// The slots of the pods whose grants are in force.
    pub granted_slots: HashSet<String>,
    /// Why the service could not be asked.
    pub service_error: Option<String>,
    /// Why grants are missing although the service is reachable.
    pub obstacle: Option<String>,
}

/// Connects the agent and the device plugin.
#[derive(Debug)]
pub struct Progress {
    starts_without_service: bool,
    requests: AtomicU64,
    wake_agent: Notify,
    result: watch::Sender<PassResult>,
}

impl Progress {
    /// With `starts_without_service`, containers start while no service runs.
    #[must_use]
    pub fn new(starts_without_service: bool) -> Self {
        Self {
            starts_without_service,
            requests: AtomicU64::new(0),
            wake_agent: Notify::new(),
            result: watch::Sender::new(PassResult::default()),
        }
    }

    /// The number of requests so far: the agent reads it at the beginning of a pass.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Wakes the agent for a pass.
    pub fn wake_agent(&self) {
        self.wake_agent.notify_one();
    }

    /// Waits until the agent is woken.
    pub async fn woken(&self) {
        self.wake_agent.notified().await;
    }

    /// Publishes the result of a pass.
    pub fn publish(&self, result: PassResult) {
        self.result.send_replace(result);
    }

    /// Waits until a pass that begins after this call has found a grant in force for these slots.
    ///
    /// Returns an error if the grant is still missing after `timeout`, and the kubelet tries again: until the grant exists, a process
    /// of root in the container would be an administrator of the service. The service keeps grants when it restarts.
    pub async fn wait_for_grant(&self, slots: &[String], timeout: Duration) -> Result<(), String> {
        let request = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let mut results = self.result.subscribe();
        let is_granted = |result: &PassResult| {
            result.request >= request
                && ((result.service_error.is_some() && self.starts_without_service)
                    || slots.iter().all(|slot| result.granted_slots.contains(slot)))
        };
        self.wake_agent();
        if tokio::time::timeout(timeout, results.wait_for(is_granted)).await.is_ok() {
            return Ok(());
        }
        let result = self.result.borrow();
        let why = result.service_error.as_deref().or(result.obstacle.as_deref());
        let why = why.unwrap_or("the API server has not reported the pod yet");
        Err(format!("no grant for the pod with {} after {timeout:?}: {why}", slots.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    fn granted(request: u64) -> PassResult {
        PassResult { request, granted_slots: HashSet::from(["a".to_owned()]), ..PassResult::default() }
    }

    #[tokio::test]
    async fn container_waits_for_a_pass_that_began_after_its_request() {
        let progress = Arc::new(Progress::new(false));
        // The slot belonged to a pod that has ended.
        progress.publish(granted(0));
        let error = progress.wait_for_grant(&["a".to_owned()], SHORT).await.unwrap_err();
        assert!(error.contains("with a after"), "{error}");
        let waiting = {
            let progress = progress.clone();
            tokio::spawn(async move { progress.wait_for_grant(&["a".to_owned()], LONG).await })
        };
        while progress.requests() < 2 {
            tokio::task::yield_now().await;
        }
        progress.woken().await;
        progress.publish(granted(2));
        waiting.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn containers_start_without_a_service_only_if_the_administrator_says_so() {
        let result =
            PassResult { request: 9, service_error: Some("no service".to_owned()), ..PassResult::default() };
        let slots = ["a".to_owned()];
        let progress = Progress::new(true);
        progress.publish(result.clone());
        assert_eq!(progress.wait_for_grant(&slots, LONG).await, Ok(()));
        let progress = Progress::new(false);
        progress.publish(result);
        let error = progress.wait_for_grant(&slots, SHORT).await.unwrap_err();
        assert!(error.ends_with("no service"), "{error}");
    }
}
