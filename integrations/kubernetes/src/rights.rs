//! The rights of a pod: its `PriorityClass` and its annotations, within the administrator's limits.
//!
//! ```text
//!   PriorityClass ─► priority ─┐
//!   xsched.io/* annotations ───┼─► limits of the namespace ─► the grant, and a notice for each value that was changed
//!   HAMi's names, if enabled ──┘
//! ```

use std::fmt::Display;

use crate::pod::Pod;
use crate::quantity;
use crate::settings::{Settings, parse_priority};

/// The prefix of XSched's annotations.
const PREFIX: &str = "xsched.io/";
/// Priority of HAMi's task priority 0, the high one, and of 1, the low one.
const HAMI_PRIORITIES: [i64; 2] = [100, -100];

/// What the processes of a pod get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The priority.
    pub priority: i64,
    /// The share in percent.
    pub share: Option<i64>,
    /// The device memory on each device in bytes.
    pub memory: Option<u64>,
    /// The processes are held and resumed together.
    pub is_job: bool,
}

/// Something that the author of a pod should know. It becomes an event of the pod and a line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The event's reason, one word.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

/// What a pod requests. Fields that are none are not requested.
#[derive(Debug, Default)]
struct Requested {
    priority: Option<(String, i64)>,
    share: Option<(String, i64)>,
    memory: Option<(String, u64)>,
    is_job: bool,
}

/// The rights of a pod, and what to tell its author.
#[must_use]
pub fn rights_of(pod: &Pod, settings: &Settings, hami_names: bool) -> (Rights, Vec<Notice>) {
    let mut notices = Vec::new();
    let mut requested = if hami_names { hami(pod, &mut notices) } else { Requested::default() };
    annotations(pod, &mut requested, &mut notices);
    let limits = settings.limits(&pod.metadata.namespace);
    let class = settings.class_priority(&pod.spec.priority_class_name, pod.spec.priority.unwrap_or_default());
    let (source, priority) = requested
        .priority
        .unwrap_or_else(|| (format!("PriorityClass {:?}", pod.spec.priority_class_name), class));
    let (limit, origin) = match limits.priority {
        Some(limit) => (limit, "of the namespace"),
        None => (class, "of its PriorityClass"),
    };
    let mut clamp = |source: &str, value: &dyn Display, limit: &dyn Display, origin: &str| {
        notices.push(Notice {
            reason: "XSchedClamped",
            message: format!(
                "{source}: {value} is more than the limit {limit} {origin}, which applies instead"
            ),
        });
    };
    if priority > limit {
        clamp(&source, &priority, &limit, origin);
    }
    let share = requested.share.map(|(source, share)| match limits.share {
        Some(limit) if share > limit => {
            clamp(&source, &format_args!("{share} %"), &format_args!("{limit} %"), "of the namespace");
            limit
        }
        _ => share,
    });
    let memory = requested.memory.map(|(source, memory)| match limits.memory {
        Some(limit) if memory > limit => {
            clamp(
                &source,
                &format_args!("{memory} bytes"),
                &format_args!("{limit} bytes"),
                "of the namespace",
            );
            limit
        }
        _ => memory,
    });
    let rights = Rights {
        priority: priority.min(limit),
        // A pod without the annotation cannot have more than the limit either.
        share: share.or(limits.share),
        memory: memory.or(limits.memory),
        is_job: requested.is_job,
    };
    (rights, notices)
}

fn invalid(name: &str, why: &str) -> Notice {
    Notice { reason: "XSchedInvalidValue", message: format!("{name}: {why}; it has no effect") }
}

fn parse_percent(text: &str) -> Result<i64, String> {
    let percent = text.trim().trim_end_matches('%').trim_end().parse().ok();
    let percent = percent.filter(|percent| (1..=100).contains(percent));
    percent.ok_or_else(|| format!("{text:?} is not a percentage from 1 to 100"))
}

fn parse_memory(text: &str) -> Result<u64, String> {
    match quantity::parse(text.trim())? {
        0 => Err("the memory cannot be 0".to_owned()),
        bytes => Ok(bytes),
    }
}

fn parse_flag(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither \"true\" nor \"false\""))
}

/// Stores a parsed value, or the reason why it is invalid.
fn store<T>(
    name: &str,
    parsed: Result<T, String>,
    target: &mut Option<(String, T)>,
    notices: &mut Vec<Notice>,
) {
    match parsed {
        Ok(value) => *target = Some((name.to_owned(), value)),
        Err(why) => notices.push(invalid(name, &why)),
    }
}

fn annotations(pod: &Pod, requested: &mut Requested, notices: &mut Vec<Notice>) {
    for (name, text) in &pod.metadata.annotations {
        let Some(key) = name.strip_prefix(PREFIX) else { continue };
        match key {
            "priority" => store(name, parse_priority(text.trim()), &mut requested.priority, notices),
            "share" => store(name, parse_percent(text), &mut requested.share, notices),
            "memory" => store(name, parse_memory(text), &mut requested.memory, notices),
            "job" => match parse_flag(text.trim()) {
                Ok(is_job) => requested.is_job = is_job,
                Err(why) => notices.push(invalid(name, &why)),
            },
            _ => notices.push(Notice {
                reason: "XSchedUnknownAnnotation",
                message: format!(
                    "{name}: no such annotation; XSched knows {PREFIX}priority, {PREFIX}share, {PREFIX}memory and \
                     {PREFIX}job"
                ),
            }),
        }
    }
}

