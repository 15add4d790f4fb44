//! The administrator's file: priorities of `PriorityClasses`, and limits on what pods can request.
//!
//! ```toml
//! [priority_classes]
//! production = "high"
//!
//! [limits]
//! max_priority = 100
//!
//! [namespaces.research]
//! max_priority = 0
//! max_share = 50
//! max_memory = "40Gi"
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use xsched_core::Priority;

use crate::quantity;

/// The largest value of a `PriorityClass` that users can create.
const MAX_CLASS_VALUE: f64 = 1e9;
/// The largest priority of XSched.
const MAX_PRIORITY: f64 = 255.0;

/// What pods can request at most. A limit that is none is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The highest priority. Without it, annotations cannot exceed the priority of the pod's `PriorityClass`.
    pub priority: Option<i64>,
    /// The largest share in percent, which is also the share of pods that request none.
    pub share: Option<i64>,
    /// The most device memory in bytes, which is also the limit of pods that request none.
    pub memory: Option<u64>,
}

/// The administrator's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    classes: BTreeMap<String, i64>,
    limits: Limits,
    namespaces: BTreeMap<String, Limits>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct SettingsFile {
    priority_classes: BTreeMap<String, NumberOrText>,
    limits: LimitsTable,
    namespaces: BTreeMap<String, LimitsTable>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "the keys of the file")]
struct LimitsTable {
    max_priority: Option<NumberOrText>,
    max_share: Option<i64>,
    max_memory: Option<NumberOrText>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(i64),
    Text(String),
}

impl NumberOrText {
    fn into_text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }

    fn into_priority(self, key: &str) -> Result<i64> {
        parse_priority(&self.into_text()).map_err(|why| anyhow::anyhow!("{key}: {why}"))
    }
}

/// Parses a priority: a number from -256 to 255, `low`, `normal` or `high`.
pub fn parse_priority(text: &str) -> Result<i64, String> {
    let priority: Priority = text.parse().map_err(|error| format!("{error}"))?;
    Ok(priority.get().into())
}

impl LimitsTable {
    fn checked(self, table: &str) -> Result<Limits> {
        let key = |name: &str| format!("{table}.{name}");
        let priority =
            self.max_priority.map(|value| value.into_priority(&key("max_priority"))).transpose()?;
        if let Some(share) = self.max_share.filter(|share| !(1..=100).contains(share)) {
            bail!("{}: {share} is not a percentage from 1 to 100", key("max_share"));
        }
        let memory = self.max_memory.map(|value| quantity::parse(&value.into_text())).transpose();
        let memory = memory.map_err(|why| anyhow::anyhow!("{}: {why}", key("max_memory")))?;
        if memory == Some(0) {
            bail!("{}: cannot be 0", key("max_memory"));
        }
        Ok(Limits { priority, share: self.max_share, memory })
    }
}

impl Settings {
    /// Parses the file's text.
    pub fn parse(text: &str) -> Result<Self> {
        let file: SettingsFile = toml::from_str(text)?;
        let classes = file.priority_classes.into_iter().map(|(name, value)| {
            let priority = value.into_priority(&format!("priority_classes.{name}"))?;
            Ok((name, priority))
        });
        let namespaces = file.namespaces.into_iter().map(|(name, table)| {
            let limits = table.checked(&format!("namespaces.{name}"))?;
            Ok((name, limits))
        });
        Ok(Self {
            classes: classes.collect::<Result<_>>()?,
            limits: file.limits.checked("limits")?,
            namespaces: namespaces.collect::<Result<_>>()?,
        })
    }

    /// The limits of pods in a namespace: those of the namespace, and of all namespaces where it has none.
    #[must_use]
    pub fn limits(&self, namespace: &str) -> Limits {
        let own = self.namespaces.get(namespace).copied().unwrap_or_default();
        Limits {
            priority: own.priority.or(self.limits.priority),
            share: own.share.or(self.limits.share),
            memory: own.memory.or(self.limits.memory),
        }
    }

