//! `xsched config`: creates, checks or prints the configuration of the service.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use xsched_ipc::service::{Limit, Options, default_socket};

use crate::config::{Config, HttpSection, TEMPLATE, default_file};
use crate::tool::ToolConnection;

/// Create or check the configuration, or show the settings in force.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Write a commented configuration file with all settings. An existing file is not changed.
    Init {
        /// The file, instead of the default file; - prints it.
        file: Option<PathBuf>,
    },
    /// Check a configuration file, and print the line and column of each error.
    Check {
        /// The file, instead of the default file.
        file: Option<PathBuf>,
    },
    /// Check the default file, and have the running service read its configuration again. Programs keep the hints that they have.
    Reload,
    /// Print the settings that a service started now would use.
    Show {
        /// The file, instead of the default file.
        file: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match &args.action {
        Action::Init { file } => match file.clone().or_else(default_file) {
            Some(file) if file == Path::new("-") => out.write_all(TEMPLATE.as_bytes())?,
            Some(file) => {
                create(&file)?;
                writeln!(
                    out,
                    "{}: written. A service that runs reads it with `xsched config reload`",
                    file.display()
                )?;
            }
            None => anyhow::bail!("HOME is not set: name the file, as in `xsched config init FILE`"),
        },
        Action::Check { file } => {
            let config = Config::read(file.as_deref())?;
            match (&config.file, default_file()) {
                (Some(file), _) => writeln!(out, "{}: no errors", file.display())?,
                (None, Some(default)) => {
                    writeln!(out, "{} does not exist: using the built-in defaults", default.display())?;
                }
                (None, None) => writeln!(out, "no configuration file: using the built-in defaults")?,
            }
        }
        Action::Reload => {
            Config::read(None)?;
            let pid = ToolConnection::connect()?.status()?.pid;
            let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
            process
                .map_or(Err(Errno::SRCH), |process| kill_process(process, Signal::HUP))
                .with_context(|| format!("cannot send SIGHUP to the service (process {pid})"))?;
            writeln!(out, "the service (process {pid}) reads its configuration again")?;
        }
        Action::Show { file } => {
            let config = Config::read(file.as_deref())?;
            let source = config
                .file
                .as_ref()
                .map_or_else(|| "the built-in defaults".to_owned(), |file| file.display().to_string());
            let options = config.options(default_socket());
            write!(out, "# from {source}\n{}", to_toml(&options, &config.content.http))?;
        }
    }
    Ok(())
}

/// Writes the template. Fails if the file exists.
fn create(file: &Path) -> anyhow::Result<()> {
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create the directory {}", directory.display()))?;
    }
    let written = OpenOptions::new().write(true).create_new(true).open(file);
    match written.and_then(|mut file| file.write_all(TEMPLATE.as_bytes())) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            anyhow::bail!("{} exists already: edit it, or name another file", file.display())
        }
        written => written.with_context(|| format!("cannot write {}", file.display())),
    }
}

/// The options as a configuration file.
fn to_toml(options: &Options, http: &HttpSection) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let limit =
        |limit: &Limit| format!("max_priority = {}\nmax_share = {}\n", limit.priority, limit.share.percent());
    let _ = write!(
        text,
        "# a service of this user listens at {}\n\n[defaults]\npolicy = {}\ntimeslice_us = {}\nk = {}\nsample_utilization = {}\n\n[limits]\n{}\
         max_connections = {}\nmax_processes = {}\nmax_queues = {}\nmax_job_keys = {}\nmax_unread_kib = {}\n",
        options.socket.display(),
        quoted(options.policy.plain),
        options.params.timeslice.get().0 / 1_000,
        options.params.k,
        options.samples_utilization,
        limit(&options.limits.default),
        options.quota.connections,
        options.quota.processes,
        options.quota.queues,
        options.quota.job_keys,
        options.quota.unread_bytes >> 10,
    );
    for (key, entries) in [("user", &options.limits.users), ("group", &options.limits.groups)] {
        for (id, given) in entries {
            let _ = write!(text, "\n[[limits.for]]\n{key} = {id}\n{}", limit(given));
        }
    }
    for rule in &options.rules {
        text.push_str("\n[[rules]]\n");
        for (key, glob) in [("executable", &rule.executable), ("cgroup", &rule.cgroup)] {
            if let Some(glob) = glob {
                let _ = writeln!(text, "{key} = {}", quoted(glob.as_str()));
            }
        }
        if let Some(user) = rule.user {
            let _ = writeln!(text, "user = {user}");
        }
        if let Some(priority) = rule.priority {
            let _ = writeln!(text, "priority = {priority}");
        }
        if let Some(share) = rule.share {
            let _ = writeln!(text, "share = {}", share.percent());
        }
        if let Some(memory) = rule.memory {
            let _ = writeln!(text, "memory = \"{memory}\"");
        }
    }
    let confine: Vec<_> = options.grants.confine.iter().map(|glob| quoted(glob.as_str())).collect();
    let _ = write!(text, "\n[grants]\nconfine = [{}]\n", confine.join(", "));
    if let Some(group) = options.grants.group {
        let _ = writeln!(text, "group = {group}");
    }
    let _ = write!(text, "\n[http]\nmetrics_names = {}\n", http.metrics_names);
    if let Some(address) = &http.metrics {
        let _ = writeln!(text, "metrics = {}", quoted(&address.0.to_string()));
    }
    if let Some(file) = &http.token_file {
        let _ = writeln!(text, "token_file = {}", quoted(&file.to_string_lossy()));
    }
    text
}
