//! A service in a process and a directory of its own, for measurements and for the demo.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use xsched_core::Nanos;

/// A private service. Dropping it ends the process and removes the directory.
pub(crate) struct PrivateService {
    child: Child,
    socket: PathBuf,
    directory: PathBuf,
}

impl PrivateService {
    /// Starts a service with the built-in defaults and returns when it listens.
    pub(crate) fn start() -> anyhow::Result<Self> {
        Self::start_with(None)
    }

    /// The same with this policy instead of the default one.
    pub(super) fn start_with(policy: Option<&str>) -> anyhow::Result<Self> {
        let directory = std::env::temp_dir().join(format!("xsched-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let socket = directory.join("socket");
        // So that the service does not read the configuration of this machine, and has room for all clients of this user.
        let config = directory.join("config.toml");
        std::fs::write(&config, "[limits]\nmax_connections = 4096\nmax_processes = 2048\n")
            .with_context(|| format!("cannot create {}", config.display()))?;
        let mut child = Command::new(std::env::current_exe().context("cannot find this program's own file")?)
            .arg("serve")
            .arg("--socket")
            .arg(&socket)
            .arg("--config")
            .arg(&config)
            .args(policy.map(|policy| format!("--policy={policy}")))
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a private service")?;
        let stderr = child.stderr.take();
        let service = Self { child, socket, directory };
        let mut line = String::new();
        BufReader::new(stderr.context("the private service has no stderr")?).read_line(&mut line)?;
        anyhow::ensure!(
            line.contains("listening on"),
            "the private service did not start: {}",
            line.trim_end()
        );
        Ok(service)
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The number in a field of `/proc/PID/status`.
    fn status_field(&self, field: &str) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.pid());
        let text = read(&path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.split_whitespace()
            .find_map(|word| word.parse().ok())
            .with_context(|| format!("{path} has no {field}"))
    }

    /// The largest resident set it has had, in KiB.
    pub(super) fn peak_memory_kib(&self) -> anyhow::Result<u64> {
        self.status_field("VmHWM:")
    }

    pub(super) fn voluntary_context_switches(&self) -> anyhow::Result<u64> {
        self.status_field("voluntary_ctxt_switches:")
    }

    /// CPU time of its scheduling thread, which is its main thread.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Nanos> {
        let path = format!("/proc/{}/schedstat", self.pid());
        let first = read(&path)?.split_whitespace().next().and_then(|word| word.parse().ok());
        first.map(Nanos).with_context(|| format!("{path} has no CPU time"))
    }

    pub(super) fn open_descriptors(&self) -> anyhow::Result<usize> {
        let path = format!("/proc/{}/fd", self.pid());
        Ok(std::fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?.count())
    }

    /// The state of its scheduling thread as in `/proc/PID/stat`: `R` if it runs or waits for a core, `Z` if it has exited.
    pub(super) fn thread_state(&self) -> anyhow::Result<char> {
        let path = format!("/proc/{}/stat", self.pid());
        // The name before it is in parentheses and may itself contain spaces.
        let state = read(&path)?.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.with_context(|| format!("{path} has no state"))
    }
}

fn read(path: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|mut file| file.read_to_string(&mut text))
        .with_context(|| format!("cannot read {path}"))?;
    Ok(text)
}

impl Drop for PrivateService {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