    /// The priority of a pod by its `PriorityClass`.
    ///
    /// A class of the administrator's table has the priority there. Otherwise the class's value `v` becomes
    /// `255 * log10(1 + |v|) / 9` with the sign of `v`, at most 255: 0 is 0, 1000 is 85, 1000000 is 170, 1000000000 is 255.
    /// Clusters use values of very different magnitude, so a linear scale would make most of them equal.
    #[must_use]
    pub fn class_priority(&self, class: &str, value: i64) -> i64 {
        if let Some(priority) = self.classes.get(class) {
            return *priority;
        }
        let magnitude = (value.unsigned_abs() as f64).min(MAX_CLASS_VALUE);
        let scaled = (MAX_PRIORITY * magnitude.ln_1p() / MAX_CLASS_VALUE.ln_1p()).round();
        #[allow(clippy::cast_possible_truncation, reason = "from 0 to 255")]
        let priority = scaled as i64;
        priority * value.signum()
    }
}

/// The settings in a file, which may change while the agent runs.
#[derive(Debug, Default)]
pub struct SettingsFileWatch {
    path: Option<PathBuf>,
    text: String,
    settings: Settings,
}

impl SettingsFileWatch {
    /// Reads the file; without one, the built-in defaults apply.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the settings {}", path.display()))?;
        let settings = Settings::parse(&text).with_context(|| format!("in {}", path.display()))?;
        Ok(Self { path: Some(path.to_owned()), text, settings })
    }

    /// The present settings. An invalid or missing file leaves the previous ones in force.
    pub fn settings(&mut self) -> &Settings {
        if let Some(path) = &self.path
            && let Ok(text) = std::fs::read_to_string(path)
            && text != self.text
        {
            match Settings::parse(&text) {
                Ok(settings) => {
                    crate::log(&format!("the settings in {} have changed", path.display()));
                    self.settings = settings;
                }
                Err(error) => {
                    crate::log(&format!(
                        "{}: {error:#}; the previous settings stay in force",
                        path.display()
                    ));
                }
            }
            self.text = text;
        }
        &self.settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_values_of_all_magnitudes_keep_their_order() {
        let settings = Settings::default();
        let priority = |value| settings.class_priority("any", value);
        assert_eq!([0, 1_000, 1_000_000, 1_000_000_000, 2_000_001_000].map(priority), [0, 85, 170, 255, 255]);
        assert_eq!([-1, -1_000, i64::MIN].map(priority), [-9, -85, -255]);
        let values: Vec<i64> = (0..31).map(|bits| 1_i64 << bits).collect();
        assert!(values.windows(2).all(|pair| priority(pair[0]) <= priority(pair[1])));
    }

    #[test]
    fn namespace_limits_override_the_general_ones() {
        let settings = Settings::parse(
            "[priority_classes]\nproduction = \"high\"\n\
             [limits]\nmax_priority = 100\nmax_share = 80\n\
             [namespaces.research]\nmax_priority = \"low\"\nmax_memory = \"40Gi\"\n",
        )
        .unwrap();
        assert_eq!(settings.class_priority("production", 7), 100);
        assert_eq!(
            settings.limits("research"),
            Limits { priority: Some(-100), share: Some(80), memory: Some(40 << 30) }
        );
        assert_eq!(settings.limits("x"), Limits { priority: Some(100), share: Some(80), memory: None });
    }

    #[test]
    fn invalid_settings_are_rejected_with_the_key() {
        for (text, message) in [
            ("[limits]\nmax_priority = 300", "limits.max_priority"),
            ("[limits]\nmax_share = 0", "limits.max_share"),
            ("[namespaces.a]\nmax_memory = \"much\"", "namespaces.a.max_memory"),
            ("[priority_classes]\na = \"higher\"", "priority_classes.a"),
            ("[limit]\nmax_share = 1", "limit"),
        ] {
            let error = format!("{:#}", Settings::parse(text).unwrap_err());
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn changed_file_applies_and_an_invalid_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("settings.toml");
        std::fs::write(&file, "[limits]\nmax_share = 10").unwrap();
        let mut watch = SettingsFileWatch::open(Some(&file)).unwrap();
        let mut share = |text: &str| {
            std::fs::write(&file, text).unwrap();
            watch.settings().limits("a").share
        };
        assert_eq!(share("[limits]\nmax_share = 20"), Some(20));
        assert_eq!(share("[limits]\nmax_share = 200"), Some(20));
        assert_eq!(share(""), None);
    }
}
