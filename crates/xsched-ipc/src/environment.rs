//! The environment variables of a scheduled program. Names and meaning are those of the original C++ XSched; `XSCHED_BUDGET`,
//! `XSCHED_GRANT`, `XSCHED_JOB`, `XSCHED_MEMORY`, `XSCHED_MEMORY_GROUP`, `XSCHED_NAME`, `XSCHED_SLACK`, `XSCHED_SWAP` and `XSCHED_SWAP_LIMIT` are new. `docs/environment.md` lists all of them.
//!
//! An invalid value must not stop the program: it is ignored and reported in the log.

use std::fmt::Display;
use std::str::FromStr;

use xsched_core::deferral::MAX_SLACK;
use xsched_core::{
    Deadline, Hints, Laxity, LevelRequest, Limit, Nanos, Priority, Share, Timeslice, is_control, parse_size,
    parse_time,
};
use xsched_policy::{Params, PolicyInfo};

use crate::grant::validate_token;
use crate::memory::MemoryLimit;
use crate::protocol::HintRequest;

/// The names of the variables.
pub mod name {
    /// The scheduler: `APP`, `LCL` or `GLB`.
    pub const SCHEDULER: &str = "XSCHED_SCHEDULER";
    /// The policy of the local scheduler.
    pub const POLICY: &str = "XSCHED_POLICY";
    /// Whether every stream of the program is scheduled: `ON` or `OFF`.
    pub const AUTO: &str = "XSCHED_AUTO_XQUEUE";
    /// The preemption level of queues.
    pub const LEVEL: &str = "XSCHED_AUTO_XQUEUE_LEVEL";
    /// The maximum number of commands in flight.
    pub const THRESHOLD: &str = "XSCHED_AUTO_XQUEUE_THRESHOLD";
    /// The number of commands from one marker to the next.
    pub const BATCH_SIZE: &str = "XSCHED_AUTO_XQUEUE_BATCH_SIZE";
    /// The priority.
    pub const PRIORITY: &str = "XSCHED_AUTO_XQUEUE_PRIORITY";
    /// The job: processes of one user with the same job are held and resumed together.
    pub const JOB: &str = "XSCHED_JOB";
    /// The token of a grant.
    pub const GRANT: &str = "XSCHED_GRANT";
    /// The share, in percent of the device.
    pub const SHARE: &str = "XSCHED_AUTO_XQUEUE_UTILIZATION";
    /// The time slice in microseconds, for the local scheduler.
    pub const TIMESLICE: &str = "XSCHED_AUTO_XQUEUE_TIMESLICE";
    /// The deadline in microseconds.
    pub const DEADLINE: &str = "XSCHED_AUTO_XQUEUE_DEADLINE";
    /// The number of tasks that KEDF runs at the same time, for the local scheduler.
    pub const KDEADLINE: &str = "XSCHED_AUTO_XQUEUE_KDEADLINE";
    /// The laxity in microseconds.
    pub const LAXITY: &str = "XSCHED_AUTO_XQUEUE_LAXITY";
    /// The in-flight window in microseconds.
    pub const BUDGET: &str = "XSCHED_BUDGET";
    /// How long a launch of a host-bound program may be deferred.
    pub const SLACK: &str = "XSCHED_SLACK";
    /// The limit of device memory.
    pub const MEMORY: &str = "XSCHED_MEMORY";
    /// The processes for which the limit counts together: `xsched run` sets it.
    pub const MEMORY_GROUP: &str = "XSCHED_MEMORY_GROUP";
    /// Whether the device memory of the program can be moved to the host: `1`, `ON`, `0` or `OFF`.
    pub const SWAP: &str = "XSCHED_SWAP";
    /// How much memory of the host may hold device memory of the program.
    pub const SWAP_LIMIT: &str = "XSCHED_SWAP_LIMIT";
    /// The limit of device memory as `HAMi` names it.
    pub const HAMI_MEMORY: &str = "CUDA_DEVICE_MEMORY_LIMIT";
    /// The same for each device of a container. The smallest counts for all of them.
    pub const HAMI_DEVICE_MEMORY: [&str; 8] = [
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "CUDA_DEVICE_MEMORY_LIMIT_1",
        "CUDA_DEVICE_MEMORY_LIMIT_2",
        "CUDA_DEVICE_MEMORY_LIMIT_3",
        "CUDA_DEVICE_MEMORY_LIMIT_4",
        "CUDA_DEVICE_MEMORY_LIMIT_5",
        "CUDA_DEVICE_MEMORY_LIMIT_6",
        "CUDA_DEVICE_MEMORY_LIMIT_7",
    ];
    /// The limit of device memory as KAI names it.
    pub const KAI_MEMORY: &str = "GPU_MEMORY_LIMIT";
    /// The name of the program in status reports.
    pub const NAME: &str = "XSCHED_NAME";
    /// The socket of the service.
    pub const SOCKET: &str = "XSCHED_SOCKET";
}

