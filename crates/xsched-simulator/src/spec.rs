//! The devices and tasks of a simulation file, checked and expanded by their counts.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use xsched_core::{Hints, Level, LevelCost, Nanos};

use crate::file::{self, Arrival, CommandTable, DeviceTable, Drawn, SpecError, TaskTable};
use xsched_policy::{Params, Scope};

/// The input of a simulation, except for the policy. Read from a file; see the [crate documentation](crate) for its format.
#[derive(Clone, Debug)]
pub struct Spec {
    pub(crate) duration: u64,
    pub(crate) warmup: u64,
    pub(crate) seed: u64,
    pub(crate) params: Params,
    pub(crate) device_groups: Vec<DeviceGroup>,
    pub(crate) task_groups: Vec<TaskGroup>,
    pub(crate) devices: Vec<DeviceSlot>,
    pub(crate) tasks: Vec<TaskSlot>,
    machines: u32,
}

/// One `[[device]]` entry: identical devices. Times in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct DeviceGroup {
    pub(crate) name: String,
    pub(crate) count: u32,
    pub(crate) level: Level,
    pub(crate) cost: LevelCost,
    pub(crate) switch: u64,
    pub(crate) native_slice: u64,
    pub(crate) window: u64,
}

/// One `[[task]]` entry: identical tasks.
#[derive(Clone, Debug)]
pub(crate) struct TaskGroup {
    pub(crate) name: String,
    pub(crate) count: u32,
    pub(crate) arrival: Arrival,
    pub(crate) commands: u32,
    pub(crate) lengths: Lengths,
    pub(crate) hints: Hints,
    pub(crate) nice: i8,
    pub(crate) focused: bool,
}

/// How long commands run, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Lengths {
    Constant(u64),
    Uniform { min: u64, max: u64 },
    Exponential { mean: u64 },
    Lognormal { median: u64, sigma: f64 },
    List(Vec<u64>),
}

/// One device: a replica of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSlot {
    pub(crate) group: u32,
    pub(crate) replica: u32,
    machine: u32,
}

/// One task: a replica of an entry, and its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskSlot {
    pub(crate) group: u32,
    pub(crate) replica: u32,
    pub(crate) device: u32,
    pub(crate) process: u32,
}

/// One domain: devices and the tasks on them that a policy instance decides for, as ascending indices.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainPlan {
    pub(crate) devices: Vec<u32>,
    pub(crate) tasks: Vec<u32>,
}

/// More jobs than this are probably a wrong unit, and their backlog would not fit into memory.
const MAX_JOBS: u64 = 200_000_000;
const MAX_DEVICES: usize = 100_000;
const MAX_TASKS: usize = 1_000_000;

impl Spec {
    /// Reads a simulation file's text.
    pub fn from_toml(text: &str) -> Result<Self, SpecError> {
        let file = file::read(text)?;
        let fault = |span: &Range<usize>, message: String| SpecError::at(text, span, message);
        let mut spec = Self {
            duration: file.duration,
            warmup: file.warmup.as_ref().map_or(0, |time| time.as_ref().0),
            seed: file.seed,
            params: Params { timeslice: file.policy.timeslice, k: file.policy.k as usize },
            device_groups: Vec::new(),
            task_groups: Vec::new(),
            devices: Vec::new(),
            tasks: Vec::new(),
            machines: 0,
        };
        if let Some(warmup) = file.warmup.filter(|warmup| warmup.as_ref().0 >= file.duration) {
            return Err(fault(&warmup.span(), spec.warmup_too_long()));
        }
        if file.device.is_empty() {
            return Err(SpecError::anywhere("no device: a file needs at least one [[device]]"));
        }
        if file.task.is_empty() {
            return Err(SpecError::anywhere("no task: a file needs at least one [[task]]"));
        }
        let names = spec.add_devices(file.device, &fault)?;
        spec.add_tasks(file.task, &names, &fault)?;
        spec.check_jobs()?;
        Ok(spec)
    }

    /// The same with another seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The same over another span of virtual time.
    pub fn with_duration(mut self, duration: Nanos) -> Result<Self, SpecError> {
        self.duration = duration.0;
        let longest = Nanos::from_secs(24 * 3600);
        if !(Nanos::from_millis(1)..=longest).contains(&duration) {
            return Err(SpecError::anywhere(format!(
                "duration {duration} is out of range: allowed is 1ms to 24h"
            )));
        }
        if self.warmup >= self.duration {
            return Err(SpecError::anywhere(self.warmup_too_long()));
        }
        self.check_jobs()?;
        Ok(self)
    }

