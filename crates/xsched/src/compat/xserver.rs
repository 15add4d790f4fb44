//! `xserver [POLICY [PORT]]`: the service, with the HTTP interface of the reference's.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Parser;
use xsched_policy::PolicyInfo;

use crate::cli;

/// Run the scheduler service as the reference's `xserver` does: `xsched serve --policy POLICY --http 127.0.0.1:PORT`.
///
/// Unlike the reference's it listens on this machine only.
#[derive(Parser)]
#[command(name = "xserver", version)]
struct Args {
    /// The policy, by either of its names.
    #[arg(default_value = "HPF", value_parser = policy)]
    policy: &'static str,

    /// The port of the HTTP interface.
    #[arg(default_value_t = super::PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

fn policy(name: &str) -> Result<&'static str, xsched_policy::UnknownPolicy> {
    Ok(PolicyInfo::find(name)?.name)
}

/// The command line of `xserver`.
pub(super) fn definition() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// Turns its command line into that of `xsched serve`.
pub(super) fn run(arguments: Vec<OsString>) -> ExitCode {
    cli::run(serve(&Args::parse_from(arguments)))
}

fn serve(args: &Args) -> Vec<OsString> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let words = ["xserver", "serve", "--policy", args.policy, "--http", &address.to_string()];
    words.map(OsString::from).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn becomes(words: &[&str]) -> Result<String, String> {
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(serve(&args).iter().skip(1).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn its_command_line_becomes_ours() {
        for (theirs, ours) in [
            (vec!["xserver"], "serve --policy HPF --http 127.0.0.1:50000"),
            (vec!["xserver", "up"], "serve --policy UP --http 127.0.0.1:50000"),
            (vec!["xserver", "SPUP", "6000"], "serve --policy SPUP --http 127.0.0.1:6000"),
        ] {
            assert_eq!(becomes(&theirs).unwrap(), ours);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_started() {
        for words in
            [vec!["xserver", "nonsense"], vec!["xserver", "HPF", "0"], vec!["xserver", "HPF", "70000"]]
        {
            assert!(becomes(&words).is_err(), "{words:?}");
        }
        assert!(becomes(&["xserver", "nonsense"]).unwrap_err().contains("priority (HPF)"));
    }
}