/// The scheduler of the program's queues.
#[derive(Clone, Copy, Debug, Default)]
pub enum Scheduler {
    /// None: the application itself suspends and resumes its queues.
    #[default]
    Application,
    /// The local scheduler.
    Local(&'static PolicyInfo, Params),
    /// The service.
    Service,
}

/// The values of the environment variables.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// Every queue is scheduled, not only those that the program creates an XQueue for.
    pub schedules_every_queue: bool,
    /// The preemption level of queues.
    pub level: LevelRequest,
    /// The in-flight window of throttled queues, if not the default.
    pub limit: Option<Limit>,
    /// The requested hints.
    pub hint_request: HintRequest,
    /// How long a launch of a host-bound program may be deferred, if not the default.
    pub slack: Option<Nanos>,
    /// The name of the program in status reports.
    pub name: Option<String>,
    /// The name of the job that the program is a member of.
    pub job: Option<String>,
    /// The token of the grant that the program has.
    pub grant_token: Option<String>,
    /// The limit of device memory.
    pub memory: Option<MemoryLimit>,
    /// What the processes have in common for which the limit counts together.
    pub memory_group: Option<String>,
    /// The device memory of the program can be moved to the host.
    pub swap: bool,
    /// How much memory of the host may hold it, in bytes, if not the default.
    pub swap_limit: Option<u64>,
}

impl Environment {
    /// Parses the variables that `get` returns, and calls `on_invalid` with the name and a message for each invalid value.
    pub fn read(get: impl Fn(&str) -> Option<String>, on_invalid: impl FnMut(&'static str, String)) -> Self {
        let mut reader = Reader { get, on_invalid };
        let scheduler = reader.scheduler();
        Self {
            scheduler,
            schedules_every_queue: reader.value(name::AUTO, on_or_off).unwrap_or(false),
            level: reader.value(name::LEVEL, LevelRequest::from_str).unwrap_or_default(),
            limit: reader.limit(),
            hint_request: reader.hint_request(),
            slack: reader.value(name::SLACK, parse_slack),
            name: reader.value(name::NAME, validate_name),
            job: reader.value(name::JOB, validate_name),
            grant_token: reader.value(name::GRANT, validate_token),
            memory: reader.memory(),
            memory_group: reader.value(name::MEMORY_GROUP, validate_name),
            swap: reader.value(name::SWAP, on_or_off).unwrap_or(false),
            swap_limit: reader.value(name::SWAP_LIMIT, parse_size),
        }
    }

    /// The requested hints, for the local scheduler. They were validated by [`Environment::read`].
    #[must_use]
    pub fn hints(&self) -> Hints {
        self.hint_request.applied_to(Hints::default()).unwrap_or_default()
    }
}

struct Reader<G, C> {
    get: G,
    on_invalid: C,
}

impl<G: Fn(&str) -> Option<String>, C: FnMut(&'static str, String)> Reader<G, C> {
    /// The value of a variable, if it is set and valid.
    fn value<T, E: Display>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = (self.get)(name).filter(|text| !text.is_empty())?;
        let value = parse(text.trim());
        if let Err(why) = &value {
            (self.on_invalid)(name, format!("{name} is ignored: {why}"));
        }
        value.ok()
    }

    fn number<T, E: Display>(
        &mut self,
        name: &'static str,
        check: impl FnOnce(i64) -> Result<T, E>,
    ) -> Option<i64> {
        self.value(name, |text| {
            let number = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
            check(number).map_err(|why| why.to_string())?;
            Ok::<_, String>(number)
        })
    }

    fn scheduler(&mut self) -> Scheduler {
        let policy = self.value(name::POLICY, PolicyInfo::find);
        let selected = self.value(name::SCHEDULER, |text| match text.to_ascii_uppercase().as_str() {
            "APP" => Ok(SelectedScheduler::Application),
            "LCL" => Ok(SelectedScheduler::Local),
            "GLB" => Ok(SelectedScheduler::Service),
            _ => Err(format!("`{text}` is not a scheduler: use APP, LCL or GLB")),
        });
        match (selected, policy) {
            (Some(SelectedScheduler::Service), _) => Scheduler::Service,
            (Some(SelectedScheduler::Application), _) | (None, None) => Scheduler::Application,
            (Some(SelectedScheduler::Local), None) => match PolicyInfo::find("HPF") {
                Ok(default) => Scheduler::Local(default, self.params()),
                Err(_) => Scheduler::Application,
            },
            (Some(SelectedScheduler::Local) | None, Some(policy)) => Scheduler::Local(policy, self.params()),
        }
    }

