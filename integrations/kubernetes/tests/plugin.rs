//! The device plugin with a kubelet of the test's own, over the real protocol.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod api_server;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod kubelet;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod node;

use std::sync::mpsc::Receiver;

use kubelet::TIMEOUT;
use node::{RESOURCE, TestNode, library, pod};
use tonic::Code;
use xsched_kubernetes::proto::{Device, HEALTHY, UNHEALTHY};

const UID: &str = "11111111-5a0d-4c55-9d0e-0123456789ab";

fn next_health(lists: &Receiver<Vec<Device>>) -> Vec<String> {
    let devices = lists.recv_timeout(TIMEOUT).expect("the plugin sends its devices");
    devices.into_iter().map(|device| device.health).collect()
}

#[test]
fn kubelet_gets_slots_and_containers_get_what_they_need() {
    let mut node = TestNode::new();
    let registration = node.start_agent();
    assert_eq!(registration.version, "v1beta1");
    assert_eq!(registration.resource_name, RESOURCE);
    let options = registration.options.unwrap();
    assert!(options.pre_start_required && options.get_preferred_allocation_available);
    let devices = node.kubelet.watch(&registration.endpoint).recv_timeout(TIMEOUT).unwrap();
    let ids: Vec<_> = devices.iter().map(|device| device.id.as_str()).collect();
    assert_eq!(ids, ["gpu0-slot0", "gpu0-slot1", "gpu0-slot2", "gpu0-slot3"]);
    let slots = ["gpu0-slot1".to_owned(), "gpu0-slot3".to_owned()];
    let container = node.kubelet.allocate(&registration.endpoint, &slots).unwrap();
    assert_eq!(container.envs["LD_PRELOAD"], library().display().to_string());
    assert_eq!(container.envs["XSCHED_SOCKET"], node.socket().display().to_string());
    assert_eq!(
        (container.envs["XSCHED_SCHEDULER"].as_str(), container.envs["XSCHED_AUTO_XQUEUE"].as_str()),
        ("GLB", "ON")
    );
    let mounted: Vec<_> = container.mounts.iter().map(|mount| mount.host_path.clone()).collect();
    let directory = |file: std::path::PathBuf| file.parent().unwrap().display().to_string();
    assert_eq!(mounted, [directory(library()), directory(node.socket())]);
    assert!(container.mounts.iter().all(|mount| mount.read_only), "a container could replace the socket");
    assert_eq!(container.devices.len(), 1, "both slots are on one GPU");
    assert_eq!(container.devices[0].host_path, node.gpu().display().to_string());
    let unknown = node.kubelet.allocate(&registration.endpoint, &["gpu7-slot0".to_owned()]).unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(unknown.message().contains("gpu7-slot0"), "{unknown}");
}

#[test]
fn gpu_without_its_device_node_is_unhealthy_until_the_node_returns() {
    let mut node = TestNode::new();
    let registration = node.start_agent();
    let lists = node.kubelet.watch(&registration.endpoint);
    assert_eq!(next_health(&lists), [HEALTHY; 4]);
    std::fs::remove_file(node.gpu()).unwrap();
    assert_eq!(next_health(&lists), [UNHEALTHY; 4]);
    std::fs::write(node.gpu(), "").unwrap();
    assert_eq!(next_health(&lists), [HEALTHY; 4]);
}

#[test]
fn restarts_of_kubelet_and_plugin_are_survived() {
    let mut node = TestNode::new();
    node.start_agent();
    for _ in 0..2 {
        node.kubelet.restart();
        let registration = node.kubelet.registration();
        assert_eq!(next_health(&node.kubelet.watch(&registration.endpoint)), [HEALTHY; 4]);
    }
    node.kill_agent();
    let registration = node.start_agent();
    assert_eq!(next_health(&node.kubelet.watch(&registration.endpoint)), [HEALTHY; 4]);
}

#[test]
fn container_starts_without_a_service_only_if_the_administrator_says_so() {
    let mut node = TestNode::new();
    let registration = node.start_agent();
    let slots = ["gpu0-slot0".to_owned()];
    let refused = node.kubelet.pre_start(&registration.endpoint, &slots).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    node.kill_agent();
    node.options = vec!["--start-without-service".to_owned()];
    let registration = node.start_agent();
    node.start_pod(&registration.endpoint, &pod("a", UID, 0, &[]), 0);
}

#[test]
fn values_beyond_limits_and_unknown_annotations_become_events_once() {
    let mut node = TestNode::new();
    let settings = node.path("settings.toml");
    std::fs::write(&settings, "[limits]\nmax_share = 30\n").unwrap();
    node.options = vec!["--settings".to_owned(), settings.display().to_string()];
    node.start_agent();
    let annotations = [("xsched.io/share", "50"), ("xsched.io/sahre", "50"), ("xsched.io/priority", "9")];
    node.api.put(pod("a", UID, 0, &annotations));
    node::wait_until("the events exist", || node.api.events("a").len() == 3);
    // A watch that expired and a restarted agent list the same pod again.
    let lists = node.api.lists();
    node.api.expire_watches();
    node::wait_until("the pods are listed again", || node.api.lists() > lists);
    node.kill_agent();
    node.start_agent();
    node.api.put(pod("b", &UID.replace('1', "2"), 0, &[("xsched.io/memory", "none")]));
    node::wait_until("the other pod's event exists", || node.api.events("b").len() == 1);
    let mut events = node.api.events("a");
    events.sort();
    let reasons: Vec<_> = events.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["XSchedClamped", "XSchedClamped", "XSchedUnknownAnnotation"]);
    assert!(events[0].1.contains("9 is more than the limit 0 of its PriorityClass"), "{events:?}");
    assert!(events[1].1.contains("50 % is more than the limit 30 %"), "{events:?}");
    assert_eq!(node.api.events("b")[0].0, "XSchedInvalidValue");
}
