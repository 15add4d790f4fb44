//! The node agent: makes the grants of the node's pods.
//!
//! ```text
//!   API server ─ pods ──────────────┐
//!   kubelet ─ slots of containers ──┼─► desired grants ─► compare with the service's ─► grant, revoke
//!   /sys/fs/cgroup ─ pods' groups ──┘                                              └─► events, log
//! ```
//!
//! Each pass compares the whole state, so a restart of the agent, of the kubelet or of the service needs no special case. A pass
//! takes place when pods change, before a container starts, and every second.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tonic::transport::Channel;
use xsched_ipc::grant::Grant;

use crate::api_server::ApiServer;
use crate::cgroups::CgroupIndex;
use crate::grants::{self, Synchronized};
use crate::pod::Pod;
use crate::pods::PodWatch;
use crate::progress::{PassResult, Progress};
use crate::proto::{ListPodResourcesRequest, pod_resources_lister_client::PodResourcesListerClient};
use crate::registration;
use crate::rights::{Notice, rights_of};
use crate::settings::SettingsFileWatch;

/// How long the agent waits for a change before it looks again: the kernel does not report new control groups.
const PASS_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time from one pass to the next while a pod's group is awaited.
const MIN_PASS_INTERVAL: Duration = Duration::from_millis(20);

/// What the agent works with.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The node's name.
    pub node: String,
    /// The resource of the slots.
    pub resource: String,
    /// The kubelet's pod-resources socket.
    pub pod_resources: PathBuf,
    /// The service's socket.
    pub socket: PathBuf,
    /// The mount of the control groups.
    pub cgroups: PathBuf,
    /// HAMi's names count.
    pub hami_names: bool,
}

/// Slots by namespace and name of the pod.
type SlotsByPod = HashMap<(String, String), Vec<String>>;

/// The node agent.
pub struct Agent {
    options: AgentOptions,
    settings: SettingsFileWatch,
    server: ApiServer,
    pods: Arc<PodWatch>,
    progress: Arc<Progress>,
    /// The connection to the kubelet, until it fails.
    kubelet: Option<PodResourcesListerClient<Channel>>,
    /// Notices that have been sent, by pod id.
    sent: BTreeMap<String, HashSet<String>>,
    /// What each subsystem last reported, so that a condition that lasts is logged once.
    logged: HashMap<&'static str, String>,
}