    /// How many devices there are.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// How many tasks there are.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    fn warmup_too_long(&self) -> String {
        let (warmup, duration) = (Nanos(self.warmup), Nanos(self.duration));
        format!("warmup {warmup} leaves nothing to measure: allowed is less than the duration, {duration}")
    }

    /// Adds the devices. Returns which of them each name refers to.
    fn add_devices(
        &mut self,
        entries: Vec<DeviceTable>,
        fault: &dyn Fn(&Range<usize>, String) -> SpecError,
    ) -> Result<HashMap<String, Range<u32>>, SpecError> {
        let mut names = HashMap::new();
        let mut machines = HashMap::new();
        for entry in entries {
            let group = index(self.device_groups.len());
            let first = index(self.devices.len());
            let span = entry.name.span();
            let name = entry.name.into_inner();
            let taken = |name: &str| {
                fault(
                    &span,
                    format!("there is a device `{name}` already: every device needs a name of its own"),
                )
            };
            if names.insert(name.clone(), first..first + entry.count).is_some() {
                return Err(taken(&name));
            }
            for replica in 0..entry.count {
                let machine = (entry.machine.clone(), replica / entry.devices_per_machine);
                let next = index(machines.len());
                let machine = *machines.entry(machine).or_insert(next);
                self.devices.push(DeviceSlot { group, replica, machine });
                let own = replica_name(&name, entry.count, replica);
                let at = first + replica;
                if entry.count > 1 && names.insert(own.clone(), at..at + 1).is_some() {
                    return Err(taken(&own));
                }
            }
            if self.devices.len() > MAX_DEVICES {
                return Err(fault(&span, format!("too many devices in all: allowed is 1 to {MAX_DEVICES}")));
            }
            self.device_groups.push(DeviceGroup {
                name,
                count: entry.count,
                level: entry.level,
                cost: LevelCost { preempt: Nanos(entry.preempt.0), restore: Nanos(entry.restore.0) },
                switch: entry.switch.0,
                native_slice: entry.native_slice,
                window: entry.window.0,
            });
        }
        self.machines = index(machines.len());
        Ok(names)
    }

    fn add_tasks(
        &mut self,
        entries: Vec<TaskTable>,
        names: &HashMap<String, Range<u32>>,
        fault: &dyn Fn(&Range<usize>, String) -> SpecError,
    ) -> Result<(), SpecError> {
        let mut taken = HashSet::new();
        let mut processes = HashMap::new();
        for entry in entries {
            let group = index(self.task_groups.len());
            let span = entry.name.span();
            let name = entry.name.into_inner();
            if !taken.insert(name.clone()) {
                let message =
                    format!("there is a task `{name}` already: every [[task]] needs a name of its own");
                return Err(fault(&span, message));
            }
            let devices = match &entry.device {
                None => 0..index(self.devices.len()),
                Some(device) => names.get(device.as_ref()).cloned().ok_or_else(|| {
                    fault(
                        &device.span(),
                        format!("there is no device `{}`: {}", device.as_ref(), self.choices()),
                    )
                })?,
            };
            for replica in 0..entry.count {
                // A named process has one task of each entry that names it. Without a name each task is a process of its own.
                let process = match &entry.process {
                    Some(process) => (Some(process.clone()), 0, replica),
                    None => (None, group, replica),
                };
                let next = index(processes.len()) + 1;
                let process = *processes.entry(process).or_insert(next);
                let device = devices.start + replica % (devices.end - devices.start);
                self.tasks.push(TaskSlot { group, replica, device, process });
            }
            if self.tasks.len() > MAX_TASKS {
                return Err(fault(&span, format!("too many tasks in all: allowed is 1 to {MAX_TASKS}")));
            }
            self.task_groups.push(TaskGroup {
                name,
                count: entry.count,
                arrival: check_arrival(&entry.arrival).map_err(|why| fault(&entry.arrival.span(), why))?,
                commands: entry.commands,
                lengths: check_lengths(entry.command.as_ref())
                    .map_err(|why| fault(&entry.command.span(), why))?,
                hints: Hints {
                    priority: entry.priority,
                    share: entry.share,
                    deadline: entry.deadline,
                    laxity: entry.laxity.map(|laxity| laxity.0),
                },
                nice: entry.nice,
                focused: entry.focused,
            });
        }
        Ok(())
    }

    /// The devices that a task can name, for an error message.
    fn choices(&self) -> String {
        let names = self.device_groups.iter().take(8).map(|group| match group.count {
            1 => format!("`{}`", group.name),
            n => format!("`{0}` (any of `{0}-0` to `{0}-{1}`)", group.name, n - 1),
        });
        let more = if self.device_groups.len() > 8 { ", ..." } else { "" };
        format!("allowed is {}{more}", names.collect::<Vec<_>>().join(", "))
    }

    fn check_jobs(&self) -> Result<(), SpecError> {
        let mut jobs = 0_u64;
        for group in &self.task_groups {
            let apart = match group.arrival {
                Arrival::Periodic { every, .. } => every,
                Arrival::Poisson { mean } => mean,
                // Bounded by the speed of the device, and never a backlog.
                Arrival::Closed { .. } => continue,
            };
            jobs = jobs.saturating_add((self.duration / apart).saturating_mul(group.count.into()));
            if jobs > MAX_JOBS {
                return Err(SpecError::anywhere(format!(
                    "too many jobs: with task `{}` they are more than {MAX_JOBS} over {}; \
                     shorten the duration or let jobs come less often",
                    group.name,
                    Nanos(self.duration)
                )));
            }
        }
        Ok(())
    }

    /// The domains of a policy with this scope.
    pub(crate) fn domains(&self, scope: Scope) -> Vec<DomainPlan> {
        let domain = |device: u32| match scope {
            Scope::Device => device,
            Scope::Machine => self.devices[device as usize].machine,
        };
        let count = match scope {
            Scope::Device => index(self.devices.len()),
            Scope::Machine => self.machines,
        };
        let mut plans = vec![DomainPlan::default(); count as usize];
        for device in 0..index(self.devices.len()) {
            plans[domain(device) as usize].devices.push(device);
        }
        for (task, slot) in self.tasks.iter().enumerate() {
            plans[domain(slot.device) as usize].tasks.push(index(task));
        }
        plans
    }

    pub(crate) fn device_name(&self, device: usize) -> String {
        let slot = self.devices[device];
        let group = &self.device_groups[slot.group as usize];
        replica_name(&group.name, group.count, slot.replica)
    }

    pub(crate) fn task_name(&self, task: usize) -> String {
        let slot = self.tasks[task];
        let group = &self.task_groups[slot.group as usize];
        replica_name(&group.name, group.count, slot.replica)
    }
}

