//! The configuration file: what it may say, and what is wrong with it if something is.
//!
//! Every value is checked where it is read, so that a mistake is reported with its place.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use toml::Spanned;
use xsched_core::{Priority, Share, Timeslice};
use xsched_ipc::service::{Glob, Limit, Limits, Options, Rule};
use xsched_policy::{Params, PolicyInfo};

/// What a service is configured with.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// Where it was read from, if there was a file.
    pub(crate) file: Option<PathBuf>,
    pub(crate) content: Content,
}

/// The file.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Content {
    pub(crate) defaults: Defaults,
    pub(crate) limits: LimitsSection,
    rules: Vec<Spanned<RuleEntry>>,
}

/// What a service begins with.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Defaults {
    policy: Option<PolicyName>,
    timeslice_us: Option<TimesliceValue>,
    k: Option<AtOnce>,
}

/// What users may wish for.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsSection {
    max_priority: Option<PriorityValue>,
    max_share: Option<ShareValue>,
    #[serde(rename = "for")]
    exceptions: Vec<Spanned<LimitEntry>>,
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
    priority: Option<PriorityValue>,
    share: Option<ShareValue>,
}

/// A value that is checked while it is read.
trait Checked: Sized {
    /// What may stand there.
    const ALLOWED: &str;
    fn of_number(n: i64) -> Result<Self, String> {
        Err(format!("{n} is not allowed here: allowed is {}", Self::ALLOWED))
    }
    fn of_text(text: &str) -> Result<Self, String> {
        Err(format!("\"{text}\" is not allowed here: allowed is {}", Self::ALLOWED))
    }
}

struct Check<T>(std::marker::PhantomData<T>);

impl<T: Checked> Visitor<'_> for Check<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::ALLOWED)
    }
    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        T::of_number(n).map_err(E::custom)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::of_text(text).map_err(E::custom)
    }
}

macro_rules! checked {
    ($name:ident($inner:ty), $allowed:literal, $number:expr, $text:expr) => {
        #[derive(Clone, Copy, Debug)]
        struct $name($inner);

        impl Checked for $name {
            const ALLOWED: &str = $allowed;
            fn of_number(n: i64) -> Result<Self, String> {
                let read: fn(i64) -> Result<$inner, String> = $number;
                read(n).map(Self)
            }
            fn of_text(text: &str) -> Result<Self, String> {
                let read: fn(&str) -> Result<$inner, String> = $text;
                read(text).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Check(std::marker::PhantomData))
            }
        }
    };
}

fn no_text<T>(allowed: &str, text: &str) -> Result<T, String> {
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
    |text| no_text("0 to 100 (percent)", text)
);
checked!(
    TimesliceValue(Timeslice),
    "100 to 10000000 (microseconds)",
    |n| Timeslice::from_micros(n).map_err(|error| error.to_string()),
    |text| no_text("100 to 10000000 (microseconds)", text)
);
checked!(
    AtOnce(usize),
    "1 and more",
    |n| usize::try_from(n)
        .ok()
        .filter(|n| *n > 0)
        .ok_or(format!("{n} is out of range: allowed is 1 and more")),
    |text| no_text("1 and more", text)
);
checked!(
    PolicyName(&'static PolicyInfo),
    "the name of a policy",
    |n| Err(format!("{n} is no policy: use a name such as \"priority\"")),
    |text| PolicyInfo::find(text).map_err(|error| error.to_string())
);
checked!(
    User(u32),
    "a user's name or number",
    |n| u32::try_from(n).map_err(|_| format!("{n} is no user's number")),
    |text| number_of("/etc/passwd", text).ok_or(format!(
        "there is no user \"{text}\" on this machine: use a name from /etc/passwd, or a number"
    ))
);
checked!(
    Group(u32),
    "a group's name or number",
    |n| u32::try_from(n).map_err(|_| format!("{n} is no group's number")),
    |text| number_of("/etc/group", text).ok_or(format!(
        "there is no group \"{text}\" on this machine: use a name from /etc/group, or a number"
    ))
);

/// The number that goes with a name; both lists have it in the third column.
fn number_of(list: &str, name: &str) -> Option<u32> {
    let list = std::fs::read_to_string(list).ok()?;
    let line = list.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

impl Config {
    /// Reads `file`, else the usual one if it exists.
    pub(crate) fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let file = match file {
            Some(file) => file.to_owned(),
            None => match usual_file().filter(|file| file.exists()) {
                Some(file) => file,
                None => return Ok(Self::default()),
            },
        };
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let content = parse(&text).map_err(|mistake| anyhow::anyhow!("{}:{mistake}", file.display()))?;
        Ok(Self { file: Some(file), content })
    }

    /// What a service at `socket` begins with.
    pub(crate) fn options(&self, socket: PathBuf) -> Options {
        let mut options = Options::at(socket);
        let defaults = &self.content.defaults;
        options.policy = defaults.policy.map_or(options.policy, |policy| policy.0);
        options.params = Params {
            timeslice: defaults.timeslice_us.map_or(Timeslice::DEFAULT, |timeslice| timeslice.0),
            k: defaults.k.map_or(1, |k| k.0),
        };
        options.limits = self.content.limits.limits();
        options.rules = self.content.rules.iter().map(|rule| rule.get_ref().rule()).collect();
        options
    }
}

/// Where the configuration usually is: for the whole machine if this is root.
pub(crate) fn usual_file() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/etc/xsched/config.toml"));
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let directory = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    directory.or_else(home).map(|directory| directory.join("xsched/config.toml"))
}

impl LimitsSection {
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
            priority: self.priority.map(|priority| priority.0),
            share: self.share.map(|share| share.0),
        }
    }
}

/// What is wrong, and where: `LINE:COLUMN: field: what`.
#[derive(Debug)]
struct Mistake(String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn mistake(text: &str, at: usize, what: &str) -> Mistake {
    let before = &text[..at.min(text.len())];
    let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before[begin..].chars().count() + 1;
    let whole = text[begin..].lines().next().unwrap_or_default();
    let field = match whole.split_once('=') {
        Some((key, _)) => format!("{}: ", key.trim()),
        None => String::new(),
    };
    Mistake(format!("{line}:{column}: {field}{what}"))
}

fn parse(text: &str) -> Result<Content, Mistake> {
    let content: Content = toml::from_str(text)
        .map_err(|error| mistake(text, error.span().map_or(0, |span| span.start), error.message()))?;
    for entry in &content.limits.exceptions {
        let limit = entry.get_ref();
        if limit.user.is_some() == limit.group.is_some() {
            return Err(mistake(text, entry.span().start, "name either `user` or `group`"));
        }
        if limit.max_priority.is_none() && limit.max_share.is_none() {
            return Err(mistake(text, entry.span().start, "give `max_priority`, `max_share`, or both"));
        }
    }
    for entry in &content.rules {
        let rule = entry.get_ref();
        if rule.executable.is_none() && rule.cgroup.is_none() {
            return Err(mistake(text, entry.span().start, "name an `executable`, a `cgroup`, or both"));
        }
        if rule.priority.is_none() && rule.share.is_none() {
            return Err(mistake(text, entry.span().start, "give a `priority`, a `share`, or both"));
        }
    }
    Ok(content)
}
