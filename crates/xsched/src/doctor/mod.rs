//! The checks of `xsched doctor`: each examines one property of the machine and reports what to do.
//!
//! A check reads the machine through [`Machine`] only, so that tests can pass a directory tree.

mod kernel;
mod library;
mod machine;
pub(crate) mod pci;
mod platforms;
mod report;
mod scheduler;
mod surroundings;
#[cfg(test)]
pub(crate) mod tests;

use serde::Serialize;
use serde_json::Value;

pub(crate) use self::machine::Machine;
pub(crate) use self::report::{commands, text};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Not on this machine: neither works nor fails.
    Absent,
    /// Works.
    Ok,
    /// Works with a restriction.
    Warning,
    /// Does not work.
    Problem,
}

/// The section of the report that a check belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Group {
    /// The service and its tasks.
    Scheduler,
    /// Preloading the library into programs.
    Programs,
    /// Accelerators.
    Devices,
    /// The kernel, the user's rights, the container.
    System,
}

impl Group {
    /// All groups, in the order of the report.
    const ALL: [Self; 4] = [Self::Scheduler, Self::Programs, Self::Devices, Self::System];

    /// The heading of the section.
    fn heading(self) -> &'static str {
        match self {
            Self::Scheduler => "Scheduler",
            Self::Programs => "Programs",
            Self::Devices => "Devices",
            Self::System => "System",
        }
    }
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// The section of the report.
    pub(crate) group: Group,
    /// The property that was examined.
    pub(crate) name: String,
    /// The result.
    pub(crate) state: State,
    /// The finding as text.
    pub(crate) what: String,
    /// What the user can do, unless the result is ok.
    pub(crate) do_next: Option<String>,
    /// The values that the finding is based on, for programs that read the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) facts: Option<Value>,
}

impl Check {
    pub(crate) fn ok(group: Group, name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { group, name: name.into(), state: State::Ok, what: what.into(), do_next: None, facts: None }
    }

    /// A finding about something that this machine does not have.
    pub(crate) fn absent(group: Group, name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { state: State::Absent, ..Self::ok(group, name, what) }
    }

    /// The same finding, if there is no device that it matters for.
    pub(crate) fn without_verdict(self) -> Self {
        Self { state: State::Absent, do_next: None, ..self }
    }

    pub(crate) fn warning(
        group: Group,
        name: impl Into<String>,
        what: impl Into<String>,
        do_next: impl Into<String>,
    ) -> Self {
        let do_next = Some(do_next.into());
        Self { group, name: name.into(), state: State::Warning, what: what.into(), do_next, facts: None }
    }

    pub(crate) fn problem(
        group: Group,
        name: impl Into<String>,
        what: impl Into<String>,
        do_next: impl Into<String>,
    ) -> Self {
        Self { state: State::Problem, ..Self::warning(group, name, what, do_next) }
    }

    /// The same finding with the values it is based on.
    pub(crate) fn with_facts(self, facts: Value) -> Self {
        Self { facts: Some(facts), ..self }
    }
}

/// Runs all checks.
pub(crate) fn examine(machine: &Machine) -> Vec<Check> {
    let checks: [fn(&Machine) -> Vec<Check>; 7] = [
        scheduler::service,
        library::library,
        library::preload,
        library::search_path,
        platforms::platforms,
        kernel::kernel,
        surroundings::surroundings,
    ];
    checks.iter().flat_map(|check| check(machine)).collect()
}

/// The number of checks with this result.
pub(crate) fn count(checks: &[Check], state: State) -> usize {
    checks.iter().filter(|check| check.state == state).count()
}
