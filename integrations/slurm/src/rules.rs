//! What jobs may have: defaults and limits of the site, of partitions and of QOS.
//!
//! ```text
//!   max_priority=0                                  the site: every job
//!   partition:debug=max_priority:50,share:40        replaces single values of the site
//!   qos:high=max_priority:200                       replaces single values of the partition
//! ```

use std::collections::BTreeMap;

use xsched_core::{Priority, Share};

use crate::sizes::{display_size, parse_size};

/// What the user requested with the options of `srun`, `sbatch` and `salloc`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) priority: Option<i64>,
    pub(crate) share: Option<i64>,
    pub(crate) memory: Option<u64>,
}

/// What a job gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) priority: i64,
    pub(crate) share: Option<i64>,
    pub(crate) memory: Option<u64>,
}

/// Defaults and limits. What is none is decided by the more general rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    priority: Option<i64>,
    max_priority: Option<i64>,
    share: Option<i64>,
    max_share: Option<i64>,
    memory: Option<u64>,
    max_memory: Option<u64>,
}

pub(crate) fn parse_priority(text: &str) -> Result<i64, String> {
    text.parse::<Priority>().map(|priority| priority.get().into()).map_err(|error| error.to_string())
}

/// 1 to 100 percent. A task with a share of 0 would never run.
pub(crate) fn parse_share(text: &str) -> Result<i64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    match percent.and_then(|percent| Share::new(percent).ok()) {
        Some(share) if share.percent() > 0 => Ok(share.percent().into()),
        _ => Err(format!("share `{text}` is not a number of percent, 1 to 100")),
    }
}

impl Rule {
    /// Sets one value. Fails with the reason; none if there is no such key.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        fn put<T>(place: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
            value.map(|value| *place = Some(value))
        }
        Some(match key {
            "priority" => put(&mut self.priority, parse_priority(value)),
            "max_priority" => put(&mut self.max_priority, parse_priority(value)),
            "share" => put(&mut self.share, parse_share(value)),
            "max_share" => put(&mut self.max_share, parse_share(value)),
            "memory" => put(&mut self.memory, parse_size(value)),
            "max_memory" => put(&mut self.max_memory, parse_size(value)),
            _ => return None,
        })
    }

    /// The rule of a partition or QOS: `max_priority:50,share:40`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut rule = Self::default();
        for entry in text.split(',') {
            let (key, value) = entry.split_once(':').ok_or_else(|| format!("`{entry}` is not KEY:VALUE"))?;
            rule.set(key, value).ok_or_else(|| {
                format!("unknown key `{key}`: allowed are priority, max_priority, share, max_share, memory and max_memory")
            })??;
        }
        Ok(rule)
    }

    fn or(&self, general: &Self) -> Self {
        Self {
            priority: self.priority.or(general.priority),
            max_priority: self.max_priority.or(general.max_priority),
            share: self.share.or(general.share),
            max_share: self.max_share.or(general.max_share),
            memory: self.memory.or(general.memory),
            max_memory: self.max_memory.or(general.max_memory),
        }
    }

    /// What a job that requests this gets, and a line for each request beyond a limit.
    pub(crate) fn apply(&self, request: &Request) -> (Rights, Vec<String>) {
        let mut excess = Vec::new();
        // As the service itself: users cannot raise their priority unless the administrator permits it.
        let max_priority = self.max_priority.unwrap_or_else(|| self.priority.unwrap_or(0).max(0));
        let default = self.priority.unwrap_or(0).min(max_priority);
        let priority = request.priority.unwrap_or(default);
        if priority > max_priority {
            excess.push(format!("priority {priority} is above the limit {max_priority}"));
        }
        let share = request.share.or(self.share);
        if let (Some(share), Some(max)) = (request.share, self.max_share)
            && share > max
        {
            excess.push(format!("share {share} is above the limit {max}"));
        }
        let memory = request.memory.or(self.memory);
        if let (Some(memory), Some(max)) = (request.memory, self.max_memory)
            && memory > max
        {
            excess.push(format!("memory {} is above the limit {}", display_size(memory), display_size(max)));
        }
        let rights = Rights {
            priority: priority.min(max_priority),
            // A limit without a default: the limit is the default.
            share: smaller(share, self.max_share),
            memory: smaller(memory, self.max_memory),
        };
        (rights, excess)
    }

    /// Limits the rule further, to what the job's shards stand for.
    #[must_use]
    pub(crate) fn within_shards(mut self, share: Option<i64>, memory: Option<u64>) -> Self {
        self.max_share = smaller(self.max_share, share);
        self.max_memory = smaller(self.max_memory, memory);
        self
    }
}

/// The smaller of the values that exist.
fn smaller<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Where a job runs. None: not known here. An empty QOS: the job has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) partition: Option<String>,
    pub(crate) qos: Option<String>,
}

impl Place {
    /// For messages: ` in partition debug`.
    pub(crate) fn describe(&self) -> String {
        let part = |what: &str, name: &Option<String>| {
            let name = name.as_deref().filter(|name| !name.is_empty())?;
            Some(format!(" {what} {name}"))
        };
        [part("in partition", &self.partition), part("with QOS", &self.qos)].into_iter().flatten().collect()
    }
}

/// The rules of the site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) site: Rule,
    pub(crate) partitions: BTreeMap<String, Rule>,
    pub(crate) qos: BTreeMap<String, Rule>,
}

