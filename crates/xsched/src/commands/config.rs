//! `xsched config`: checks or prints the configuration of the service.

use std::io::{self, Write as _};
use std::path::PathBuf;

use xsched_ipc::service::{Limit, Options, default_socket};

use crate::config::{Config, default_file};

/// Check the configuration, or show the settings in force.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Check a configuration file, and print the line and column of an error.
    Check {
        /// The file, instead of the default file.
        file: Option<PathBuf>,
    },
    /// Print the settings that a service started now would use.
    Show {
        /// The file, instead of the default file.
        file: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match &args.action {
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
        Action::Show { file } => {
            let config = Config::read(file.as_deref())?;
            let source = config
                .file
                .as_ref()
                .map_or_else(|| "the built-in defaults".to_owned(), |file| file.display().to_string());
            let options = config.options(default_socket());
            write!(out, "# from {source}\n{}", to_toml(&options))?;
        }
    }
    Ok(())
}

/// The options as a configuration file.
fn to_toml(options: &Options) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let limit =
        |limit: &Limit| format!("max_priority = {}\nmax_share = {}\n", limit.priority, limit.share.percent());
    let _ = write!(
        text,
        "# a service of this user listens at {}\n\n[defaults]\npolicy = {}\ntimeslice_us = {}\nk = {}\n\n[limits]\n{}",
        options.socket.display(),
        quoted(options.policy.plain),
        options.params.timeslice.get().0 / 1_000,
        options.params.k,
        limit(&options.limits.default),
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
        if let Some(priority) = rule.priority {
            let _ = writeln!(text, "priority = {priority}");
        }
        if let Some(share) = rule.share {
            let _ = writeln!(text, "share = {}", share.percent());
        }
    }
    text
}