/// Counts stay far below 2^32: see `MAX_TASKS` and `MAX_DEVICES`, which one entry can exceed by its own limit only.
pub(crate) fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn replica_name(name: &str, count: u32, replica: u32) -> String {
    if count == 1 { name.to_owned() } else { format!("{name}-{replica}") }
}

fn check_arrival(arrival: &toml::Spanned<Arrival>) -> Result<Arrival, String> {
    match arrival.as_ref() {
        Arrival::Periodic { every, jitter, .. } if jitter.0 > *every => Err(format!(
            "jitter {} is longer than the period: allowed is 0s to {}",
            Nanos(jitter.0),
            Nanos(*every)
        )),
        fine => Ok(fine.clone()),
    }
}

fn check_lengths(command: &CommandTable) -> Result<Lengths, String> {
    Ok(match command {
        CommandTable::Constant(length) => Lengths::Constant(*length),
        CommandTable::Drawn(Drawn::Uniform { min, max }) if min > max => {
            return Err(format!("min {} is more than max {}", Nanos(*min), Nanos(*max)));
        }
        CommandTable::Drawn(Drawn::Uniform { min, max }) => Lengths::Uniform { min: *min, max: *max },
        CommandTable::Drawn(Drawn::Exponential { mean }) => Lengths::Exponential { mean: *mean },
        CommandTable::Drawn(Drawn::Lognormal { median, sigma }) => {
            Lengths::Lognormal { median: *median, sigma: *sigma }
        }
        CommandTable::Drawn(Drawn::List(list)) if list.is_empty() => {
            return Err("the list is empty: it needs at least one length".to_owned());
        }
        CommandTable::Drawn(Drawn::List(list)) => Lengths::List(list.iter().map(|length| length.0).collect()),
    })
}
