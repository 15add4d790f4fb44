//! A grant: the rights that a cluster manager gives to the processes of one job.
//!
//! ```text
//!   Slurm, Kubernetes, Ray, or `xsched grant`, as an administrator
//!      │ Request::Grant { name: "slurm-123", cgroup: "/slurm/job_123", priority: 100, share: 40, ... }
//!      ▼
//!   a process in that control group, or with the grant's token, joins: it has priority 100 unless it requests less, and can
//!   request no more. The grant ends when it is revoked, or when its control group or the process it depends on has gone.
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use xsched_core::{HintError, Priority, Share, is_control};

use crate::environment::validate_name;

/// The maximum number of labels of a grant.
pub const MAX_LABELS: usize = 16;
/// The maximum length of a label's value, in bytes.
pub const MAX_LABEL_LENGTH: usize = 128;
/// The minimum length of a token, in characters: it is a secret.
pub const MIN_TOKEN_LENGTH: usize = 32;
/// The maximum length of a token, in characters.
pub const MAX_TOKEN_LENGTH: usize = 256;

/// The rights of the processes of one job. A process belongs to it by its control group or by a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grant {
    /// Its name, for example `slurm-123`: 1 to 64 characters. A new grant replaces the previous one of the same name.
    pub name: String,
    /// The control group whose processes have the grant, with those of the groups below it: the path in `/proc/PID/cgroup` of any
    /// hierarchy, for example `/slurm/uid_1000/job_123`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// A secret: processes with it in the environment variable `XSCHED_GRANT` have the grant. At least 32 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The grant applies only to processes of this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The priority of its processes, and the highest that they can request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The share of each of its processes in percent of a device, and the highest that they can request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<i64>,
    /// The most device memory that its processes together may allocate on each device, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Its processes are held and resumed together on all devices.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_job: bool,
    /// The grant ends when this process exits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_exit_of: Option<u32>,
    /// For status reports and metrics, for example `job=123`. Names as in Prometheus.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Grant {
    /// Fails with a message for the user if a field is not valid.
    pub fn validate(&self) -> Result<(), String> {
        let out_of_range = |error: HintError| error.to_string();
        validate_name(&self.name).map_err(|why| format!("the name of the grant: {why}"))?;
        if self.cgroup.is_none() && self.token.is_none() {
            return Err("a grant needs a control group or a token".to_owned());
        }
        if let Some(path) = &self.cgroup
            && (!path.starts_with('/') || path == "/" || path.len() > 1_024 || path.chars().any(is_control))
        {
            return Err(format!(
                "control group {path:?}: write the path as in /proc/PID/cgroup, for example /slurm/job_123"
            ));
        }
        if let Some(token) = &self.token {
            validate_token(token)?;
        }
        if let Some(priority) = self.priority {
            Priority::new(priority).map_err(out_of_range)?;
        }
        if let Some(share) = self.share {
            let share = Share::new(share).map_err(out_of_range)?;
            if share.percent() == 0 {
                return Err("the share of a grant cannot be 0: its processes would never run".to_owned());
            }
        }
        if self.memory == Some(0) {
            return Err("the memory of a grant cannot be 0".to_owned());
        }
        if self.labels.len() > MAX_LABELS {
            return Err(format!("a grant has at most {MAX_LABELS} labels"));
        }
        self.labels.iter().try_for_each(|(name, value)| validate_label(name, value))
    }
}

/// Validates a token. The error does not contain it.
pub fn validate_token(token: &str) -> Result<String, String> {
    let is_valid = (MIN_TOKEN_LENGTH..=MAX_TOKEN_LENGTH).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_valid {
        Ok(token.to_owned())
    } else {
        Err(format!("a token has {MIN_TOKEN_LENGTH} to {MAX_TOKEN_LENGTH} visible ASCII characters"))
    }
}

fn validate_label(name: &str, value: &str) -> Result<(), String> {
    let is_start = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let is_name = name.len() <= 64
        && name.bytes().next().is_some_and(is_start)
        && name.bytes().all(|byte| is_start(byte) || byte.is_ascii_digit());
    if !is_name {
        return Err(format!("label {name:?}: a name consists of letters, digits and underscores"));
    }
    if value.len() > MAX_LABEL_LENGTH || value.chars().any(is_control) {
        return Err(format!("label {name}: a value has at most {MAX_LABEL_LENGTH} printable bytes"));
    }
    Ok(())
}

/// A grant that is in force, as [`Reply::Grants`](crate::protocol::Reply::Grants) lists it. The token is not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantStatus {
    /// The grant, without its token.
    pub grant: Grant,
    /// Processes have it by a token.
    pub has_token: bool,
    /// Its processes are suspended.
    pub is_suspended: bool,
    /// The process ids of its scheduled processes.
    pub processes: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Grant {
        Grant { name: "slurm-1".to_owned(), cgroup: Some("/slurm/job_1".to_owned()), ..Grant::default() }
    }

    #[test]
    fn invalid_grants_are_rejected() {
        assert_eq!(grant().validate(), Ok(()));
        let labels = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        for (invalid, message) in [
            (Grant { name: String::new(), ..grant() }, "name"),
            (Grant { cgroup: None, ..grant() }, "control group or a token"),
            (Grant { cgroup: Some("/".to_owned()), ..grant() }, "control group"),
            (Grant { cgroup: Some("job".to_owned()), ..grant() }, "control group"),
            (Grant { cgroup: Some("/job\u{202e}".to_owned()), ..grant() }, "control group"),
            (Grant { token: Some("short".to_owned()), ..grant() }, "token"),
            (Grant { priority: Some(300), ..grant() }, "priority"),
            (Grant { share: Some(0), ..grant() }, "share"),
            (Grant { memory: Some(0), ..grant() }, "memory"),
            (Grant { labels: labels("a-b", ""), ..grant() }, "label"),
            (Grant { labels: labels("a", "two\nlines"), ..grant() }, "label"),
        ] {
            let error = invalid.validate().unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn grant_is_decoded_as_encoded() {
        let text = serde_json::to_string(&grant()).unwrap();
        assert_eq!(text, r#"{"name":"slurm-1","cgroup":"/slurm/job_1"}"#);
        assert_eq!(serde_json::from_str::<Grant>(&text).unwrap(), grant());
    }
}
