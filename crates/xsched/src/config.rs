//! The configuration file, and errors in it.
//!
//! Every value is checked while it is parsed, so that an error is reported with its line and column.

// With a path, because the fuzz target includes this file by its path.
#[path = "config/parse.rs"]
mod parse;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use toml::Spanned;
use xsched_core::{Priority, Share, Timeslice};
use xsched_ipc::memory::MemoryLimit;
use xsched_ipc::service::{Glob, GrantOptions, Limit, Limits, Options, Quota, Rule};
use xsched_policy::{Params, PolicyInfo};

pub(super) use self::parse::parse;

/// A commented configuration file with all settings.
pub(crate) const TEMPLATE: &str = include_str!("config/template.toml");

/// The configuration of a service.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// The file it was read from; none if the built-in defaults are used.
    pub(crate) file: Option<PathBuf>,
    pub(crate) content: Content,
}

/// The content of the file.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Content {
    pub(crate) defaults: Defaults,
    pub(crate) limits: LimitsSection,
    rules: Vec<Spanned<RuleEntry>>,
    grants: GrantsSection,
    pub(crate) http: HttpSection,
}

/// The section `[defaults]`: the policy and its parameters at the start.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Defaults {
    policy: Option<PolicyName>,
    timeslice_us: Option<TimesliceValue>,
    k: Option<ConcurrentTasks>,
    /// Whether tasks that are alone on their device are sampled.
    sample_utilization: Option<bool>,
}

/// The section `[limits]`: the highest priority and share that users may request, and the most that each can have.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsSection {
    max_priority: Option<PriorityValue>,
    max_share: Option<ShareValue>,
    max_connections: Option<Amount>,
    max_processes: Option<Amount>,
    max_queues: Option<Amount>,
    max_job_keys: Option<Amount>,
    max_unread_kib: Option<Amount>,
    #[serde(rename = "for")]
    exceptions: Vec<Spanned<LimitEntry>>,
}

/// The section `[http]`: access to the HTTP interface and to the metrics.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HttpSection {
    /// Where metrics are served over TCP, unless the command line says otherwise.
    pub(crate) metrics: Option<MetricsAddress>,
    /// A file with the token that gives a request the rights of an administrator.
    pub(crate) token_file: Option<PathBuf>,
    /// The metrics contain the names of all programs, for every caller.
    pub(crate) metrics_names: bool,
}

impl PartialEq for HttpSection {
    fn eq(&self, other: &Self) -> bool {
        let address = |section: &Self| section.metrics.map(|address| address.0);
        address(self) == address(other)
            && self.token_file == other.token_file
            && self.metrics_names == other.metrics_names
    }
}

/// The section `[grants]`: the group that may give grants besides administrators, and the control groups that are confined without one.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GrantsSection {
    confine: Vec<GroupPattern>,
    group: Option<Group>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitEntry {
    user: Option<User>,
    group: Option<Group>,
    max_priority: Option<PriorityValue>,
    max_share: Option<ShareValue>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    executable: Option<String>,
    cgroup: Option<String>,
    user: Option<User>,
    priority: Option<PriorityValue>,
    share: Option<ShareValue>,
    memory: Option<MemoryValue>,
}

/// A value that is checked while it is parsed.
trait Checked: Sized {
    /// The allowed values, for error texts.
    const ALLOWED: &str;
    fn from_number(n: i64) -> Result<Self, String> {
        Err(format!("{n} is not allowed here: allowed is {}", Self::ALLOWED))
    }
    fn from_text(text: &str) -> Result<Self, String> {
        Err(format!("\"{text}\" is not allowed here: allowed is {}", Self::ALLOWED))
    }
}

struct CheckedVisitor<T>(std::marker::PhantomData<T>);

impl<T: Checked> Visitor<'_> for CheckedVisitor<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::ALLOWED)
    }
    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        T::from_number(n).map_err(E::custom)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text).map_err(E::custom)
    }
}