impl Agent {
    /// An agent, which begins with [`run`](Self::run).
    #[must_use]
    pub fn new(
        options: AgentOptions,
        settings: SettingsFileWatch,
        server: ApiServer,
        pods: Arc<PodWatch>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            options,
            settings,
            server,
            pods,
            progress,
            kubelet: None,
            sent: BTreeMap::new(),
            logged: HashMap::new(),
        }
    }

    /// Works until the program exits.
    pub async fn run(&mut self) {
        loop {
            let result = self.pass().await;
            // A pod whose group or slots are not there yet is looked at again soon, while its container waits to start.
            let is_waiting = self.progress.requests() > 0 && result.obstacle.is_some();
            self.progress.publish(result);
            tokio::time::sleep(MIN_PASS_INTERVAL).await;
            let pause = if is_waiting { MIN_PASS_INTERVAL * 5 } else { PASS_INTERVAL };
            let _ = tokio::time::timeout(pause, self.progress.woken()).await;
        }
    }

    async fn pass(&mut self) -> PassResult {
        let mut result = PassResult { request: self.progress.requests(), ..PassResult::default() };
        let known = self.pods.known();
        let Some(pods) = known.pods else {
            let why = known.error.unwrap_or_else(|| "the API server has not answered yet".to_owned());
            result.obstacle = Some(format!("the pods of the node are not known: {why}"));
            return result;
        };
        let slots = match self.slots().await {
            Ok(slots) => slots,
            Err(error) => {
                result.obstacle = Some(format!("the slots of the pods are not known: {error:#}"));
                SlotsByPod::new()
            }
        };
        self.log_change("slots", result.obstacle.clone().unwrap_or_default());
        let mut desired: Vec<Grant> = Vec::new();
        let mut names_of_pods: Vec<(&Pod, Vec<String>, &[String])> = Vec::new();
        let mut notices: Vec<(&Pod, Notice)> = Vec::new();
        let mount = self.options.cgroups.clone();
        let index = tokio::task::spawn_blocking(move || CgroupIndex::look(&mount)).await.unwrap_or_default();
        let has_pod_groups = index.has_pod_groups();
        let no_pod_groups = "the kubelet makes no control groups for pods (cgroupsPerQOS is false): containers start before their \
                             grants are made";
        let lacks_groups = !has_pod_groups && pods.values().any(|pod| pod.uses(&self.options.resource));
        self.log_change("groups", if lacks_groups { no_pod_groups.to_owned() } else { String::new() });
        let settings = self.settings.settings();
        let resource = &self.options.resource;
        for pod in pods.values().filter(|pod| pod.uses(resource)) {
            if pod.is_static() {
                let message =
                    "a static pod gets no grant from XSched: create it through the API server".to_owned();
                notices.push((pod, Notice { reason: "XSchedStaticPod", message }));
                continue;
            }
            let (rights, changed) = rights_of(pod, settings, self.options.hami_names);
            notices.extend(changed.into_iter().map(|notice| (pod, notice)));
            let cgroups = index.of_pod(&pod.metadata.uid, pod.container_ids());
            let key = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
            let own_slots = slots.get(&key).map_or(&[][..], Vec::as_slice);
            let grants = grants::of_pod(pod, &rights, &cgroups, own_slots);
            if grants.is_empty() && has_pod_groups {
                result.obstacle = Some(format!("pod {} has no control group yet", pod.full_name()));
            }
            names_of_pods.push((pod, grants.iter().map(|grant| grant.name.clone()).collect(), own_slots));
            desired.extend(grants);
        }
        let (socket, mount) = (self.options.socket.clone(), self.options.cgroups.clone());
        let synchronize = move || grants::synchronize(&socket, &mount, &desired, true);
        let synchronized = tokio::task::spawn_blocking(synchronize).await;
        match synchronized {
            Ok(Ok(done)) => {
                self.log_change("service", String::new());
                self.report(&done, &mut result);
                for (_, names, slots) in names_of_pods {
                    // The group of a container does not exist before its start, so the start cannot wait for it.
                    let has_grant = !names.is_empty() || !has_pod_groups;
                    if has_grant && names.iter().all(|name| done.in_force.contains(name)) {
                        result.granted_slots.extend(slots.iter().cloned());
                    }
                }
            }
            Ok(Err(error)) => result.service_error = Some(error.to_string()),
            Err(error) => result.service_error = Some(error.to_string()),
        }
        if let Some(error) = result.service_error.clone() {
            self.log_change("service", format!("cannot make grants: {error}"));
        }
        for (pod, notice) in notices {
            self.send(pod, &notice).await;
        }
        self.sent.retain(|uid, _| pods.contains_key(uid));
        result
    }

    fn report(&mut self, done: &Synchronized, result: &mut PassResult) {
        for action in &done.actions {
            crate::log(action);
        }
        if let Some(refusal) = done.refusals.first() {
            result.obstacle = Some(refusal.clone());
        }
        self.log_change("refusals", done.refusals.join("; "));
    }

    /// Logs the condition of a subsystem if it is another than before. An empty text means that it works.
    fn log_change(&mut self, subsystem: &'static str, text: String) {
        let previous = self.logged.entry(subsystem).or_default();
        if *previous != text {
            if !text.is_empty() {
                crate::log(&text);
            }
            *previous = text;
        }
    }

    /// Which slots the kubelet gave to which pod.
    async fn slots(&mut self) -> Result<SlotsByPod> {
        let mut kubelet = match self.kubelet.take() {
            Some(kubelet) => kubelet,
            None => PodResourcesListerClient::new(registration::connect(&self.options.pod_resources).await?),
        };
        // A failed connection is not kept: a restarted kubelet has another socket.
        let response = kubelet.list(ListPodResourcesRequest {}).await?.into_inner();
        self.kubelet = Some(kubelet);
        let mut slots = SlotsByPod::new();
        for pod in response.pod_resources {
            let devices = pod.containers.into_iter().flat_map(|container| container.devices);
            let own = devices.filter(|devices| devices.resource_name == self.options.resource);
            let ids: Vec<String> = own.flat_map(|devices| devices.device_ids).collect();
            if !ids.is_empty() {
                slots.entry((pod.namespace, pod.name)).or_default().extend(ids);
            }
        }
        // The kubelet lists them in any order, and a grant is sent again if it differs.
        for ids in slots.values_mut() {
            ids.sort_unstable();
        }
        Ok(slots)
    }

    /// Logs a notice and makes it an event of the pod, once.
    async fn send(&mut self, pod: &Pod, notice: &Notice) {
        let sent = self.sent.entry(pod.metadata.uid.clone()).or_default();
        if sent.contains(&notice.message) {
            return;
        }
        let path = format!("/api/v1/namespaces/{}/events", pod.metadata.namespace);
        let event = event(pod, notice, &self.options.node);
        let first = !self.logged.contains_key("events") || self.logged["events"].is_empty();
        match self.server.create(&path, &event).await {
            Ok(()) => {
                sent.insert(notice.message.clone());
                crate::log(&format!("pod {}: {}", pod.full_name(), notice.message));
                self.log_change("events", String::new());
            }
            Err(error) => {
                // The author of the pod learns it from the next pass that succeeds, the administrator at once.
                if first {
                    crate::log(&format!("pod {}: {}", pod.full_name(), notice.message));
                }
                self.log_change("events", format!("cannot create events: {error:#}"));
            }
        }
    }
}

/// The event of a notice. Its name depends only on the pod and the message: a restarted agent does not create it twice.
fn event(pod: &Pod, notice: &Notice, node: &str) -> Value {
    let metadata = &pod.metadata;
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in metadata.uid.bytes().chain(notice.message.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let now = timestamp(std::time::SystemTime::now());
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": format!("{}.{hash:016x}", metadata.name), "namespace": metadata.namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": metadata.name, "namespace": metadata.namespace,
                           "uid": metadata.uid},
        "type": "Warning",
        "reason": notice.reason,
        "message": notice.message,
        "source": {"component": "xsched", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}

/// A time as the API server wants it, in UTC.
fn timestamp(time: std::time::SystemTime) -> String {
    let seconds = time.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // The civil calendar in eras of 400 years, which begin on 1 March of year 0.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn timestamps_follow_the_calendar() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_795_000_000), "2026-11-18T11:06:40Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn equal_notices_are_equal_events() {
        let pod = Pod::default();
        let notice = |text: &str| Notice { reason: "R", message: text.to_owned() };
        let name = |text: &str| event(&pod, &notice(text), "n")["metadata"]["name"].clone();
        assert_eq!(name("a"), name("a"));
        assert_ne!(name("a"), name("b"));
    }
}
