//! The grants of pods: their names, what they contain, and how the service's list is made equal to them.

use std::collections::BTreeMap;
use std::path::Path;

use xsched_ipc::grant::{Grant, GrantStatus, MAX_LABEL_LENGTH};
use xsched_ipc::protocol::{Reply, Request};
use xsched_ipc::tool::{ToolConnection, ToolError};

use crate::cgroups::has_processes;
use crate::pod::Pod;
use crate::rights::Rights;

/// The beginning of the name of every grant that this agent makes.
const PREFIX: &str = "pod-";
/// The label that every grant of this agent has. An administrator's own grant whose name begins with the prefix has none.
const POD_LABEL: &str = "pod";
/// The maximum length of a grant's name.
const MAX_NAME: usize = 64;
/// How many characters of an id make a name unique.
const ID_LENGTH: usize = 12;

/// The name of a pod's grant: `pod-NAMESPACE-NAME`.
///
/// If that would be too long, or if the namespace has a hyphen, so that other namespaces and names could result in the same text, the
/// pod's id follows. No name in Kubernetes has an underscore, so an author cannot choose the name of another pod's grant.
#[must_use]
pub fn name(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    let plain = format!("{PREFIX}{}-{}", metadata.namespace, metadata.name);
    // Leave room for the id of a container.
    let room = MAX_NAME - 2 * (ID_LENGTH + 1);
    if plain.len() <= room && !metadata.namespace.contains('-') {
        return plain;
    }
    // The last part of a UUID is random.
    let id: String = metadata.uid.chars().filter(char::is_ascii_hexdigit).collect();
    let id = id.get(id.len().saturating_sub(ID_LENGTH)..).unwrap_or_default();
    format!("{}_{id}", truncated(&plain, room))
}

fn truncated(text: &str, length: usize) -> &str {
    let end = (0..=length.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The grants of a pod: one for each of its control groups.
#[must_use]
pub fn of_pod(pod: &Pod, rights: &Rights, cgroups: &[String], slots: &[String]) -> Vec<Grant> {
    let label = |name: &str, value: &str| (name.to_owned(), truncated(value, MAX_LABEL_LENGTH).to_owned());
    let mut labels = BTreeMap::from([
        label(POD_LABEL, &pod.metadata.name),
        label("namespace", &pod.metadata.namespace),
        label("user", &pod.spec.service_account_name),
        label("pod_uid", &pod.metadata.uid),
    ]);
    if !slots.is_empty() {
        labels.extend([label("slots", &slots.join(","))]);
    }
    let name = name(pod);
    let grant = |cgroup: &String| Grant {
        name: if cgroups.len() == 1 {
            name.clone()
        } else {
            // The pod has no group of its own: one grant for each container, named after the end of its group's path.
            let id = cgroup.trim_end_matches(".scope");
            format!("{name}_{}", id.get(id.len().saturating_sub(ID_LENGTH)..).unwrap_or_default())
        },
        cgroup: Some(cgroup.clone()),
        priority: Some(rights.priority),
        share: rights.share,
        memory: rights.memory,
        is_job: rights.is_job,
        labels: labels.clone(),
        ..Grant::default()
    };
    cgroups.iter().map(grant).collect()
}

/// What has to change in the service.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Grants to make or to replace.
    pub make: Vec<Grant>,
    /// Grants of pods that have ended.
    pub revoke: Vec<Grant>,
}

/// Compares the service's grants with those that should be. Grants that this agent did not make are left alone. Without
/// `revokes`, no grant is revoked: the pods are not known.
#[must_use]
pub fn changes(present: &[GrantStatus], desired: &[Grant], revokes: bool) -> Changes {
    let is_ours = |grant: &Grant| grant.name.starts_with(PREFIX) && grant.labels.contains_key(POD_LABEL);
    let present: BTreeMap<&str, &Grant> =
        present.iter().map(|status| (status.grant.name.as_str(), &status.grant)).collect();
    let differs = |grant: &&Grant| present.get(grant.name.as_str()) != Some(grant);
    let is_stale = |grant: &&&Grant| {
        revokes && is_ours(grant) && !desired.iter().any(|wanted| wanted.name == grant.name)
    };
    Changes {
        make: desired.iter().filter(differs).cloned().collect(),
        revoke: present.values().filter(is_stale).map(|grant| (*grant).clone()).collect(),
    }
}

/// What a synchronization achieved.
#[derive(Debug, Default)]
pub struct Synchronized {
    /// The names of the desired grants that are in force.
    pub in_force: Vec<String>,
    /// What was done, for the log.
    pub actions: Vec<String>,
    /// Requests that the service refused.
    pub refusals: Vec<String>,
}

/// Makes the service's grants equal to the desired ones.
///
/// A grant whose control group has processes is not revoked: a pod can be deleted while its containers still run, and a process of root
/// without a grant would be an administrator of the service.
pub fn synchronize(
    socket: &Path,
    cgroups: &Path,
    desired: &[Grant],
    revokes: bool,
) -> Result<Synchronized, ToolError> {
    let service = ToolConnection::connect_to_first(vec![socket.to_owned()])?;
    let changes = changes(&list(&service)?, desired, revokes);
    let mut result = Synchronized {
        in_force: desired.iter().map(|grant| grant.name.clone()).collect(),
        ..Synchronized::default()
    };
    // Grants before revocations: a container whose grant gets another name has one at all times.
    for grant in changes.make {
        let name = grant.name.clone();
        let text = describe(&grant);
        match service.request(&Request::Grant(grant)) {
            Ok(_) => result.actions.push(text),
            Err(ToolError::Refused(why)) => {
                result.in_force.retain(|in_force| *in_force != name);
                result.refusals.push(format!("cannot grant {name}: {why}"));
            }
            Err(error) => return Err(error),
        }
    }
    for grant in changes.revoke {
        if grant.cgroup.as_deref().is_some_and(|path| has_processes(cgroups, path)) {
            continue;
        }
        let name = grant.name;
        match service.request(&Request::Revoke(name.clone())) {
            Ok(_) => result.actions.push(format!("revoked {name}")),
            Err(ToolError::Refused(why)) => result.refusals.push(format!("cannot revoke {name}: {why}")),
            Err(error) => return Err(error),
        }
    }
    Ok(result)
}

fn describe(grant: &Grant) -> String {
    let mut text = format!("granted {}", grant.name);
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text.extend([" ", name, " ", value.as_str()]);
        }
    };
    add("priority", grant.priority.map(|value| value.to_string()));
    add("share", grant.share.map(|value| value.to_string()));
    add("memory", grant.memory.map(|value| value.to_string()));
    add("cgroup", grant.cgroup.clone());
    text
}

