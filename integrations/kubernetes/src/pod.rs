//! The parts of a pod, as the API server reports it, that matter to its grant.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::quantity;

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// What identifies it.
    pub metadata: Metadata,
    /// What its author requested.
    pub spec: Spec,
    /// What runs.
    pub status: Status,
}

/// What identifies a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its id, which no other pod ever has.
    pub uid: String,
    /// Its version, for watches.
    pub resource_version: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What the author of a pod requested.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// The node that it runs on.
    pub node_name: String,
    /// The value of its `PriorityClass`.
    pub priority: Option<i64>,
    /// Its `PriorityClass`.
    pub priority_class_name: String,
    /// Its service account.
    pub service_account_name: String,
    /// Its containers.
    pub containers: Vec<Container>,
    /// The containers that run before the others.
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Its resources.
    pub resources: Resources,
}

/// The resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// By resource: quantities are strings, or numbers in what some tools write.
    pub limits: BTreeMap<String, Value>,
}

/// What runs of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub phase: String,
    /// Its containers.
    pub container_statuses: Vec<ContainerStatus>,
    /// The containers that run before the others.
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// What runs of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// For example `containerd://0123...`.
    #[serde(rename = "containerID")]
    pub container_id: String,
}

impl Pod {
    /// Reads a pod as the API server sends it. The server writes some absent lists and texts as null, for example in bookmarks.
    pub fn from_json(mut object: Value) -> serde_json::Result<Self> {
        remove_nulls(&mut object);
        serde_json::from_value(object)
    }

    /// The pod's namespace and name, for messages.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// The limit of a resource of each container that has one. A value that is not a quantity counts as 0.
    pub fn limits<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = u64> + 'a {
        let containers = self.spec.init_containers.iter().chain(&self.spec.containers);
        containers.filter_map(move |container| {
            Some(match container.resources.limits.get(resource)? {
                Value::String(text) => quantity::parse(text).unwrap_or(0),
                value => value.as_u64().unwrap_or(0),
            })
        })
    }

    /// Whether processes of this pod may run on a GPU that XSched offers under this resource.
    #[must_use]
    pub fn uses(&self, resource: &str) -> bool {
        !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
            && self.limits(resource).any(|count| count > 0)
    }

    /// The kubelet created this pod from a file of the node. The id of its control group is not the pod's id, but an annotation,
    /// which the author of an ordinary pod could set to another pod's.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.metadata.annotations.contains_key("kubernetes.io/config.mirror")
    }

    /// The ids of its containers that have been created, without the name of the runtime.
    pub fn container_ids(&self) -> impl Iterator<Item = &str> {
        let statuses = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        statuses.filter_map(|status| Some(status.container_id.split_once("://")?.1))
    }
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nulls_of_the_api_server_are_absent_values() {
        let bookmark = json!({
            "metadata": {"resourceVersion": "7", "creationTimestamp": null, "annotations": null},
            "spec": {"containers": null, "priority": null},
            "status": {"containerStatuses": [{"containerID": null}]},
        });
        let pod = Pod::from_json(bookmark).unwrap();
        assert_eq!((pod.metadata.resource_version.as_str(), pod.container_ids().count()), ("7", 0));
        assert!(!pod.uses("xsched.io/gpu"));
    }

    #[test]
    fn pods_that_have_ended_use_no_gpu() {
        let pod = |phase: &str, count: Value| {
            let limits = json!({"xsched.io/gpu": count});
            let spec = json!({"initContainers": [{}], "containers": [{"resources": {"limits": limits}}]});
            Pod::from_json(json!({"spec": spec, "status": {"phase": phase}})).unwrap()
        };
        assert!(pod("Pending", json!("1")).uses("xsched.io/gpu"));
        assert!(pod("Running", json!(1)).uses("xsched.io/gpu"));
        assert!(!pod("Succeeded", json!("1")).uses("xsched.io/gpu"));
        assert!(!pod("Running", json!("0")).uses("xsched.io/gpu"));
        assert!(!pod("Running", json!("1")).uses("nvidia.com/gpu"));
    }
}