macro_rules! checked {
    ($name:ident($inner:ty), $allowed:literal, $number:expr, $text:expr) => {
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name(pub(crate) $inner);

        impl Checked for $name {
            const ALLOWED: &str = $allowed;
            fn from_number(n: i64) -> Result<Self, String> {
                let parse: fn(i64) -> Result<$inner, String> = $number;
                parse(n).map(Self)
            }
            fn from_text(text: &str) -> Result<Self, String> {
                let parse: fn(&str) -> Result<$inner, String> = $text;
                parse(text).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(CheckedVisitor(std::marker::PhantomData))
            }
        }
    };
}

fn not_a_number<T>(allowed: &str, text: &str) -> Result<T, String> {
    Err(format!("\"{text}\" is not a number: allowed is {allowed}"))
}

checked!(
    PriorityValue(Priority),
    "-256 (never run) to 255, \"low\", \"normal\" or \"high\"",
    |n| Priority::new(n).map_err(|error| error.to_string()),
    |text| text.parse::<Priority>().map_err(|error| error.to_string())
);
checked!(
    ShareValue(Share),
    "0 to 100 (percent)",
    |n| Share::new(n).map_err(|error| error.to_string()),
    |text| not_a_number("0 to 100 (percent)", text)
);
checked!(
    MemoryValue(MemoryLimit),
    "a size such as \"20G\", or a part of the device such as \"50%\"",
    |n| n.to_string().parse(),
    str::parse
);
checked!(
    TimesliceValue(Timeslice),
    "100 to 10000000 (microseconds)",
    |n| Timeslice::from_micros(n).map_err(|error| error.to_string()),
    |text| not_a_number("100 to 10000000 (microseconds)", text)
);
checked!(
    ConcurrentTasks(usize),
    "1 and more",
    |n| usize::try_from(n)
        .ok()
        .filter(|n| *n > 0)
        .ok_or(format!("{n} is out of range: allowed is 1 and more")),
    |text| not_a_number("1 and more", text)
);
checked!(
    Amount(usize),
    "1 to 1000000",
    |n| usize::try_from(n)
        .ok()
        .filter(|n| (1..=1_000_000).contains(n))
        .ok_or(format!("{n} is out of range: allowed is 1 to 1000000")),
    |text| not_a_number("1 to 1000000", text)
);
checked!(
    PolicyName(&'static PolicyInfo),
    "the name of a policy",
    |n| Err(format!("{n} is not the name of a policy: use a name such as \"priority\"")),
    |text| PolicyInfo::find(text).map_err(|error| error.to_string())
);
checked!(
    MetricsAddress(SocketAddr),
    "an address and a port, such as \"127.0.0.1:9400\"",
    |n| Err(format!("{n} is not an address and a port: write for example \"127.0.0.1:9400\"")),
    |text| text.parse().map_err(|_| format!(
        "\"{text}\" is not an address and a port: write for example \"127.0.0.1:9400\""
    ))
);
checked!(
    User(u32),
    "a user name or ID",
    |n| u32::try_from(n).map_err(|_| format!("{n} is not a user ID")),
    |text| id_of("/etc/passwd", text).ok_or(format!(
        "user \"{text}\" does not exist on this machine: use a name from /etc/passwd, or a user ID"
    ))
);
checked!(
    Group(u32),
    "a group name or ID",
    |n| u32::try_from(n).map_err(|_| format!("{n} is not a group ID")),
    |text| id_of("/etc/group", text).ok_or(format!(
        "group \"{text}\" does not exist on this machine: use a name from /etc/group, or a group ID"
    ))
);

/// A pattern for the path of a control group.
#[derive(Clone, Debug)]
struct GroupPattern(Glob);

impl<'de> Deserialize<'de> for GroupPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.starts_with(['/', '*', '?']) {
            Ok(Self(Glob::new(&text)))
        } else {
            Err(de::Error::custom(format!(
                "\"{text}\" matches no control group: their paths begin with a slash, as in \"/kubepods*\""
            )))
        }
    }
}

