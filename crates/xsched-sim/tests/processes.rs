//! Several processes on one device: they share it, are killed while they use it, and fork with it.
//!
//! The other processes run this test program again, with their role in an environment variable.

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use xsched_core::{HwQueue, Level, Nanos};
use xsched_sim::{Config, SimDevice, SimError, SpanKind, Usage};

const ROLE: &str = "XSCHED_SIM_TEST_ROLE";
const DEVICE: &str = "XSCHED_SIM_TEST_DEVICE";
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(60);
/// How many processes are killed while they use the device.
const KILLS: u64 = 25;

/// A device at a path, in a temporary directory.
struct SharedDevice {
    _directory: tempfile::TempDir,
    path: PathBuf,
    device: SimDevice,
}

impl SharedDevice {
    fn new(config: &Config) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let device = SimDevice::create_at(&path, config).unwrap();
        Self { _directory: directory, path, device }
    }

    fn start(&self, role: &str) -> ChildProcess {
        ChildProcess(command_for(role, &self.path).spawn().unwrap())
    }

    fn usage_of(&self, child: &ChildProcess) -> Option<Usage> {
        self.device.usage().unwrap().into_iter().find(|usage| usage.pid == child.0.id())
    }

    /// Repeats `check` until it returns a value. The test runner stops a test that waits too long.
    fn until<T>(mut check: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(value) = check() {
                return value;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// A process that does not outlive the test.
struct ChildProcess(Child);

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command_for(role: &str, device: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "another_process", "--nocapture"]).stdout(Stdio::null());
    command.env(ROLE, role).env(DEVICE, device);
    command
}

/// Not a test by itself: the child processes.
#[test]
fn another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let device = std::env::var_os(DEVICE).unwrap();
    match role.as_str() {
        "keep the device busy" => {
            let queue = SimDevice::open(device).unwrap().queue().unwrap();
            loop {
                queue.launch(Duration::from_millis(1)).unwrap();
            }
        }
        "call every operation" => call_every_operation(&SimDevice::open(device).unwrap()),
        "exit with all queues open" => {
            let device = SimDevice::open(device).unwrap();
            let queues: Vec<_> = std::iter::from_fn(|| device.queue().ok()).collect();
            std::mem::forget((device, queues));
        }
        "use the inherited descriptor" => {
            let fd = std::fs::File::options().read(true).write(true).open(device).unwrap();
            let queue = SimDevice::from_fd(fd.into()).unwrap().queue().unwrap();
            queue.launch(Duration::from_micros(300)).unwrap();
            queue.synchronize().unwrap();
        }
        role => panic!("unknown role `{role}`"),
    }
}

/// Calls every operation from several threads without pause, so that the kill hits an arbitrary one.
fn call_every_operation(device: &SimDevice) -> ! {
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let [queue, other] = [(); 2].map(|()| device.queue().unwrap());
                for marker in 1.. {
                    queue.launch(Duration::from_micros(marker % 30)).unwrap();
                    queue.mark().unwrap();
                    other.wait_for(&queue, marker).unwrap();
                    other.launch(Duration::from_micros(3)).unwrap();
                    queue.progress();
                    if marker % 16 == 0 {
                        queue.preempt(Level::Deactivate).unwrap();
                        queue.restore().unwrap();
                        drop(device.queue().unwrap());
                    }
                }
            });
        }
    });
    unreachable!("the threads run until they are killed")
}

#[test]
fn two_busy_processes_get_half_of_the_device_each() {
    let config = Config::default();
    let shared = SharedDevice::new(&config);
    let children = [(); 2].map(|()| shared.start("keep the device busy"));
    let both = || Some([shared.usage_of(&children[0])?.busy, shared.usage_of(&children[1])?.busy]);
    // Once both have run, both have work for a second in their queues.
    let start = SharedDevice::until(|| both().filter(|busy| busy.iter().all(|busy| *busy > Nanos::ZERO)));
    let end = SharedDevice::until(|| both().filter(|busy| busy[0] - start[0] > Nanos::from_millis(100)));
    let used = [end[0] - start[0], end[1] - start[1]];
    let difference = used[0].max(used[1]) - used[0].min(used[1]);
    assert!(difference <= config.slice + config.slice, "{used:?}");
}

#[test]
fn queued_work_of_a_killed_process_is_dropped() {
    let shared = SharedDevice::new(&Config::default());
    let mut child = shared.start("keep the device busy");
    SharedDevice::until(|| shared.usage_of(&child).filter(|usage| usage.busy > Nanos::from_millis(3)));
    child.0.kill().unwrap();
    // Not reaped: a zombie must count as dead.
    let queue = shared.device.queue().unwrap();
    let mut timeline = shared.device.timeline();
    timeline.drain(&mut Vec::new()).unwrap();
    queue.launch(Duration::from_millis(400)).unwrap();
    queue.mark().unwrap();
    assert!(queue.wait(1, COMPLETION_TIMEOUT).unwrap());
    let mut spans = Vec::new();
    timeline.drain(&mut spans).unwrap();
    // It had queued one second of work, and would have got half of the device.
    let of_killed = spans.iter().filter(|span| span.pid == child.0.id());
    let used = of_killed.fold(Nanos::ZERO, |sum, span| sum + (span.end - span.start));
    assert!(used < Nanos::from_millis(200), "{used}");
    assert!(shared.usage_of(&child).is_some_and(|usage| !usage.attached));
}

