//! Runs one scene: starts the two programs, with or without the scheduler, and collects their times.

use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::io::FdFlags;
use xsched_core::{Hints, LevelRequest, Nanos, Priority, Process, ProcessId};
use xsched_ipc::{ClientId, LocalScheduler, Page};
use xsched_policy::PolicyInfo;
use xsched_sim::{Config, SimDevice, SpanKind};

use super::report::{Owner, Request, Scene, SceneName, Span};
use super::worker::Role;

/// What both programs do, in every scene.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub level: LevelRequest,
    pub requests: usize,
    pub commands_per_request: u32,
    pub command_us: u64,
    pub period_us: u64,
    pub background_command_us: u64,
    pub background_batch: u32,
}

/// Runs one scene on a fresh device. Calls `progress` after every request.
pub(crate) fn run(
    name: SceneName,
    plan: &Plan,
    config: &Config,
    progress: impl FnMut(),
) -> anyhow::Result<Scene> {
    let device = SimDevice::create(config)?;
    let mut timeline = device.timeline();
    let policy = PolicyInfo::find("priority").context("the demo's policy")?;
    let scheduler = (name == SceneName::XSched).then(|| LocalScheduler::start(policy)).transpose()?;

    let background = (name != SceneName::Alone)
        .then(|| Program::start(Role::Background, plan, &device, scheduler.as_ref()))
        .transpose()?;
    if let Some(background) = &background {
        background.wait_until_running(&device)?;
    }
    let foreground = Program::start(Role::Foreground, plan, &device, scheduler.as_ref())?;
    let foreground_pid = foreground.pid();
    let requests = foreground.collect_requests(plan.requests, progress)?;
    let background_pid = background.as_ref().map(Program::pid);
    drop(background);

    let mut spans = Vec::new();
    timeline.drain(&mut spans)?;
    let requests =
        completion_times_on_device(&requests, spans.iter().filter(|span| span.pid == foreground_pid));
    let (from, to) = (requests[0].0, requests[requests.len() - 1].1);
    let owned: Vec<(Owner, Nanos, Nanos)> = spans
        .iter()
        .filter(|span| span.end > from && span.start < to)
        .filter_map(|span| {
            let owner = match span.kind {
                SpanKind::Switch => Owner::Switch,
                _ if span.pid == foreground_pid => Owner::Foreground,
                _ if Some(span.pid) == background_pid => Owner::Background,
                _ => return None,
            };
            Some((owner, span.start.max(from), span.end.min(to)))
        })
        .collect();
    let utilization = |wanted| {
        let times = owned.iter().filter(|(owner, ..)| *owner == wanted).map(|(_, start, end)| *end - *start);
        times.fold(Nanos::ZERO, |sum, span| sum + span).as_secs_f64() / (to - from).as_secs_f64()
    };
    let since_start = |at: Nanos| (at - from).as_micros_f64();
    Ok(Scene {
        name,
        foreground: requests
            .iter()
            .map(|(arrived, done)| Request { arrived_us: since_start(*arrived), done_us: since_start(*done) })
            .collect(),
        background_utilization: utilization(Owner::Background),
        foreground_utilization: utilization(Owner::Foreground),
        timeline: owned
            .iter()
            .map(|(task, start, end)| Span {
                task: *task,
                start_us: since_start(*start),
                end_us: since_start(*end),
            })
            .collect(),
    })
}

/// Replaces the time at which the program saw that a request was complete by the time at which the device completed it. The demo
/// does not measure how fast a busy host wakes a process. Delays of XSched count: they delay the work on the device.
fn completion_times_on_device<'a>(
    requests: &[(Nanos, Nanos)],
    spans: impl Iterator<Item = &'a xsched_sim::Span>,
) -> Vec<(Nanos, Nanos)> {
    let mut spans = spans.peekable();
    let completed = |(arrived, noticed): &(Nanos, Nanos)| {
        let mut done = *arrived;
        while let Some(span) = spans.next_if(|span| span.end <= *noticed) {
            done = done.max(span.end);
        }
        (*arrived, done)
    };
    requests.iter().map(completed).collect()
}

