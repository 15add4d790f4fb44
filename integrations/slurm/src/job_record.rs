//! What slurmd knows about a job and the job's own environment cannot be trusted with: its partition and its QOS.
//!
//! The environment of a step comes from the user's `srun`. slurmd's prolog gets the partition from the controller. The plugin
//! writes it there to `STATE/JOBID`, which only root can read and write, and reads it in `slurmstepd`. The epilog removes it.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::rules::Place;

/// How long the controller may take to report the QOS of a job.
const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(2);
const CONTROLLER_POLL_INTERVAL: Duration = Duration::from_millis(5);

pub(crate) fn write(state: &Path, job: u32, place: &Place) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    let known = [("partition", &place.partition), ("qos", &place.qos)];
    let lines = known.iter().filter_map(|(key, value)| Some(format!("{key}={}\n", value.as_ref()?)));
    let text: String = lines.collect();
    // A reader never sees half of it. Each prolog has a process of its own.
    let unfinished = state.join(format!("{job}.{}", std::process::id()));
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&unfinished, state.join(job.to_string()))
}

/// What is known about the job. Without a record, nothing.
pub(crate) fn read(state: &Path, job: u32) -> Place {
    let text = fs::read_to_string(state.join(job.to_string())).unwrap_or_default();
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
    };
    Place { partition: value("partition"), qos: value("qos") }
}

pub(crate) fn remove(state: &Path, job: u32) {
    // A job that began before the plugin was installed has none.
    let _ = fs::remove_file(state.join(job.to_string()));
}

/// The QOS of a job as the controller reports it, empty if it has none. Fails with a message.
pub(crate) fn ask_controller_for_qos(job: u32) -> Result<String, String> {
    let mut child = Command::new("scontrol")
        .args(["--oneliner", "show", "job", &job.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|why| format!("cannot run scontrol: {why}"))?;
    let deadline = Instant::now() + CONTROLLER_TIMEOUT;
    // One job is less than a pipe holds, so that scontrol exits before it is read.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(CONTROLLER_POLL_INTERVAL),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("scontrol did not reply within {CONTROLLER_TIMEOUT:?}"));
            }
        }
    };
    let output = child.stdout.take().map(io::read_to_string).and_then(Result::ok).unwrap_or_default();
    qos_in(&output).ok_or_else(|| format!("scontrol reports no QOS ({status})"))
}

/// The field QOS of a line of `scontrol --oneliner show job`.
fn qos_in(line: &str) -> Option<String> {
    let value = line.split(' ').find_map(|field| field.strip_prefix("QOS="))?.trim();
    Some(if matches!(value, "(null)" | "N/A") { String::new() } else { value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_read_as_written_and_only_root_can_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let place = Place { partition: Some("debug".to_owned()), qos: Some(String::new()) };
        write(&state, 7, &place).unwrap();
        assert_eq!(read(&state, 7), place);
        assert_eq!(read(&state, 8), Place::default());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&state), mode(&state.join("7"))), (0o700, 0o600));
        remove(&state, 7);
        assert_eq!(read(&state, 7), Place::default());
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
    }

    #[test]
    fn qos_is_found_in_the_report_of_a_job() {
        assert_eq!(qos_in("JobId=3 Account=a QOS=high JobState=RUNNING").as_deref(), Some("high"));
        assert_eq!(qos_in("JobId=3 QOS=(null) JobState=RUNNING").as_deref(), Some(""));
        assert_eq!(qos_in("slurm_load_jobs error"), None);
    }
}
