//! `xsched park` and `xsched unpark`: move the device memory of a program to the host and back.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use xsched_ipc::memory::format_size;
use xsched_ipc::protocol::{ParkingStatus, Reply, Request, Target};

use crate::term;
use crate::tool::ToolConnection;

/// How often the progress is requested.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Move the device memory of a program to the host, and hold the program.
///
/// The program has to be started with `xsched run --swap`. It completes what it has launched first. Its memory has the same addresses
/// when it is back.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The process ID, or the name of all programs to park.
    #[arg(value_name = "PID|NAME")]
    program: String,
}

/// Move the device memory of a parked program back, and let the program run.
///
/// While the device is full the program stays parked; it runs as soon as there is room.
#[derive(clap::Args)]
pub(crate) struct UnparkArgs {
    /// The process ID, or the name of all programs to unpark.
    #[arg(value_name = "PID|NAME")]
    program: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    order(&args.program, true)
}

pub(crate) fn run_unpark(args: &UnparkArgs) -> anyhow::Result<()> {
    order(&args.program, false)
}

fn order(program: &str, parks: bool) -> anyhow::Result<()> {
    let what = term::printable(program);
    let tool = ToolConnection::connect()?;
    let target = program.parse().map_or_else(|_| Target::Name(program.to_owned()), Target::Pid);
    let request = if parks { Request::Park(target) } else { Request::Unpark(target) };
    let not_done =
        || if parks { format!("{what} was not parked") } else { format!("{what} was not unparked") };
    let first = parking(&tool, &request).with_context(not_done)?;
    let mut failure = None;
    for process in first {
        let (done, why) = follow(&tool, process, parks)?;
        if let Some(why) = why {
            failure = Some(why);
        } else {
            writeln!(io::stdout(), "{}", summary(&done, parks))?;
        }
    }
    match failure {
        Some(why) if parks => bail!("{what} was not parked: {why}"),
        Some(why) => bail!("{what} is still parked: {why}; it runs as soon as that changes"),
        None => Ok(()),
    }
}

fn parking(tool: &ToolConnection, request: &Request) -> anyhow::Result<Vec<ParkingStatus>> {
    match tool.request(request)? {
        Reply::Parking(processes) => Ok(processes),
        _ => bail!("the scheduler has another version: restart it with `xsched serve --replace`"),
    }
}

/// Waits until a process has carried out the order, and shows the progress on a terminal. Returns its state, and why it has given up.
fn follow(
    tool: &ToolConnection,
    mut process: ParkingStatus,
    parks: bool,
) -> anyhow::Result<(ParkingStatus, Option<String>)> {
    let mut line = ProgressLine::default();
    while !process.is_settled {
        line.show(&process, parks);
        std::thread::sleep(POLL_INTERVAL);
        let pid = process.pid;
        // The service does not know a process that has exited.
        let now = parking(tool, &Request::Parking(Target::Pid(pid))).ok();
        let Some(now) = now.and_then(|processes| processes.into_iter().next()) else {
            if parks {
                bail!("process {pid} has exited");
            }
            // It has brought its memory back, has run and has exited since the last request.
            break;
        };
        if now.is_parked != parks && now.is_settled && now.failure.is_none() {
            bail!("process {pid} has got another order meanwhile");
        }
        process = now;
    }
    drop(line);
    let failure = process.failure.clone();
    Ok((process, failure))
}

/// One line on the standard error stream, if that is a terminal. Cleared when it is dropped.
#[derive(Default)]
struct ProgressLine {
    is_shown: bool,
}

impl ProgressLine {
    fn show(&mut self, process: &ParkingStatus, parks: bool) {
        let mut out = io::stderr();
        if out.is_terminal() {
            self.is_shown = true;
            let _ = write!(out, "\r\x1b[K{}", progress(process, parks));
            let _ = out.flush();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn progress(process: &ParkingStatus, parks: bool) -> String {
    const WIDTH: u64 = 30;
    let ParkingStatus { pid, movable_bytes, moved_bytes, .. } = process;
    if parks && *moved_bytes == 0 {
        return format!("{pid}: waiting until its work has completed");
    }
    let done = if parks { *moved_bytes } else { movable_bytes.saturating_sub(*moved_bytes) };
    let filled = usize::try_from(done * WIDTH / (*movable_bytes).max(1)).unwrap_or(0);
    let bar = "#".repeat(filled) + &" ".repeat(30_usize.saturating_sub(filled));
    format!("{pid}: [{bar}] {} of {}", format_size(done), format_size(*movable_bytes))
}

fn summary(process: &ParkingStatus, parks: bool) -> String {
    let ParkingStatus { pid, movable_bytes, stays, .. } = process;
    if !parks {
        return format!("{pid}: unparked, {} on the device", format_size(*movable_bytes));
    }
    let stays =
        if stays.is_empty() { String::new() } else { format!("; on the device stay {}", stays.join(", ")) };
    format!("{pid}: parked, {} in memory of the host{stays}", format_size(*movable_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_goes_from_empty_to_full_in_both_directions() {
        let status = |moved_bytes| ParkingStatus {
            pid: 7,
            movable_bytes: 4 << 30,
            moved_bytes,
            ..ParkingStatus::default()
        };
        assert_eq!(progress(&status(0), true), "7: waiting until its work has completed");
        let half = "7: [###############               ] 2G of 4G";
        assert_eq!(progress(&status(2 << 30), true), half);
        assert_eq!(progress(&status(2 << 30), false), half);
        assert!(progress(&status(0), false).starts_with(&format!("7: [{}]", "#".repeat(30))));
        assert_eq!(progress(&ParkingStatus::default(), false), format!("0: [{}] 0 of 0", " ".repeat(30)));
    }

    #[test]
    fn summary_names_what_stays() {
        let status = ParkingStatus {
            pid: 7,
            movable_bytes: 3 << 30,
            stays: vec!["arrays".to_owned(), "memory pools".to_owned()],
            ..ParkingStatus::default()
        };
        assert_eq!(
            summary(&status, true),
            "7: parked, 3G in memory of the host; on the device stay arrays, memory pools"
        );
        assert_eq!(summary(&status, false), "7: unparked, 3G on the device");
    }
}
