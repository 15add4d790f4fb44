//! The pods of the node, kept current by a watch of the API server.
//!
//! ```text
//!   list ─► watch from the list's version ─► each change ─► the agent
//!    ▲         │ ends after four minutes: watch again from the last version
//!    └─────────┘ 410 Gone or any error: list again
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::api_server::ApiServer;
use crate::pod::Pod;
use crate::progress::Progress;

/// How long the server keeps one watch open.
const WATCH_SECONDS: u64 = 240;
/// A watch without any line for so long has lost its connection.
const WATCH_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// The pause after the first error, and the longest one.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// What is known about the node's pods.
#[derive(Clone, Debug, Default)]
pub struct KnownPods {
    /// The pods by id; none before the first list.
    pub pods: Option<Arc<BTreeMap<String, Pod>>>,
    /// Why the list may be out of date.
    pub error: Option<String>,
}

/// The pods of the node.
pub struct PodWatch {
    server: ApiServer,
    node: String,
    progress: Arc<Progress>,
    known: Mutex<KnownPods>,
}

impl PodWatch {
    /// A watch of a node's pods, which begins with [`run`](Self::run).
    #[must_use]
    pub fn new(server: ApiServer, node: &str, progress: Arc<Progress>) -> Self {
        Self { server, node: node.to_owned(), progress, known: Mutex::default() }
    }

    /// The pods at present.
    #[must_use]
    pub fn known(&self) -> KnownPods {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update(&self, change: impl FnOnce(&mut KnownPods)) {
        change(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
        self.progress.wake_agent();
    }

    /// Follows the pods until the program exits.
    pub async fn run(&self) {
        let mut pause = RETRY_PAUSES.0;
        loop {
            let Err(error) = self.list_and_watch(&mut pause).await else { continue };
            let error = format!("{error:#}");
            if self.known().error.as_ref() != Some(&error) {
                crate::log(&format!("the pods of node {} are not current: {error}", self.node));
            }
            self.update(|known| known.error = Some(error));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSES.1);
        }
    }

    async fn list_and_watch(&self, pause: &mut Duration) -> Result<()> {
        let selector = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.node);
        let list = self.server.get(&selector).await?;
        let mut version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let items = list["items"].as_array().context("the API server's list of pods has no items")?;
        let mut pods = BTreeMap::new();
        for item in items {
            let pod = Pod::from_json(item.clone()).context("a pod of the API server")?;
            pods.insert(pod.metadata.uid.clone(), pod);
        }
        self.publish(&pods);
        *pause = RETRY_PAUSES.0;
        loop {
            let path = format!(
                "{selector}&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}\
                 &resourceVersion={version}"
            );
            let mut lines = self.server.watch(&path).await?;
            let mut received = false;
            while let Some(event) = lines.next(WATCH_TIMEOUT).await? {
                received = true;
                if apply(&mut pods, &mut version, event)? {
                    self.publish(&pods);
                }
            }
            if !received {
                // A server that closes watches at once is not asked again without a pause.
                tokio::time::sleep(RETRY_PAUSES.0).await;
            }
        }
    }

    fn publish(&self, pods: &BTreeMap<String, Pod>) {
        let pods = Arc::new(pods.clone());
        self.update(|known| *known = KnownPods { pods: Some(pods), error: None });
    }
}

/// Applies one event of a watch. Returns whether pods changed.
fn apply(pods: &mut BTreeMap<String, Pod>, version: &mut String, mut event: Value) -> Result<bool> {
    let object = event["object"].take();
    let kind = event["type"].as_str().unwrap_or_default();
    if kind == "ERROR" {
        bail!("the watch of pods ended: {}", object["message"].as_str().unwrap_or("no message"));
    }
    let pod = Pod::from_json(object).context("a pod of the API server's watch")?;
    version.clone_from(&pod.metadata.resource_version);
    match kind {
        "ADDED" | "MODIFIED" => {
            pods.insert(pod.metadata.uid.clone(), pod);
            Ok(true)
        }
        "DELETED" => Ok(pods.remove(&pod.metadata.uid).is_some()),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(kind: &str, uid: &str, version: &str) -> Value {
        json!({"type": kind, "object": {"metadata": {"uid": uid, "resourceVersion": version}}})
    }

    #[test]
    fn events_change_pods_and_version() {
        let (mut pods, mut version) = (BTreeMap::new(), String::new());
        assert!(apply(&mut pods, &mut version, event("ADDED", "a", "1")).unwrap());
        assert!(apply(&mut pods, &mut version, event("MODIFIED", "a", "2")).unwrap());
        assert!(!apply(&mut pods, &mut version, event("BOOKMARK", "", "3")).unwrap());
        assert_eq!((pods.len(), version.as_str()), (1, "3"));
        assert!(apply(&mut pods, &mut version, event("DELETED", "a", "4")).unwrap());
        assert_eq!((pods.len(), version.as_str()), (0, "4"));
        let gone = json!({"type": "ERROR", "object": {"code": 410, "message": "too old"}});
        assert!(apply(&mut pods, &mut version, gone).unwrap_err().to_string().contains("too old"));
    }
}
