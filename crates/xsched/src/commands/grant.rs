//! `xsched grant`: gives rights to the processes of a job.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use xsched_core::{Priority, Share, parse_size};
use xsched_ipc::protocol::{Grant, Request};

use crate::tool::ToolConnection;
use crate::users;

/// Give rights to the processes of a job, in place of the previous grant of the same name.
///
/// A process has the grant if it is in its control group or one below, or has its token in the environment variable
/// XSCHED_GRANT. It has the priority and the share of the grant unless it requests less, can request no more, and is no
/// administrator, even as root. The grant applies at once, also to processes that are scheduled already. It ends when it is
/// revoked, or when its control group or the process of --until-exit has gone. Only administrators give grants.
#[derive(clap::Args)]
#[allow(clippy::doc_markdown, reason = "clap prints this text verbatim")]
pub(crate) struct Args {
    /// The name of the grant, such as slurm-123.
    name: String,

    /// The control group: its path as in /proc/PID/cgroup, or its directory below /sys/fs/cgroup.
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    cgroup: Option<String>,

    /// The control group of this process.
    #[arg(long)]
    pid: Option<u32>,

    /// A file with the token, at least 32 characters; - reads it from the standard input.
    #[arg(long, value_name = "FILE")]
    token: Option<String>,

    /// Only processes of this user, by name or user ID.
    #[arg(short, long, value_parser = users::parse_user)]
    user: Option<u32>,

    /// Their priority, and the highest that they can request: -256 to 255, low (-100), normal (0) or high (100).
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = str::parse::<Priority>)]
    priority: Option<Priority>,

    /// The share of each of them, and the highest that they can request: 1 to 100 percent.
    #[arg(short, long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = share)]
    share: Option<Share>,

    /// The device memory that all of them together may allocate on each device, such as 20G or 512M.
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_size)]
    memory: Option<u64>,

    /// They are one job: held and resumed together on all devices.
    #[arg(long)]
    job: bool,

    /// A label for status reports and metrics, such as job=123. Can be given 16 times.
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = label)]
    label: Vec<(String, String)>,

    /// The grant ends when this process exits.
    #[arg(long, value_name = "PID")]
    until_exit: Option<u32>,
}

fn share(text: &str) -> Result<Share, String> {
    let number = text.trim_end_matches('%').trim_end();
    let percent: i64 =
        number.parse().map_err(|_| format!("`{text}` is not a number of percent, 1 to 100"))?;
    match Share::new(percent) {
        Ok(share) if share.percent() > 0 => Ok(share),
        _ => Err(format!("share {percent} is out of range: allowed is 1 to 100 (percent)")),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(format!("`{text}` is not NAME=VALUE, such as job=123")),
    }
}

/// The path of a control group as in `/proc/PID/cgroup`. The directory of a group is converted: it begins with the mount of its
/// hierarchy.
fn group_path(text: &str, mounts: &str) -> String {
    let points = mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup").then(|| mount.split(' ').nth(4))?
    });
    let below = points.filter_map(|point| text.strip_prefix(point).filter(|below| below.starts_with('/')));
    below.min_by_key(|below| below.len()).unwrap_or(text).to_owned()
}

/// The control group of a process: that of version 2 unless it is the root, else the longest path.
fn group_of(pid: u32) -> anyhow::Result<String> {
    let file = format!("/proc/{pid}/cgroup");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read the control group of process {pid}"))?;
    let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| path.len() > 1);
    let version_2 = text.lines().find_map(|line| line.strip_prefix("0::")).filter(|path| path.len() > 1);
    match version_2.or_else(|| paths().max_by_key(|path| path.len())) {
        Some(path) => Ok(path.to_owned()),
        None => bail!(
            "process {pid} is in the root control group, as most processes are: move it to a group of its own first, or use --token"
        ),
    }
}

fn read_token(file: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = if file == "-" {
        std::io::stdin().take(4_096).read_to_string(&mut text)
    } else {
        std::fs::File::open(Path::new(file)).and_then(|file| file.take(4_096).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read the token from {file}"))?;
    Ok(text.trim().to_owned())
}

impl Args {
    fn grant(&self) -> anyhow::Result<Grant> {
        let cgroup = match (&self.cgroup, self.pid) {
            (Some(path), _) => {
                Some(group_path(path, &std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()))
            }
            (None, Some(pid)) => Some(group_of(pid)?),
            (None, None) if self.token.is_none() => {
                bail!(
                    "a grant needs a control group or a token: give --cgroup PATH, --pid PID or --token FILE"
                )
            }
            (None, None) => None,
        };
        let mut labels = BTreeMap::new();
        for (name, value) in &self.label {
            if labels.insert(name.clone(), value.clone()).is_some() {
                bail!("label {name} is given twice");
            }
        }
        let grant = Grant {
            name: self.name.clone(),
            cgroup,
            token: self.token.as_deref().map(read_token).transpose()?,
            uid: self.user,
            priority: self.priority.map(|priority| priority.get().into()),
            share: self.share.map(|share| share.percent().into()),
            memory: self.memory,
            is_job: self.job,
            until_exit_of: self.until_exit,
            labels,
        };
        grant.validate().map_err(anyhow::Error::msg)?;
        Ok(grant)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let grant = args.grant()?;
    let tool = ToolConnection::connect()?;
    let name = grant.name.clone();
    tool.request(&Request::Grant(grant)).with_context(|| format!("grant {name} was not given"))?;
    writeln!(io::stdout(), "grant {name} is in force")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_0_is_rejected() {
        assert_eq!(share("40%").map(Share::percent), Ok(40));
        assert!(share("0").unwrap_err().contains("1 to 100") && share("half").is_err());
    }

    #[test]
    fn directory_of_a_group_is_its_path() {
        let mounts = "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 c rw\n32 24 0:28 / /sys/fs/cgroup/cpu rw - cgroup c rw\n\
                      33 24 0:29 / /sys rw - sysfs s rw\n";
        assert_eq!(group_path("/sys/fs/cgroup/cpu/slurm/job_1", mounts), "/slurm/job_1");
        assert_eq!(group_path("/sys/fs/cgroup/a.slice", mounts), "/a.slice");
        assert_eq!(group_path("/slurm/job_1", mounts), "/slurm/job_1");
    }
}