#[test]
fn idle_queues_of_an_exited_process_are_available_again() {
    let shared = SharedDevice::new(&Config::default());
    let mut child = shared.start("exit with all queues open");
    assert!(child.0.wait().unwrap().success());
    let queue = shared.device.queue().unwrap();
    queue.launch(Duration::from_micros(10)).unwrap();
    queue.synchronize().unwrap();
}

#[test]
fn surviving_process_completes_its_work_after_each_kill() {
    let shared = SharedDevice::new(&Config {
        slice: Nanos::from_micros(50),
        switch_cost: Nanos::ZERO,
        ..Config::default()
    });
    let queue = shared.device.queue().unwrap();
    for round in 1..=KILLS {
        let child = shared.start("call every operation");
        // ChildProcess at a different time within the first milliseconds of its work in each round.
        let kill_after = Nanos::from_micros(round * 7919 % 3000);
        SharedDevice::until(|| shared.usage_of(&child).filter(|usage| usage.busy > kill_after));
        drop(child);
        for _ in 0..50 {
            queue.launch(Duration::from_micros(10)).unwrap();
        }
        queue.mark().unwrap();
        assert!(queue.wait(round, COMPLETION_TIMEOUT).unwrap(), "round {round}");
    }
    // A process killed while it records a completion may leave that command to run again: at most one per kill.
    let (busy, launched) = (queue.busy().unwrap(), Nanos::from_micros(KILLS * 50 * 10));
    assert!(busy.0.abs_diff(launched.0) <= KILLS * 10_000, "{busy} of {launched}");
    let usage = shared.device.usage().unwrap();
    assert_eq!(usage.iter().filter(|usage| usage.attached).count(), 1, "{usage:?}");

    let mut spans = Vec::new();
    shared.device.timeline().drain(&mut spans).unwrap();
    let mine =
        spans.iter().filter(|span| span.queue == Some(queue.number()) && span.pid == std::process::id());
    assert!(mine.clone().any(|span| span.kind == SpanKind::Finished));
    let overlaps = spans.windows(2).filter(|pair| pair[0].end > pair[1].start).count() as u64;
    assert!(overlaps <= KILLS, "spans overlap only where a killed process left one half written: {overlaps}");
}

#[test]
fn device_can_be_passed_as_a_descriptor() {
    let device = SimDevice::create(&Config::default()).unwrap();
    // A descriptor without the close-on-exec flag, whose number the child gets in its path.
    let inherited = rustix::io::fcntl_dupfd_cloexec(device.fd(), 100).unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let path = format!("/proc/self/fd/{}", inherited.as_raw_fd());
    let status = command_for("use the inherited descriptor", Path::new(&path)).status().unwrap();
    assert!(status.success());
    let usage = device.usage().unwrap();
    let child = usage.iter().find(|usage| usage.pid != std::process::id()).unwrap();
    assert_eq!(child.busy, Nanos::from_micros(300));
}

#[test]
fn forked_child_is_rejected_and_leaves_the_parents_context_intact() {
    let device = SimDevice::create(&Config::default()).unwrap();
    let queue = device.queue().unwrap();
    queue.launch(Duration::from_millis(5)).unwrap();
    queue.mark().unwrap();
    let mut handles = Some((device.clone(), queue));
    let in_child = move || {
        let (device, queue) = handles.take().ok_or(std::io::ErrorKind::NotFound)?;
        let refused = matches!(queue.launch(Duration::ZERO), Err(SimError::Forked { .. }))
            && matches!(device.usage(), Err(SimError::Forked { .. }))
            && queue.wait(1, Duration::ZERO).is_err()
            && queue.preempt(Level::Interrupt).is_err();
        queue.progress();
        drop((device, queue));
        if refused { Ok(()) } else { Err(std::io::ErrorKind::PermissionDenied.into()) }
    };
    let mut command = Command::new("true");
    // SAFETY: what the closure calls is safe between fork and exec: it allocates, which glibc allows, and takes no lock
    // of this process.
    unsafe { command.pre_exec(in_child) };
    assert!(command.status().expect("the child was not rejected").success());

    // The command still holds the parent's handles.
    let usage = device.usage().unwrap();
    assert!(usage[0].attached);
    let deadline = SharedDevice::until(|| {
        device.usage().unwrap().first().filter(|usage| usage.busy == Nanos::from_millis(5)).copied()
    });
    assert!(deadline.attached);
    drop(command);
}
