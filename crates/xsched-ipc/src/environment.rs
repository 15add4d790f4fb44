//! What a program's user asks for through environment variables. Names and meaning are those of the reference, with
//! `XSCHED_BUDGET` and `XSCHED_NAME` added; `docs/environment.md` lists them all.
//!
//! They are read in somebody else's program: a value that makes no sense is ignored, and reported to those who listen.

use std::fmt::Display;
use std::str::FromStr;

use xsched_core::{Deadline, Hints, Laxity, LevelRequest, Limit, Nanos, Priority, Share, Timeslice};
use xsched_policy::{Params, PolicyInfo};

use crate::protocol::HintRequest;

/// The names of the variables.
pub mod name {
    /// Who schedules: `APP`, `LCL` or `GLB`.
    pub const SCHEDULER: &str = "XSCHED_SCHEDULER";
    /// The policy of a local scheduler.
    pub const POLICY: &str = "XSCHED_POLICY";
    /// Whether every stream of the program is scheduled: `ON` or `OFF`.
    pub const AUTO: &str = "XSCHED_AUTO_XQUEUE";
    /// How deep queues are preempted.
    pub const LEVEL: &str = "XSCHED_AUTO_XQUEUE_LEVEL";
    /// Commands in flight.
    pub const THRESHOLD: &str = "XSCHED_AUTO_XQUEUE_THRESHOLD";
    /// Commands from one marker to the next.
    pub const BATCH_SIZE: &str = "XSCHED_AUTO_XQUEUE_BATCH_SIZE";
    /// Importance.
    pub const PRIORITY: &str = "XSCHED_AUTO_XQUEUE_PRIORITY";
    /// Percent of the device.
    pub const SHARE: &str = "XSCHED_AUTO_XQUEUE_UTILIZATION";
    /// Microseconds of a turn, for a local scheduler.
    pub const TIMESLICE: &str = "XSCHED_AUTO_XQUEUE_TIMESLICE";
    /// Microseconds to be done in.
    pub const DEADLINE: &str = "XSCHED_AUTO_XQUEUE_DEADLINE";
    /// Tasks at once under KEDF, for a local scheduler.
    pub const KDEADLINE: &str = "XSCHED_AUTO_XQUEUE_KDEADLINE";
    /// Microseconds a task can wait before it becomes critical.
    pub const LAXITY: &str = "XSCHED_AUTO_XQUEUE_LAXITY";
    /// Microseconds of work in flight.
    pub const BUDGET: &str = "XSCHED_BUDGET";
    /// What the program is called in lists.
    pub const NAME: &str = "XSCHED_NAME";
    /// Where the service listens.
    pub const SOCKET: &str = "XSCHED_SOCKET";
}

/// Who schedules the program's queues.
#[derive(Clone, Copy, Debug, Default)]
pub enum Scheduler {
    /// The program itself, and nobody else.
    #[default]
    Application,
    /// A scheduler inside the process.
    Local(&'static PolicyInfo, Params),
    /// The service.
    Service,
}

/// All that the environment says.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Who schedules.
    pub scheduler: Scheduler,
    /// Every stream is scheduled, not only those the program asks for.
    pub schedules_every_queue: bool,
    /// How deep queues are preempted.
    pub level: LevelRequest,
    /// What is in flight while the scheduler wants little of it, if not the default.
    pub limit: Option<Limit>,
    /// What the program would like.
    pub hint_request: HintRequest,
    /// What the program is called in lists.
    pub name: Option<String>,
}

impl Environment {
    /// Understands the variables that `get` answers with, and hands a line about each it cannot use to `complain`.
    pub fn read(get: impl Fn(&str) -> Option<String>, complain: impl FnMut(String)) -> Self {
        let mut reader = Reader { get, complain };
        let scheduler = reader.scheduler();
        Self {
            scheduler,
            schedules_every_queue: reader.value(name::AUTO, on_or_off).unwrap_or(false),
            level: reader.value(name::LEVEL, LevelRequest::from_str).unwrap_or_default(),
            limit: reader.limit(),
            hint_request: reader.hint_request(),
            name: reader.value(name::NAME, plain_name),
        }
    }

    /// The hint_request as hints for a local scheduler. They were checked when they were read.
    #[must_use]
    pub fn hints(&self) -> Hints {
        self.hint_request.applied_to(Hints::default()).unwrap_or_default()
    }
}

struct Reader<G, C> {
    get: G,
    complain: C,
}

impl<G: Fn(&str) -> Option<String>, C: FnMut(String)> Reader<G, C> {
    /// The value of a variable, if it is set and makes sense.
    fn value<T, E: Display>(&mut self, name: &str, check: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        let text = (self.get)(name).filter(|text| !text.is_empty())?;
        let value = check(text.trim());
        if let Err(why) = &value {
            (self.complain)(format!("{name} is ignored: {why}"));
        }
        value.ok()
    }

    fn number<T, E: Display>(&mut self, name: &str, check: impl FnOnce(i64) -> Result<T, E>) -> Option<i64> {
        self.value(name, |text| {
            let number = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
            check(number).map_err(|why| why.to_string())?;
            Ok::<_, String>(number)
        })
    }

