//! The arguments of the plugin in `plugstack.conf`.

use std::path::PathBuf;

use crate::rules::{Rule, Rules, parse_share};
use crate::sizes::parse_size;

/// Where `make install` and the Debian package put the library.
const LIBRARIES: [&str; 3] =
    ["/usr/local/lib/libxsched.so", "/usr/lib/libxsched.so", "/usr/local/lib64/libxsched.so"];

/// What happens to a request beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// The step gets the limit.
    Clamp,
    /// The step fails.
    Refuse,
}

/// What the administrator configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Where the service listens.
    pub(crate) socket: PathBuf,
    /// Jobs get the library in `LD_PRELOAD`.
    pub(crate) preloads: bool,
    /// The library; none: where it is usually installed.
    library: Option<PathBuf>,
    /// A step fails if it cannot be scheduled.
    pub(crate) requires_service: bool,
    /// What a step gets that requests more than it may have.
    pub(crate) excess: Excess,
    /// The tasks of a step on this node are held and resumed together.
    pub(crate) joins_tasks: bool,
    /// The directory of the records of jobs.
    pub(crate) state: PathBuf,
    /// What one shard of a GPU stands for.
    pub(crate) shard_share: Option<i64>,
    pub(crate) shard_memory: Option<u64>,
    /// Defaults and limits.
    pub(crate) rules: Rules,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/xsched/socket"),
            preloads: true,
            library: None,
            requires_service: false,
            excess: Excess::Clamp,
            joins_tasks: true,
            state: PathBuf::from("/run/xsched-slurm"),
            shard_share: None,
            shard_memory: None,
            rules: Rules::default(),
        }
    }
}

impl Config {
    /// Parses the arguments. Fails with one line that names the argument.
    pub(crate) fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut config = Self::default();
        for argument in arguments {
            config.set(argument).map_err(|why| format!("plugstack.conf: argument `{argument}`: {why}"))?;
        }
        Ok(config)
    }

    fn set(&mut self, argument: &str) -> Result<(), String> {
        let (key, value) = argument.split_once('=').ok_or("write KEY=VALUE")?;
        if let Some(name) = key.strip_prefix("partition:") {
            self.rules.partitions.insert(name.to_owned(), Rule::parse(value)?);
            return Ok(());
        }
        if let Some(name) = key.strip_prefix("qos:") {
            self.rules.qos.insert(name.to_owned(), Rule::parse(value)?);
            return Ok(());
        }
        match key {
            "socket" => self.socket = absolute(value)?,
            "state" => self.state = absolute(value)?,
            "preload" => self.preloads = yes_or_no(value)?,
            "library" => self.library = Some(preloadable(value)?),
            "join_tasks" => self.joins_tasks = yes_or_no(value)?,
            "require" => self.requires_service = yes_or_no(value)?,
            "excess" => {
                self.excess = match value {
                    "clamp" => Excess::Clamp,
                    "refuse" => Excess::Refuse,
                    _ => return Err("use clamp or refuse".to_owned()),
                }
            }
            "shard_share" => self.shard_share = Some(parse_share(value)?),
            "shard_memory" => self.shard_memory = Some(parse_size(value)?),
            _ => {
                return self.rules.site.set(key, value).unwrap_or_else(|| {
                    Err("it is unknown; integrations/slurm/README.md lists the arguments".to_owned())
                });
            }
        }
        Ok(())
    }

    /// The library that jobs preload. Fails with a message if it does not exist: the loader would complain in every process.
    pub(crate) fn library(&self) -> Result<PathBuf, String> {
        let usual = || LIBRARIES.iter().map(PathBuf::from).collect();
        let candidates = self.library.clone().map_or_else(usual, |library| vec![library]);
        let found = candidates.iter().find(|path| path.is_file());
        found.cloned().ok_or_else(|| {
            let searched: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
            format!("no libxsched.so at {}: set library=PATH in plugstack.conf", searched.join(", "))
        })
    }

    /// What this number of shards permits: share and memory.
    pub(crate) fn shards(&self, count: u64) -> (Option<i64>, Option<u64>) {
        let share = |one: i64| i64::try_from(count).map_or(100, |count| one.saturating_mul(count).min(100));
        (self.shard_share.map(share), self.shard_memory.map(|one| one.saturating_mul(count)))
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("use yes or no".to_owned()),
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    if text.starts_with('/') { Ok(text.into()) } else { Err("write an absolute path".to_owned()) }
}

/// The loader splits `LD_PRELOAD` at spaces and colons.
fn preloadable(text: &str) -> Result<PathBuf, String> {
    if text.contains([' ', ':']) {
        return Err("a path with a space or a colon cannot be preloaded".to_owned());
    }
    absolute(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Place, Request};

    #[test]
    fn documented_line_is_accepted() {
        let line = "socket=/run/xsched/socket preload=yes partition:debug=max_priority:50,priority:0,share:40 \
                    qos:high=max_priority:200 shard_memory=10G shard_share=25 max_priority=100 require=no excess=refuse";
        let config = Config::parse(line.split(' ')).unwrap();
        assert!(config.preloads && config.excess == Excess::Refuse && !config.requires_service);
        assert_eq!(config.shards(2), (Some(50), Some(20 << 30)));
        assert_eq!(config.shards(9).0, Some(100));
        let place = Place { partition: Some("debug".to_owned()), qos: Some(String::new()) };
        let (rights, _) = config.rules.apply(&place, &Request::default(), |rule| rule);
        assert_eq!((rights.priority, rights.share), (0, Some(40)));
        assert_eq!(Config::parse([]).unwrap(), Config::default());
    }

    #[test]
    fn each_invalid_argument_is_named() {
        for (argument, why) in [
            ("preload", "write KEY=VALUE"),
            ("preload=maybe", "use yes or no"),
            ("socket=here", "absolute path"),
            ("library=/a b", "cannot be preloaded"),
            ("partition:debug=max_prio:3", "unknown key `max_prio`"),
            ("max_priority=1000", "priority 1000 is out of range"),
            ("color=red", "it is unknown"),
        ] {
            let error = Config::parse([argument]).unwrap_err();
            assert!(error.starts_with(&format!("plugstack.conf: argument `{argument}`: ")), "{error}");
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn missing_library_is_named() {
        let config = Config::parse(["library=/nowhere/libxsched.so"]).unwrap();
        assert!(config.library().unwrap_err().contains("/nowhere/libxsched.so"));
    }
}