/// What a pod requests with the names of HAMi: limits of its containers, or annotations.
fn hami(pod: &Pod, notices: &mut Vec<Notice>) -> Requested {
    let mut requested = Requested::default();
    let value = |name: &str| -> Option<Result<u64, String>> {
        if let Some(text) = pod.metadata.annotations.get(name) {
            return Some(quantity::parse(text.trim()));
        }
        pod.limits(name).max().map(Ok)
    };
    let (memory, cores, priority) = ("nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/priority");
    if let Some(parsed) = value(memory) {
        // In MiB of each GPU, as the memory of a grant is.
        let bytes = parsed.and_then(|mebibytes| match mebibytes.saturating_mul(1 << 20) {
            0 => Err("the memory cannot be 0".to_owned()),
            bytes => Ok(bytes),
        });
        store(memory, bytes, &mut requested.memory, notices);
    }
    // HAMi's 0 means no limit.
    if let Some(parsed) = value(cores).filter(|parsed| *parsed != Ok(0)) {
        let percent = parsed.and_then(|percent| parse_percent(&percent.to_string()));
        store(cores, percent, &mut requested.share, notices);
    }
    if let Some(parsed) = value(priority) {
        let mapped = parsed.and_then(|number| {
            let index = usize::try_from(number).unwrap_or(usize::MAX);
            HAMI_PRIORITIES
                .get(index)
                .copied()
                .ok_or_else(|| format!("{number} is neither 0 (high) nor 1 (low)"))
        });
        store(priority, mapped, &mut requested.priority, notices);
    }
    requested
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RESOURCE: &str = "xsched.io/gpu";

    fn pod(class_value: i64, annotations: &[(&str, &str)]) -> Pod {
        let annotations: serde_json::Map<_, _> =
            annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations},
            "spec": {"priority": class_value, "priorityClassName": "c",
                     "containers": [{"resources": {"limits": {RESOURCE: "2"}}}]},
        }))
        .unwrap()
    }

    fn rights(pod: &Pod, settings: &str) -> (Rights, Vec<&'static str>, String) {
        let settings = Settings::parse(settings).unwrap();
        let (rights, notices) = rights_of(pod, &settings, true);
        let reasons = notices.iter().map(|notice| notice.reason).collect();
        (rights, reasons, notices.into_iter().map(|notice| notice.message).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn annotation_lowers_the_priority_of_the_class_and_cannot_raise_it() {
        let (lowered, reasons, _) = rights(&pod(1_000, &[("xsched.io/priority", "low")]), "");
        assert_eq!((lowered.priority, reasons), (-100, vec![]));
        let (raised, reasons, message) = rights(&pod(1_000, &[("xsched.io/priority", "200")]), "");
        assert_eq!((raised.priority, reasons), (85, vec!["XSchedClamped"]));
        assert!(message.contains("xsched.io/priority: 200 is more than the limit 85"), "{message}");
        let (allowed, reasons, _) =
            rights(&pod(0, &[("xsched.io/priority", "200")]), "[limits]\nmax_priority = 255");
        assert_eq!((allowed.priority, reasons), (200, vec![]));
    }

    #[test]
    fn limits_apply_to_classes_annotations_and_pods_without_annotations() {
        let settings = "[namespaces.n]\nmax_priority = 10\nmax_share = 30\nmax_memory = \"4Gi\"";
        let (none, reasons, message) = rights(&pod(1_000_000, &[]), settings);
        assert_eq!(none, Rights { priority: 10, share: Some(30), memory: Some(4 << 30), is_job: false });
        assert_eq!(reasons, ["XSchedClamped"], "{message}");
        let requests = [("xsched.io/share", "50"), ("xsched.io/memory", "8Gi"), ("xsched.io/job", "true")];
        let (more, reasons, message) = rights(&pod(0, &requests), settings);
        assert_eq!(more, Rights { priority: 0, share: Some(30), memory: Some(4 << 30), is_job: true });
        assert_eq!(reasons, ["XSchedClamped"; 2], "{message}");
        assert!(message.contains("50 %") && message.contains("30 %"), "{message}");
        let (less, reasons, _) = rights(&pod(0, &[("xsched.io/share", "20%")]), settings);
        assert_eq!((less.share, reasons), (Some(20), vec![]));
    }

    #[test]
    fn unknown_and_invalid_annotations_are_reported() {
        let wrong = [
            ("xsched.io/prio", "1"),
            ("xsched.io/share", "150"),
            ("xsched.io/memory", "many"),
            ("xsched.io/priority", "300"),
            ("xsched.io/job", "yes"),
            ("example.com/x", "1"),
        ];
        let (rights, mut reasons, message) = rights(&pod(0, &wrong), "");
        assert_eq!(rights, Rights::default());
        reasons.sort_unstable();
        let invalid = "XSchedInvalidValue";
        assert_eq!(reasons, [invalid, invalid, invalid, invalid, "XSchedUnknownAnnotation"], "{message}");
    }

    #[test]
    fn names_of_hami_are_understood_and_our_own_take_precedence() {
        let names =
            [("nvidia.com/gpumem", "3000"), ("nvidia.com/gpucores", "30"), ("nvidia.com/priority", "1")];
        let (hami, reasons, message) = rights(&pod(0, &names), "");
        assert_eq!(
            hami,
            Rights { priority: -100, share: Some(30), memory: Some(3_000 << 20), is_job: false }
        );
        assert!(reasons.is_empty(), "{message}");
        let both = [names[1], ("xsched.io/share", "60")];
        assert_eq!(rights(&pod(0, &both), "").0.share, Some(60));
        let (_, reasons, _) = rights(&pod(0, &[("nvidia.com/priority", "7")]), "");
        assert_eq!(reasons, ["XSchedInvalidValue"]);
        let ignored = rights_of(&pod(0, &names), &Settings::default(), false);
        assert_eq!(ignored, (Rights::default(), vec![]));
    }
}