impl Rules {
    /// Every rule that may apply at this place: one if partition and QOS are known.
    pub(crate) fn candidates(&self, place: &Place) -> Vec<Rule> {
        let none = Rule::default();
        let possible = |rules: &BTreeMap<String, Rule>, name: &Option<String>| -> Vec<Rule> {
            match name {
                Some(name) => vec![rules.get(name).unwrap_or(&none).clone()],
                None => rules.values().chain([&none]).cloned().collect(),
            }
        };
        let partitions = possible(&self.partitions, &place.partition);
        let qos = possible(&self.qos, &place.qos);
        qos.iter()
            .flat_map(|qos| partitions.iter().map(|partition| qos.or(partition).or(&self.site)))
            .collect()
    }

    /// What the job gets where it is known to run. If its partition or QOS is not known, the least of what any of them gives.
    pub(crate) fn apply(
        &self,
        place: &Place,
        request: &Request,
        narrow: impl Fn(Rule) -> Rule,
    ) -> (Rights, Vec<String>) {
        let key = |rights: &Rights| {
            (rights.priority, rights.share.unwrap_or(i64::MAX), rights.memory.unwrap_or(u64::MAX))
        };
        let outcomes: Vec<_> =
            self.candidates(place).into_iter().map(|rule| narrow(rule).apply(request)).collect();
        let Some((mut least, excess)) = outcomes.iter().min_by_key(|(rights, _)| key(rights)).cloned() else {
            return (Rights::default(), Vec::new());
        };
        for (rights, _) in &outcomes {
            least.share = smaller(least.share, rights.share);
            least.memory = smaller(least.memory, rights.memory);
        }
        (least, excess)
    }

    /// Why no rule that may apply permits the request; none if one of them may.
    pub(crate) fn refusal(&self, place: &Place, request: &Request) -> Option<String> {
        let mut excess: Vec<_> =
            self.candidates(place).iter().map(|rule| rule.apply(request)).collect::<Vec<_>>();
        // The most that any rule gives comes last.
        excess.sort_by_key(|(rights, _)| rights.priority);
        if excess.iter().any(|(_, excess)| excess.is_empty()) {
            return None;
        }
        excess.pop().map(|(_, excess)| format!("{}{}", excess.join(", "), place.describe()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let named = |name: &str, text: &str| BTreeMap::from([(name.to_owned(), Rule::parse(text).unwrap())]);
        Rules {
            site: Rule::parse("max_priority:10").unwrap(),
            partitions: named("debug", "max_priority:50,priority:20,share:40,max_memory:1G"),
            qos: named("high", "max_priority:200"),
        }
    }

    fn at(partition: Option<&str>, qos: Option<&str>) -> Place {
        Place { partition: partition.map(str::to_owned), qos: qos.map(str::to_owned) }
    }

    fn with_priority(priority: i64) -> Request {
        Request { priority: Some(priority), ..Request::default() }
    }

    #[test]
    fn more_special_rules_replace_single_values() {
        let rights = |place, request| rules().apply(&place, &request, |rule| rule).0;
        let debug = at(Some("debug"), Some(""));
        let expected = Rights { priority: 20, share: Some(40), memory: Some(1 << 30) };
        assert_eq!(rights(debug.clone(), Request::default()), expected);
        assert_eq!(rights(debug, with_priority(300)).priority, 50);
        let high = at(Some("debug"), Some("high"));
        assert_eq!(rights(high, with_priority(199)), Rights { priority: 199, ..expected });
        assert_eq!(rights(at(Some("other"), Some("")), with_priority(100)).priority, 10);
        assert_eq!(rights(at(Some("other"), Some("")), with_priority(-5)).priority, -5);
    }

    #[test]
    fn without_rules_priorities_cannot_be_raised() {
        let (rights, excess) =
            Rules::default().apply(&at(Some("a"), Some("")), &with_priority(1), |rule| rule);
        assert_eq!((rights.priority, excess), (0, vec!["priority 1 is above the limit 0".to_owned()]));
        let (rights, excess) = Rules::default().apply(&Place::default(), &with_priority(-7), |rule| rule);
        assert_eq!((rights.priority, excess), (-7, Vec::new()));
    }

    #[test]
    fn job_of_an_unknown_partition_gets_the_least() {
        let (rights, excess) = rules().apply(&Place::default(), &with_priority(60), |rule| rule);
        assert_eq!(rights, Rights { priority: 10, share: Some(40), memory: Some(1 << 30) });
        assert_eq!(excess, ["priority 60 is above the limit 10"]);
    }

    #[test]
    fn submission_is_refused_only_if_no_rule_may_permit_it() {
        let refusal = |place, priority| rules().refusal(&place, &with_priority(priority));
        assert_eq!(refusal(Place::default(), 200), None);
        assert_eq!(refusal(Place::default(), 201).unwrap(), "priority 201 is above the limit 200");
        assert_eq!(
            refusal(at(Some("debug"), Some("")), 60).unwrap(),
            "priority 60 is above the limit 50 in partition debug"
        );
        assert_eq!(refusal(at(Some("debug"), None), 60), None);
    }

    #[test]
    fn shards_limit_share_and_memory() {
        let request = Request { share: Some(80), ..Request::default() };
        let narrow = |rule: Rule| rule.within_shards(Some(50), Some(20));
        let (rights, excess) = rules().apply(&at(Some("other"), Some("")), &request, narrow);
        assert_eq!((rights.share, rights.memory), (Some(50), Some(20)));
        assert_eq!(excess, ["share 80 is above the limit 50"]);
    }

    #[test]
    fn invalid_rules_are_rejected_with_the_reason() {
        for (text, message) in [
            ("priority", "KEY:VALUE"),
            ("priority:300", "priority 300 is out of range"),
            ("share:0", "share `0`"),
            ("max_memory:10", "size"),
            ("color:red", "unknown key `color`"),
        ] {
            let error = Rule::parse(text).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