    fn params(&mut self) -> Params {
        let mut params = Params::default();
        let timeslice = self.number(name::TIMESLICE, Timeslice::from_micros);
        if let Some(Ok(timeslice)) = timeslice.map(Timeslice::from_micros) {
            params.timeslice = timeslice;
        }
        let at_least_one = |k: i64| if k >= 1 { Ok(()) } else { Err("allowed is 1 or more") };
        if let Some(Ok(k)) = self.number(name::KDEADLINE, at_least_one).map(usize::try_from) {
            params.k = k;
        }
        params
    }

    fn limit(&mut self) -> Option<Limit> {
        let micros = |us: i64| Nanos::from_micros(u64::try_from(us).unwrap_or(0));
        if let Some(us) = self.number(name::BUDGET, |us| Limit::budget(micros(us))) {
            return Limit::budget(micros(us)).ok();
        }
        let threshold = self.number(name::THRESHOLD, |n| Limit::count(n, 1));
        let max = threshold.unwrap_or(Limit::DEFAULT_THRESHOLD);
        let batch_size = self.number(name::BATCH_SIZE, |n| Limit::count(max, n));
        if threshold.is_none() && batch_size.is_none() {
            return None;
        }
        Limit::count(max, batch_size.unwrap_or(Limit::DEFAULT_BATCH_SIZE.min(max))).ok()
    }

    /// The limit of the first variable that is set and valid.
    fn memory(&mut self) -> Option<MemoryLimit> {
        if let Some(limit) = self.value(name::MEMORY, MemoryLimit::from_str) {
            return Some(limit);
        }
        if let Some(limit) = self.value(name::HAMI_MEMORY, MemoryLimit::from_str) {
            return Some(limit);
        }
        let by_device = name::HAMI_DEVICE_MEMORY.map(|name| self.value(name, parse_size));
        let smallest = by_device.into_iter().flatten().min().map(MemoryLimit::Bytes);
        smallest.or_else(|| self.value(name::KAI_MEMORY, MemoryLimit::from_str))
    }

    fn hint_request(&mut self) -> HintRequest {
        let priority = self.value(name::PRIORITY, Priority::from_str).map(|p| i64::from(p.get()));
        let lax = priority.unwrap_or(0);
        let critical = i64::from(Priority::MAX.get());
        HintRequest {
            priority,
            share: self.number(name::SHARE, Share::new),
            deadline_us: self.number(name::DEADLINE, Deadline::from_micros),
            laxity: self
                .number(name::LAXITY, |us| Laxity::new(us, lax, critical))
                .map(|us| (us, lax, critical)),
        }
    }
}

/// Parses how long a launch may be deferred.
pub fn parse_slack(text: &str) -> Result<Nanos, String> {
    let range =
        || format!("slack `{text}` is out of range: allowed is 0ms (launches are not deferred) to 20ms");
    if text.trim() == "0" {
        return Ok(Nanos::ZERO);
    }
    let slack = parse_time(text).map_err(|why| if text.trim().starts_with('-') { range() } else { why })?;
    if slack > MAX_SLACK { Err(range()) } else { Ok(slack) }
}

#[derive(Clone, Copy)]
enum SelectedScheduler {
    Application,
    Local,
    Service,
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text.to_ascii_uppercase().as_str() {
        "ON" | "1" | "TRUE" => Ok(true),
        "OFF" | "0" | "FALSE" => Ok(false),
        _ => Err(format!("`{text}` is not a switch: use ON or OFF")),
    }
}

/// The maximum length of a program's name, in characters.
const MAX_NAME_LENGTH: usize = 64;

