//! The format of a simulation file, and the line and field that an error is about.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use toml::Spanned;
use xsched_core::{Deadline, Laxity, Level, Priority, Share, Timeslice};

use crate::values::{self, Time};

/// Why a simulation file was rejected: where, and what is allowed instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SpecError {
    /// The line, counted from 1; absent if the error is in no single place.
    pub line: Option<usize>,
    /// The field, if the error is in one.
    pub field: Option<String>,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if let Some(field) = &self.field {
            write!(f, "`{field}`: ")?;
        }
        f.write_str(&self.message)
    }
}

impl SpecError {
    /// An error in no single place of the file.
    pub(crate) fn anywhere(message: impl Into<String>) -> Self {
        Self { line: None, field: None, message: message.into() }
    }

    /// An error at `span` of `text`.
    pub(crate) fn at(text: &str, span: &Range<usize>, message: impl Into<String>) -> Self {
        let message = message.into();
        let (before, after) = text.split_at_checked(span.start).unwrap_or((text, ""));
        let line = before.matches('\n').count() + 1;
        // An error about the key itself names it already.
        let field = field_at(before, after).filter(|field| !message.contains(&format!("`{field}`")));
        Self { line: Some(line), field, message }
    }
}

/// The key of the `key = value` at the boundary between `before` and `after`, if there is one.
fn field_at(before: &str, after: &str) -> Option<String> {
    let no_key = |c: char| !c.is_alphanumeric() && !"_-.".contains(c);
    let key_before = |text: &str| text.rsplit(no_key).next().unwrap_or_default().to_owned();
    let key = if let Some(key) = before.trim_end().strip_suffix('=') {
        key_before(key.trim_end())
    } else {
        let (rest, tail) = after.split_at(after.find(no_key).unwrap_or(after.len()));
        tail.trim_start().strip_prefix('=')?;
        key_before(before) + rest
    };
    (!key.is_empty()).then_some(key)
}

/// Reads the text of a simulation file.
pub(crate) fn read(text: &str) -> Result<File, SpecError> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().replace('\n', ", ");
        match error.span() {
            Some(span) => SpecError::at(text, &span, message),
            None => SpecError::anywhere(message),
        }
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(deserialize_with = "values::at_least_1ms")]
    pub(crate) duration: u64,
    #[serde(default)]
    pub(crate) warmup: Option<Spanned<Time>>,
    #[serde(default)]
    pub(crate) seed: u64,
    #[serde(default)]
    pub(crate) policy: PolicyTable,
    #[serde(default)]
    pub(crate) device: Vec<DeviceTable>,
    #[serde(default)]
    pub(crate) task: Vec<TaskTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PolicyTable {
    #[serde(deserialize_with = "values::timeslice")]
    pub(crate) timeslice: Timeslice,
    #[serde(deserialize_with = "values::count::<1_000_000, _>")]
    pub(crate) k: u32,
}

