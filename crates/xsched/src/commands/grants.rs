//! `xsched grants`: lists the grants.

use std::io::{self, Write as _};

use xsched_ipc::protocol::GrantStatus;

use crate::term::{self, NO_VALUE};
use crate::tool::ToolConnection;
use crate::users;

/// List the grants in force.
///
/// Administrators see all grants, other users their own. FOR is the control group of the grant, or that its processes have a
/// token. PRIO and SHARE are what the processes have and can request at most; a dash means the limit of their user. STATE is
/// suspended while the processes of the grant are. PROCS is the number of its scheduled processes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the grants as one JSON array, with their labels and process IDs. Tokens are not shown.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let grants = ToolConnection::connect()?.grants()?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &grants).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", table(&grants, &users::name_of))?;
    }
    Ok(())
}

/// The grants as a table, or one line if there are none.
fn table(grants: &[GrantStatus], user_name: &dyn Fn(u32) -> String) -> String {
    if grants.is_empty() {
        return "no grant is in force: an administrator gives one with `xsched grant`\n".to_owned();
    }
    let mut rows =
        vec![["NAME", "FOR", "USER", "PRIO", "SHARE", "MEMORY", "JOB", "STATE", "PROCS"].map(str::to_owned)];
    rows.extend(grants.iter().map(|status| row(status, user_name)));
    let mut widths = [0; 9];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = term::width(cell).max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - term::width(cell))));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(status: &GrantStatus, user_name: &dyn Fn(u32) -> String) -> [String; 9] {
    let grant = &status.grant;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| NO_VALUE.to_owned());
    let token = status.has_token.then(|| "token".to_owned());
    let members: Vec<_> = grant.cgroup.as_deref().map(term::printable).into_iter().chain(token).collect();
    [
        term::printable(&grant.name),
        members.join(" or "),
        or_dash(grant.uid.map(user_name)),
        or_dash(grant.priority.map(|priority| priority.to_string())),
        or_dash(grant.share.map(|share| format!("{share}%"))),
        or_dash(grant.memory.map(size)),
        if grant.is_job { "yes" } else { NO_VALUE }.to_owned(),
        if status.is_suspended { "suspended" } else { "active" }.to_owned(),
        status.processes.len().to_string(),
    ]
}

/// A size with its largest binary unit and at most one decimal, such as 20G or 1.5M.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["", "K", "M", "G"] {
        if value < 1024.0 {
            return format!("{value:.1}").trim_end_matches(".0").to_owned() + unit;
        }
        value /= 1024.0;
    }
    format!("{value:.1}").trim_end_matches(".0").to_owned() + "T"
}

#[cfg(test)]
mod tests {
    use super::*;
    use xsched_ipc::protocol::Grant;

    #[test]
    fn table_shows_limits_and_never_a_token() {
        let by_group = Grant {
            name: "slurm-1".into(),
            cgroup: Some("/slurm/job_1".into()),
            uid: Some(7),
            priority: Some(100),
            memory: Some(20 << 30),
            is_job: true,
            ..Grant::default()
        };
        let by_token = Grant { name: "ray".into(), share: Some(40), ..Grant::default() };
        let grants = [
            GrantStatus { grant: by_group, processes: vec![1, 2], ..GrantStatus::default() },
            GrantStatus { grant: by_token, has_token: true, is_suspended: true, ..GrantStatus::default() },
        ];
        assert_eq!(
            table(&grants, &|uid| format!("user{uid}")),
            "NAME     FOR           USER   PRIO  SHARE  MEMORY  JOB  STATE      PROCS\n\
             slurm-1  /slurm/job_1  user7  100   -      20G     yes  active     2\n\
             ray      token         -      -     40%    -       -    suspended  0\n"
        );
        assert_eq!(table(&[], &|_| String::new()).lines().count(), 1);
        assert_eq!([size(7), size(3 << 19), size(5 << 40)], ["7", "1.5M", "5T"]);
    }
}