/// Validates a name for status reports: one line of 1 to 64 characters.
pub fn validate_name(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if !(1..=MAX_NAME_LENGTH).contains(&length) {
        return Err(format!("a name has 1 to {MAX_NAME_LENGTH} characters, not {length}"));
    }
    if text.chars().any(is_control) {
        return Err("a name has no control characters".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Environment, Vec<String>) {
        let mut messages = Vec::new();
        let get = |name: &str| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        };
        let environment = Environment::read(get, |_, line| messages.push(line));
        (environment, messages)
    }

    #[test]
    fn without_variables_the_application_schedules_itself() {
        let (environment, messages) = read(&[]);
        assert!(
            matches!(environment.scheduler, Scheduler::Application) && !environment.schedules_every_queue
        );
        assert_eq!((environment.level, environment.limit), (LevelRequest::Auto, None));
        assert_eq!(environment.hint_request, HintRequest::default());
        assert!(messages.is_empty());
    }

    #[test]
    fn policy_alone_selects_the_local_scheduler_but_does_not_override_the_service() {
        let policy = |variables: &[_]| match read(variables).0.scheduler {
            Scheduler::Local(policy, params) => Some((policy.name, params.k)),
            Scheduler::Application | Scheduler::Service => None,
        };
        assert_eq!(policy(&[(name::POLICY, "kedf"), (name::KDEADLINE, "3")]), Some(("KEDF", 3)));
        assert_eq!(policy(&[(name::SCHEDULER, "lcl")]), Some(("HPF", 1)));
        assert_eq!(policy(&[(name::SCHEDULER, "GLB"), (name::POLICY, "CFS")]), None);
    }

    #[test]
    fn valid_values_are_used() {
        let (environment, messages) = read(&[
            (name::SCHEDULER, "GLB"),
            (name::AUTO, "ON"),
            (name::PRIORITY, "high"),
            (name::SHARE, "30"),
            (name::DEADLINE, "5000"),
            (name::LAXITY, "700"),
            (name::LEVEL, "2"),
            (name::THRESHOLD, "4"),
            (name::NAME, "trainer"),
            (name::JOB, "training"),
            (name::GRANT, "0123456789abcdef0123456789abcdef"),
        ]);
        assert_eq!(messages, Vec::<String>::new());
        assert_eq!(environment.limit, Limit::count(4, 4).ok());
        assert_eq!(environment.hint_request.laxity, Some((700, 100, 255)));
        assert_eq!(environment.hints().priority, Priority::HIGH);
        assert_eq!(environment.name.as_deref(), Some("trainer"));
        assert_eq!(environment.job.as_deref(), Some("training"));
        assert_eq!(environment.grant_token.as_deref(), Some("0123456789abcdef0123456789abcdef"));
    }

    #[test]
    fn memory_limit_is_that_of_the_first_variable_that_is_set_and_valid() {
        let memory = |variables: &[_]| read(variables).0.memory;
        let kai = (name::KAI_MEMORY, "4G");
        assert_eq!(memory(&[kai]), Some(MemoryLimit::Bytes(4 << 30)));
        let devices = [("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "2g"), kai];
        assert_eq!(memory(&devices), Some(MemoryLimit::Bytes(2 << 30)));
        let hami = (name::HAMI_MEMORY, "20g");
        assert_eq!(memory(&[hami, devices[0], kai]), Some(MemoryLimit::Bytes(20 << 30)));
        assert_eq!(memory(&[(name::MEMORY, "50%"), hami]), Some(MemoryLimit::Percent(50)));
        let (environment, messages) = read(&[(name::MEMORY, "120%"), hami]);
        assert_eq!(environment.memory, Some(MemoryLimit::Bytes(20 << 30)));
        assert!(messages[0].starts_with("XSCHED_MEMORY is ignored: `120%`"), "{messages:?}");
    }

    #[test]
    fn each_invalid_value_is_ignored_and_reported_by_name() {
        let (environment, messages) = read(&[
            (name::SCHEDULER, "everything"),
            (name::PRIORITY, "1000"),
            (name::SHARE, "half"),
            (name::DEADLINE, "77"),
            (name::BUDGET, "1"),
            (name::AUTO, "perhaps"),
            (name::NAME, "two\nlines"),
            (name::GRANT, "short-secret"),
        ]);
        assert_eq!(environment.hint_request, HintRequest { deadline_us: Some(77), ..HintRequest::default() });
        assert_eq!(messages.len(), 7, "{messages:?}");
        assert!(!messages.concat().contains("short-secret"), "a token is not printed");
        let about = |name: &str| messages.iter().find(|line| line.starts_with(name)).unwrap();
        assert!(about(name::PRIORITY).contains("-256 (never run) to 255"));
        assert!(about(name::SHARE).contains("`half` is not a whole number"));
        assert!(about(name::BUDGET).contains("10 us to 10 s"));
    }

    #[test]
    fn names_have_no_control_characters_also_of_bidirectional_text() {
        assert_eq!(validate_name("é 訓練").as_deref(), Ok("é 訓練"));
        for text in ["a\x1bb", "a\u{202e}b", "a\u{2066}b", "a\u{200f}b", "a\u{2028}b"] {
            assert!(validate_name(text).is_err(), "{text:?}");
        }
    }
}
