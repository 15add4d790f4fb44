//! `xserver [POLICY PORT]`: the service with the HTTP interface of the original C++ XSched.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Parser;
use xsched_policy::PolicyInfo;

use crate::cli;

/// Run the scheduler service as `xserver` of the original C++ XSched does: `xsched serve --policy POLICY --http 127.0.0.1:PORT`.
///
/// Unlike the original it listens on the loopback address only.
#[derive(Parser)]
#[command(name = "xserver", version)]
struct Args {
    // A policy without a port is rejected by the original too.
    #[arg(value_parser = policy, requires = "port", help = "The policy, by either of its names [default: HPF]")]
    policy: Option<&'static str>,

    /// The port of the HTTP interface [default: 50000]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

fn policy(name: &str) -> Result<&'static str, xsched_policy::UnknownPolicy> {
    Ok(PolicyInfo::find(name)?.name)
}

/// The command line of `xserver`.
pub(super) fn definition() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// Translates the command line to that of `xsched serve` and runs it.
pub(super) fn run(arguments: Vec<OsString>) -> ExitCode {
    cli::run(serve(&Args::parse_from(arguments)))
}

fn serve(args: &Args) -> Vec<OsString> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port.unwrap_or(super::PORT)));
    let policy = args.policy.unwrap_or("HPF");
    let words = ["xserver", "serve", "--policy", policy, "--http", &address.to_string()];
    words.map(OsString::from).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(words: &[&str]) -> Result<String, String> {
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(serve(&args).iter().skip(1).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn command_line_is_translated_to_xsched_serve() {
        for (original, expected) in [
            (vec!["xserver"], "serve --policy HPF --http 127.0.0.1:50000"),
            (vec!["xserver", "up", "50000"], "serve --policy UP --http 127.0.0.1:50000"),
            (vec!["xserver", "SPUP", "6000"], "serve --policy SPUP --http 127.0.0.1:6000"),
        ] {
            assert_eq!(translate(&original).unwrap(), expected);
        }
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for words in [vec!["xserver", "HPF"], vec!["xserver", "HPF", "0"], vec!["xserver", "HPF", "70000"]] {
            assert!(translate(&words).is_err(), "{words:?}");
        }
        assert!(translate(&["xserver", "unknown"]).unwrap_err().contains("priority (HPF)"));
    }
}