impl Default for PolicyTable {
    fn default() -> Self {
        Self { timeslice: Timeslice::DEFAULT, k: 1 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceTable {
    #[serde(deserialize_with = "spanned_name")]
    pub(crate) name: Spanned<String>,
    #[serde(default = "one", deserialize_with = "values::count::<100_000, _>")]
    pub(crate) count: u32,
    #[serde(default, deserialize_with = "values::optional_name")]
    pub(crate) machine: Option<String>,
    #[serde(default = "all", deserialize_with = "values::count::<100_000, _>")]
    pub(crate) devices_per_machine: u32,
    #[serde(deserialize_with = "values::level")]
    pub(crate) level: Level,
    #[serde(default)]
    pub(crate) preempt: Time,
    #[serde(default)]
    pub(crate) restore: Time,
    #[serde(default)]
    pub(crate) switch: Time,
    #[serde(default = "native_slice", deserialize_with = "values::at_least_1us")]
    pub(crate) native_slice: u64,
    #[serde(default = "window")]
    pub(crate) window: Time,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskTable {
    #[serde(deserialize_with = "spanned_name")]
    pub(crate) name: Spanned<String>,
    #[serde(default = "one", deserialize_with = "values::count::<1_000_000, _>")]
    pub(crate) count: u32,
    #[serde(default)]
    pub(crate) device: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "values::optional_name")]
    pub(crate) process: Option<String>,
    pub(crate) arrival: Spanned<Arrival>,
    #[serde(default = "one", deserialize_with = "values::count::<1_000_000, _>")]
    pub(crate) commands: u32,
    pub(crate) command: Spanned<CommandTable>,
    #[serde(default, deserialize_with = "values::priority")]
    pub(crate) priority: Priority,
    #[serde(default, alias = "utilization", deserialize_with = "values::share")]
    pub(crate) share: Share,
    #[serde(default, deserialize_with = "values::deadline")]
    pub(crate) deadline: Option<Deadline>,
    #[serde(default)]
    pub(crate) laxity: Option<LaxityTable>,
    #[serde(default, deserialize_with = "values::nice")]
    pub(crate) nice: i8,
    #[serde(default)]
    pub(crate) focused: bool,
}

/// When a task's jobs arrive. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Arrival {
    /// At equal intervals, the first after `phase`, each late by up to `jitter`.
    Periodic {
        #[serde(deserialize_with = "values::at_least_1us")]
        every: u64,
        #[serde(default)]
        phase: Time,
        #[serde(default)]
        jitter: Time,
    },
    /// Independently of each other, `mean` apart on average.
    Poisson {
        #[serde(deserialize_with = "values::at_least_1us")]
        mean: u64,
    },
    /// One at a time: the next arrives `think` after the last was finished.
    Closed {
        #[serde(default)]
        think: Time,
    },
}

#[derive(Debug)]
pub(crate) enum CommandTable {
    Constant(u64),
    Drawn(Drawn),
}

/// How the lengths of commands are distributed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Drawn {
    Uniform {
        #[serde(deserialize_with = "values::at_least_1us")]
        min: u64,
        #[serde(deserialize_with = "values::at_least_1us")]
        max: u64,
    },
    Exponential {
        #[serde(deserialize_with = "values::at_least_1us")]
        mean: u64,
    },
    Lognormal {
        #[serde(deserialize_with = "values::at_least_1us")]
        median: u64,
        #[serde(deserialize_with = "values::sigma")]
        sigma: f64,
    },
    List(Vec<ListedLength>),
}

/// One length of a list.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct ListedLength(#[serde(deserialize_with = "values::at_least_1us")] pub(crate) u64);

impl<'de> Deserialize<'de> for CommandTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeOrTable;
        impl<'de> Visitor<'de> for TimeOrTable {
            type Value = CommandTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a time such as \"2ms\", or a table with uniform, exponential, lognormal or list in it",
                )
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<CommandTable, E> {
                let text = de::value::StrDeserializer::new(s);
                values::at_least_1us(text).map(CommandTable::Constant)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CommandTable, A::Error> {
                Drawn::deserialize(MapAccessDeserializer::new(map)).map(CommandTable::Drawn)
            }
        }
        deserializer.deserialize_any(TimeOrTable)
    }
}

#[derive(Debug)]
pub(crate) struct LaxityTable(pub(crate) Laxity);

impl<'de> Deserialize<'de> for LaxityTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            #[serde(deserialize_with = "values::micros")]
            span: i64,
            #[serde(deserialize_with = "values::priority")]
            lax: Priority,
            #[serde(deserialize_with = "values::priority")]
            critical: Priority,
        }
        let fields = Fields::deserialize(deserializer)?;
        Laxity::new(fields.span, fields.lax.get().into(), fields.critical.get().into())
            .map(Self)
            .map_err(de::Error::custom)
    }
}

fn spanned_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spanned<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Name(#[serde(deserialize_with = "values::name")] String);
    let name = Spanned::<Name>::deserialize(deserializer)?;
    let span = name.span();
    Ok(Spanned::new(span, name.into_inner().0))
}

fn one() -> u32 {
    1
}

/// More devices than a group can have: all of them belong to one machine.
fn all() -> u32 {
    u32::MAX
}

/// The default time slice of a compute context with NVIDIA's driver.
fn native_slice() -> u64 {
    2_000_000
}

fn window() -> Time {
    Time(1_000_000)
}