/// The ID of a user or group; both files have it in the third column.
pub(crate) fn id_of(file: &str, name: &str) -> Option<u32> {
    let list = std::fs::read_to_string(file).ok()?;
    let line = list.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

impl Config {
    /// Reads `file`, else the default file if it exists.
    pub(crate) fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let file = match file {
            Some(file) => file.to_owned(),
            None => match default_file().filter(|file| file.exists()) {
                Some(file) => file,
                None => return Ok(Self::default()),
            },
        };
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let content = parse(&text).map_err(|errors| {
            let lines: Vec<_> = errors.iter().map(|error| format!("{}:{error}", file.display())).collect();
            anyhow::anyhow!("{}", lines.join("\n"))
        })?;
        Ok(Self { file: Some(file), content })
    }

    /// The options of a service at `socket`.
    pub(crate) fn options(&self, socket: PathBuf) -> Options {
        let mut options = Options::at(socket);
        let defaults = &self.content.defaults;
        options.policy = defaults.policy.map_or(options.policy, |policy| policy.0);
        options.params = Params {
            timeslice: defaults.timeslice_us.map_or(Timeslice::DEFAULT, |timeslice| timeslice.0),
            k: defaults.k.map_or(1, |k| k.0),
        };
        options.samples_utilization = defaults.sample_utilization.unwrap_or(options.samples_utilization);
        options.limits = self.content.limits.limits();
        options.quota = self.content.limits.quota();
        options.grants = GrantOptions {
            confine: self.content.grants.confine.iter().map(|pattern| pattern.0.clone()).collect(),
            group: self.content.grants.group.map(|group| group.0),
        };
        options.rules = self.content.rules.iter().map(|rule| rule.get_ref().rule()).collect();
        options
    }
}

/// The default path of the configuration: that of the machine if this process runs as root.
pub(crate) fn default_file() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/etc/xsched/config.toml"));
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let directory = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    directory.or_else(home).map(|directory| directory.join("xsched/config.toml"))
}

impl LimitsSection {
    fn quota(&self) -> Quota {
        let default = Quota::default();
        let value = |set: Option<Amount>, default: usize| set.map_or(default, |amount| amount.0);
        Quota {
            connections: value(self.max_connections, default.connections),
            processes: value(self.max_processes, default.processes),
            queues: value(self.max_queues, default.queues),
            job_keys: value(self.max_job_keys, default.job_keys),
            unread_bytes: self.max_unread_kib.map_or(default.unread_bytes, |amount| amount.0 << 10),
        }
    }

    fn limits(&self) -> Limits {
        let limit = |priority: Option<PriorityValue>, share: Option<ShareValue>, otherwise: Limit| Limit {
            priority: priority.map_or(otherwise.priority, |priority| priority.0),
            share: share.map_or(otherwise.share, |share| share.0),
        };
        let default = limit(self.max_priority, self.max_share, Limit::default());
        let mut limits = Limits { default, ..Limits::default() };
        for entry in self.exceptions.iter().map(Spanned::get_ref) {
            let limit = limit(entry.max_priority, entry.max_share, default);
            limits.users.extend(entry.user.map(|user| (user.0, limit)));
            limits.groups.extend(entry.group.map(|group| (group.0, limit)));
        }
        limits
    }
}

impl RuleEntry {
    fn rule(&self) -> Rule {
        Rule {
            executable: self.executable.as_deref().map(Glob::new),
            cgroup: self.cgroup.as_deref().map(Glob::new),
            user: self.user.map(|user| user.0),
            priority: self.priority.map(|priority| priority.0),
            share: self.share.map(|share| share.0),
            memory: self.memory.map(|memory| memory.0),
        }
    }
}