/// All grants of the service, from as many packets as it needs.
fn list(service: &ToolConnection) -> Result<Vec<GrantStatus>, ToolError> {
    let mut reply = service.request(&Request::Grants)?;
    let mut all = Vec::new();
    loop {
        let Reply::Grants { grants, more } = reply else { return Err(service.unexpected()) };
        all.extend(grants);
        if !more {
            return Ok(all);
        }
        reply = service.next_reply()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UID: &str = "2f1c0b7e-5a0d-4c55-9d0e-0123456789ab";

    fn pod(namespace: &str, name: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name, "uid": UID},
                                      "spec": {"serviceAccountName": "trainer"}}))
        .unwrap()
    }

    fn grants(pod: &Pod, cgroups: &[&str]) -> Vec<Grant> {
        let cgroups: Vec<String> = cgroups.iter().map(|&path| path.to_owned()).collect();
        of_pod(pod, &Rights { priority: 7, ..Rights::default() }, &cgroups, &["a-slot0".to_owned()])
    }

    #[test]
    fn names_of_different_pods_differ_and_are_valid() {
        assert_eq!(name(&pod("default", "train")), "pod-default-train");
        assert_eq!(name(&pod("a", "b-c")), "pod-a-b-c");
        assert_eq!(name(&pod("a-b", "c")), "pod-a-b-c_0123456789ab");
        for (namespace, name) in [("default", "n".repeat(253)), ("n", "ä".repeat(100)), ("a-b", "c".into())]
        {
            let pod = pod(namespace, &name);
            for grant in grants(&pod, &["/one"]).iter().chain(&grants(&pod, &["/one", "/two"])) {
                assert_eq!(grant.validate(), Ok(()), "{grant:?}");
            }
        }
    }

    #[test]
    fn grant_has_the_rights_and_labels_of_the_pod() {
        let one = grants(&pod("default", "train"), &["/kubepods/podx"]);
        let labels: Vec<_> = one[0].labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            labels,
            ["namespace=default", "pod=train", &format!("pod_uid={UID}"), "slots=a-slot0", "user=trainer"]
        );
        assert_eq!((one[0].priority, one[0].cgroup.as_deref()), (Some(7), Some("/kubepods/podx")));
        let containers = ["a", "b"].map(|digit| format!("/{}.scope", digit.repeat(64)));
        let two = grants(&pod("default", "train"), &[&containers[0], &containers[1]]);
        assert_eq!(two[0].name, "pod-default-train_aaaaaaaaaaaa");
        assert_ne!(two[0].name, two[1].name);
    }

    #[test]
    fn only_own_grants_are_revoked_and_only_differences_are_sent() {
        let status = |grant: &Grant| GrantStatus { grant: grant.clone(), ..GrantStatus::default() };
        let kept = grants(&pod("default", "kept"), &["/a"]).remove(0);
        let changed = grants(&pod("default", "changed"), &["/b"]).remove(0);
        let stale = grants(&pod("default", "stale"), &["/c"]).remove(0);
        let other = Grant { name: "slurm-1".to_owned(), cgroup: Some("/s".to_owned()), ..Grant::default() };
        let manual = Grant { name: "pod-by-hand".to_owned(), ..other.clone() };
        let old = Grant { priority: Some(1), ..changed.clone() };
        let present: Vec<_> = [&kept, &old, &stale, &other, &manual].map(status).into();
        let desired = [kept, changed.clone()];
        assert_eq!(
            changes(&present, &desired, true),
            Changes { make: vec![changed.clone()], revoke: vec![stale.clone()] }
        );
        let unknown_pods = changes(&present, &[], false);
        assert_eq!(unknown_pods, Changes::default());
        let lost = changes(&[], &desired, true);
        assert_eq!(lost.make.len(), 2, "a restarted service gets every grant again");
    }
}
