//! `xsched stop`: shuts the service down.

use std::io::{self, Write as _};
use std::time::Duration;

use xsched_ipc::service::{ShutDown, request_shutdown};

use crate::tool::{ToolConnection, ToolError};

/// How long a service that has agreed to shut down may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Shut the service down.
///
/// Scheduled programs continue unscheduled, and are scheduled again when another service runs. A service that does not respond
/// is killed. To end a service that systemd manages, use systemctl: systemd would start it again.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> anyhow::Result<()> {
    let socket = match ToolConnection::connect() {
        Ok(service) => service.socket().to_owned(),
        // It does not respond.
        Err(ToolError::NotAccepted { at }) => at,
        Err(error) => return Err(error.into()),
    };
    let mut out = io::stdout();
    match request_shutdown(&socket, SHUTDOWN_TIMEOUT)? {
        ShutDown::Done | ShutDown::NotFound => {
            writeln!(out, "the service at {} has shut down", socket.display())?;
        }
        ShutDown::Killed(pid) => {
            writeln!(out, "the service at {} (PID {pid}) did not respond and was killed", socket.display())?;
        }
    }
    Ok(())
}