    fn scheduler(&mut self) -> Scheduler {
        let policy = self.value(name::POLICY, PolicyInfo::find);
        let asked = self.value(name::SCHEDULER, |text| match text.to_ascii_uppercase().as_str() {
            "APP" => Ok(Asked::Application),
            "LCL" => Ok(Asked::Local),
            "GLB" => Ok(Asked::Service),
            _ => Err(format!("`{text}` is none of APP, LCL and GLB")),
        });
        match (asked, policy) {
            (Some(Asked::Service), _) => Scheduler::Service,
            (Some(Asked::Application), _) | (None, None) => Scheduler::Application,
            (Some(Asked::Local), None) => match PolicyInfo::find("HPF") {
                Ok(default) => Scheduler::Local(default, self.params()),
                Err(_) => Scheduler::Application,
            },
            (Some(Asked::Local) | None, Some(policy)) => Scheduler::Local(policy, self.params()),
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
        let most = threshold.unwrap_or(Limit::DEFAULT_THRESHOLD);
        let batch_size = self.number(name::BATCH_SIZE, |n| Limit::count(most, n));
        if threshold.is_none() && batch_size.is_none() {
            return None;
        }
        Limit::count(most, batch_size.unwrap_or(Limit::DEFAULT_BATCH_SIZE.min(most))).ok()
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

#[derive(Clone, Copy)]
enum Asked {
    Application,
    Local,
    Service,
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text.to_ascii_uppercase().as_str() {
        "ON" | "1" | "TRUE" => Ok(true),
        "OFF" | "0" | "FALSE" => Ok(false),
        _ => Err(format!("`{text}` is neither ON nor OFF")),
    }
}

/// The longest name a program may be given.
const LONGEST_NAME: usize = 64;

/// Checks a name that is shown in lists: one line of 1 to 64 characters.
pub fn plain_name(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if !(1..=LONGEST_NAME).contains(&length) {
        return Err(format!("a name has 1 to {LONGEST_NAME} characters, not {length}"));
    }
    if text.chars().any(char::is_control) {
        return Err("a name has no control characters".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Environment, Vec<String>) {
        let mut complaints = Vec::new();
        let get = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let environment = Environment::read(get, |line| complaints.push(line));
        (environment, complaints)
    }

    #[test]
    fn nothing_said_means_that_the_program_decides() {
        let (environment, complaints) = read(&[]);
        assert!(
            matches!(environment.scheduler, Scheduler::Application) && !environment.schedules_every_queue
        );
        assert_eq!((environment.level, environment.limit), (LevelRequest::Auto, None));
        assert_eq!(environment.hint_request, HintRequest::default());
        assert!(complaints.is_empty());
    }

    #[test]
    fn a_policy_alone_selects_a_local_scheduler_and_the_service_stays_the_service() {
        let policy = |variables: &[_]| match read(variables).0.scheduler {
            Scheduler::Local(policy, params) => Some((policy.name, params.k)),
            Scheduler::Application | Scheduler::Service => None,
        };
        assert_eq!(policy(&[(name::POLICY, "kedf"), (name::KDEADLINE, "3")]), Some(("KEDF", 3)));
        assert_eq!(policy(&[(name::SCHEDULER, "lcl")]), Some(("HPF", 1)));
        assert_eq!(policy(&[(name::SCHEDULER, "GLB"), (name::POLICY, "CFS")]), None);
    }

    #[test]
    fn good_values_are_taken() {
        let (environment, complaints) = read(&[
            (name::SCHEDULER, "GLB"),
            (name::AUTO, "ON"),
            (name::PRIORITY, "high"),
            (name::SHARE, "30"),
            (name::DEADLINE, "5000"),
            (name::LAXITY, "700"),
            (name::LEVEL, "2"),
            (name::THRESHOLD, "4"),
            (name::NAME, "trainer"),
        ]);
        assert_eq!(complaints, Vec::<String>::new());
        assert_eq!(environment.limit, Limit::count(4, 4).ok());
        assert_eq!(environment.hint_request.laxity, Some((700, 100, 255)));
        assert_eq!(environment.hints().priority, Priority::HIGH);
        assert_eq!(environment.name.as_deref(), Some("trainer"));
    }

    #[test]
    fn each_bad_value_is_ignored_alone_and_named() {
        let (environment, complaints) = read(&[
            (name::SCHEDULER, "everybody"),
            (name::PRIORITY, "1000"),
            (name::SHARE, "half"),
            (name::DEADLINE, "77"),
            (name::BUDGET, "1"),
            (name::AUTO, "perhaps"),
            (name::NAME, "two\nlines"),
        ]);
        assert_eq!(environment.hint_request, HintRequest { deadline_us: Some(77), ..HintRequest::default() });
        assert_eq!(complaints.len(), 6, "{complaints:?}");
        let about = |name: &str| complaints.iter().find(|line| line.starts_with(name)).unwrap();
        assert!(about(name::PRIORITY).contains("-256 (never run) to 255"));
        assert!(about(name::SHARE).contains("`half` is not a whole number"));
        assert!(about(name::BUDGET).contains("10 us to 10 s"));
    }
}