/// A program of the demo in its own process, which is killed on drop.
struct Program<'a> {
    role: Role,
    child: Child,
    admitted: Option<(&'a LocalScheduler, ClientId)>,
}

impl<'a> Program<'a> {
    fn start(
        role: Role,
        plan: &Plan,
        device: &SimDevice,
        scheduler: Option<&'a LocalScheduler>,
    ) -> anyhow::Result<Self> {
        let (commands, command_us) = match role {
            Role::Foreground => (plan.commands_per_request, plan.command_us),
            Role::Background => (plan.background_batch, plan.background_command_us),
        };
        let mut command =
            Command::new(std::env::current_exe().context("cannot find this program's own file")?);
        command.args(["demo-worker", "--role", role.name()]);
        let device_fd = inheritable(device.fd())?;
        let mut arg = |name: &str, value: String| {
            command.args([name, &value]);
        };
        arg("--device-fd", device_fd.as_raw_fd().to_string());
        arg("--commands", commands.to_string());
        arg("--command-us", command_us.to_string());
        arg("--level", plan.level.to_string());
        if role == Role::Foreground {
            arg("--requests", plan.requests.to_string());
            arg("--period-us", plan.period_us.to_string());
        }
        let mut inherited = vec![device_fd];
        let page = scheduler.map(|_| Page::create()).transpose()?;
        if let (Some(scheduler), Some(page)) = (scheduler, &page) {
            let (page_fd, notifier_fd) = (
                inheritable(page.fd().context("the page has no descriptor")?)?,
                inheritable(scheduler.notifier().as_fd())?,
            );
            arg("--page-fd", page_fd.as_raw_fd().to_string());
            arg("--notifier-fd", notifier_fd.as_raw_fd().to_string());
            inherited.extend([page_fd, notifier_fd]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the demo's {}", role.name()))?;
        drop(inherited);
        let admitted = scheduler.zip(page).map(|(scheduler, page)| {
            let priority = if role == Role::Foreground { Priority::HIGH } else { Priority::LOW };
            let process = Process { id: ProcessId(child.id()), ..Process::default() };
            (scheduler, scheduler.admit(process, page, Hints { priority, ..Hints::default() }))
        });
        Ok(Self { role, child, admitted })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the device has run 20 ms of this program's work, so that the scene begins under load.
    fn wait_until_running(&self, device: &SimDevice) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !device
            .usage()?
            .iter()
            .any(|usage| usage.pid == self.pid() && usage.busy > Nanos::from_millis(20))
        {
            if Instant::now() > deadline {
                bail!("the demo's {} did not run within 10 s", self.role.name());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Reads the two times of every request until the program exits.
    fn collect_requests(
        mut self,
        expected: usize,
        mut progress: impl FnMut(),
    ) -> anyhow::Result<Vec<(Nanos, Nanos)>> {
        let out = self.child.stdout.take().context("the demo's program has no output")?;
        let mut requests = Vec::with_capacity(expected);
        for line in BufReader::new(out).lines() {
            let line = line?;
            let times = line.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let (arrived, done) =
                times.with_context(|| format!("the demo's foreground printed the invalid line `{line}`"))?;
            requests.push((Nanos(arrived), Nanos(done)));
            progress();
        }
        let status = self.child.wait()?;
        if !status.success() || requests.len() != expected {
            bail!(
                "the demo's foreground served {} of {expected} requests and exited with {status}",
                requests.len()
            );
        }
        Ok(requests)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some((scheduler, id)) = self.admitted {
            scheduler.with(|coordinator| coordinator.remove_client(id));
        }
    }
}

/// A copy of a descriptor that child processes inherit.
fn inheritable(fd: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    let fd = fd.try_clone_to_owned()?;
    rustix::io::fcntl_setfd(&fd, FdFlags::empty())?;
    Ok(fd)
}
