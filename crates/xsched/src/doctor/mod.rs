//! The examination behind `xsched doctor`: small checks that look at one thing each and say what to do about it.
//!
//! A check sees the machine through [`Machine`] only, so that tests can make one up.

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

pub(crate) use self::machine::Machine;
pub(crate) use self::report::text;

/// How it is with one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could, or not for everyone.
    Warning,
    /// Does not work.
    Problem,
}

/// Where a thing belongs in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Group {
    /// The service and what it sees.
    Scheduler,
    /// Getting into programs.
    Programs,
    /// Accelerators.
    Devices,
    /// What the system offers.
    System,
}

impl Group {
    /// All, in the order of the report.
    const ALL: [Self; 4] = [Self::Scheduler, Self::Programs, Self::Devices, Self::System];

    /// Its heading.
    fn heading(self) -> &'static str {
        match self {
            Self::Scheduler => "Scheduler",
            Self::Programs => "Programs",
            Self::Devices => "Devices",
            Self::System => "System",
        }
    }
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// Where it belongs.
    pub(crate) group: Group,
    /// What was looked at.
    pub(crate) name: String,
    /// How it is.
    pub(crate) state: State,
    /// In words.
    pub(crate) what: String,
    /// What to do about it, if there is something to do.
    pub(crate) do_next: Option<String>,
}

impl Check {
    pub(crate) fn ok(group: Group, name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { group, name: name.into(), state: State::Ok, what: what.into(), do_next: None }
    }

    pub(crate) fn warning(
        group: Group,
        name: impl Into<String>,
        what: impl Into<String>,
        do_next: impl Into<String>,
    ) -> Self {
        let do_next = Some(do_next.into());
        Self { group, name: name.into(), state: State::Warning, what: what.into(), do_next }
    }

    pub(crate) fn problem(
        group: Group,
        name: impl Into<String>,
        what: impl Into<String>,
        do_next: impl Into<String>,
    ) -> Self {
        Self { state: State::Problem, ..Self::warning(group, name, what, do_next) }
    }
}

/// Looks at everything.
pub(crate) fn examine(machine: &Machine) -> Vec<Check> {
    let checks: [fn(&Machine) -> Vec<Check>; 6] = [
        scheduler::service,
        library::library,
        library::preload,
        platforms::platforms,
        kernel::kernel,
        surroundings::surroundings,
    ];
    checks.iter().flat_map(|check| check(machine)).collect()
}

/// How many checks found this.
pub(crate) fn count(checks: &[Check], state: State) -> usize {
    checks.iter().filter(|check| check.state == state).count()
}
