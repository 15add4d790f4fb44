//! Several processes on one device: sharing it, being killed on it, forking with it.
//!
//! The other processes are this test program again, told by the environment what part to play.

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use xsched_core::{HwQueue, Level, Nanos};
use xsched_sim::{Config, SimDevice, SimError, SpanKind, Usage};

const PART: &str = "XSCHED_SIM_TEST_PART";
const DEVICE: &str = "XSCHED_SIM_TEST_DEVICE";
const PATIENCE: Duration = Duration::from_secs(60);
/// How many processes are killed at work.
const KILLS: u64 = 25;

/// A device under a name, in a directory of its own.
struct Stage {
    _directory: tempfile::TempDir,
    path: PathBuf,
    device: SimDevice,
}

impl Stage {
    fn new(config: &Config) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let device = SimDevice::create_at(&path, config).unwrap();
        Self { _directory: directory, path, device }
    }

    fn start(&self, part: &str) -> Killed {
        Killed(play(part, &self.path).spawn().unwrap())
    }

    fn usage_of(&self, child: &Killed) -> Option<Usage> {
        self.device.usage().unwrap().into_iter().find(|usage| usage.pid == child.0.id())
    }

    /// Looks until `is_so` answers something. A test that waits in vain is stopped by whoever runs it.
    fn until<T>(mut is_so: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(answer) = is_so() {
                return answer;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// A process that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn play(part: &str, device: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "another_process", "--nocapture"]).stdout(Stdio::null());
    command.env(PART, part).env(DEVICE, device);
    command
}

/// Not a test by itself: what the other processes do.
#[test]
fn another_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let device = std::env::var_os(DEVICE).unwrap();
    match part.as_str() {
        "keep the device busy" => {
            let queue = SimDevice::open(device).unwrap().queue().unwrap();
            loop {
                queue.launch(Duration::from_millis(1)).unwrap();
            }
        }
        "be everywhere at once" => be_everywhere(&SimDevice::open(device).unwrap()),
        "use the inherited descriptor" => {
            let fd = std::fs::File::options().read(true).write(true).open(device).unwrap();
            let queue = SimDevice::from_fd(fd.into()).unwrap().queue().unwrap();
            queue.launch(Duration::from_micros(300)).unwrap();
            queue.synchronize().unwrap();
        }
        part => panic!("nobody knows the part `{part}`"),
    }
}

/// Calls everything from several threads without a pause, so that death comes at the worst of times.
fn be_everywhere(device: &SimDevice) -> ! {
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
    unreachable!("the threads go on until they are killed")
}

#[test]
fn two_processes_get_half_the_device_each() {
    let config = Config::default();
    let stage = Stage::new(&config);
    let children = [(); 2].map(|()| stage.start("keep the device busy"));
    let both = || Some([stage.usage_of(&children[0])?.busy, stage.usage_of(&children[1])?.busy]);
    // Once both have had a turn, both have work for a second in their queues.
    let start = Stage::until(|| both().filter(|busy| busy.iter().all(|busy| *busy > Nanos::ZERO)));
    let end = Stage::until(|| both().filter(|busy| busy[0] - start[0] > Nanos::from_millis(100)));
    let used = [end[0] - start[0], end[1] - start[1]];
    let difference = used[0].max(used[1]) - used[0].min(used[1]);
    assert!(difference <= config.slice + config.slice, "{used:?}");
}

#[test]
fn what_a_killed_process_had_queued_vanishes() {
    let stage = Stage::new(&Config::default());
    let mut child = stage.start("keep the device busy");
    Stage::until(|| stage.usage_of(&child).filter(|usage| usage.busy > Nanos::from_millis(3)));
    child.0.kill().unwrap();
    // Not waited for: a zombie must count as gone.
    let queue = stage.device.queue().unwrap();
    let mut timeline = stage.device.timeline();
    timeline.drain(&mut Vec::new()).unwrap();
    queue.launch(Duration::from_millis(400)).unwrap();
    queue.mark().unwrap();
    assert!(queue.wait(1, PATIENCE).unwrap());
    let mut spans = Vec::new();
    timeline.drain(&mut spans).unwrap();
    // It had work for a second, and would have got half the device.
    let of_the_dead = spans.iter().filter(|span| span.pid == child.0.id());
    let used = of_the_dead.fold(Nanos::ZERO, |sum, span| sum + (span.end - span.start));
    assert!(used < Nanos::from_millis(200), "{used}");
    assert!(stage.usage_of(&child).is_some_and(|usage| !usage.attached));
}

#[test]
fn killing_processes_at_any_moment_leaves_the_others_able_to_finish() {
    let stage =
        Stage::new(&Config { slice: Nanos::from_micros(50), switch_cost: Nanos::ZERO, ..Config::default() });
    let queue = stage.device.queue().unwrap();
    for round in 1..=KILLS {
        let child = stage.start("be everywhere at once");
        // Somewhere within the first milliseconds of its work; each round somewhere else.
        let moment = Nanos::from_micros(round * 7919 % 3000);
        Stage::until(|| stage.usage_of(&child).filter(|usage| usage.busy > moment));
        drop(child);
        for _ in 0..50 {
            queue.launch(Duration::from_micros(10)).unwrap();
        }
        queue.mark().unwrap();
        assert!(queue.wait(round, PATIENCE).unwrap(), "round {round}");
    }
    // Who is killed while it writes down that a command finished may leave that command to run again: one at most.
    let (busy, launched) = (queue.busy().unwrap(), Nanos::from_micros(KILLS * 50 * 10));
    assert!(busy.0.abs_diff(launched.0) <= KILLS * 10_000, "{busy} of {launched}");
    let usage = stage.device.usage().unwrap();
    assert_eq!(usage.iter().filter(|usage| usage.attached).count(), 1, "{usage:?}");

    let mut spans = Vec::new();
    stage.device.timeline().drain(&mut spans).unwrap();
    let mine =
        spans.iter().filter(|span| span.queue == Some(queue.number()) && span.pid == std::process::id());
    assert!(mine.clone().any(|span| span.kind == SpanKind::Finished));
    let overlaps = spans.windows(2).filter(|pair| pair[0].end > pair[1].start).count() as u64;
    assert!(overlaps <= KILLS, "one thing at a time, but for what the killed left half written: {overlaps}");
}

#[test]
fn a_device_can_be_handed_over_as_a_descriptor() {
    let device = SimDevice::create(&Config::default()).unwrap();
    // Without the close-on-exec flag, under a number the child is told.
    let inherited = rustix::io::fcntl_dupfd_cloexec(device.fd(), 100).unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let path = format!("/proc/self/fd/{}", inherited.as_raw_fd());
    let status = play("use the inherited descriptor", Path::new(&path)).status().unwrap();
    assert!(status.success());
    let usage = device.usage().unwrap();
    let child = usage.iter().find(|usage| usage.pid != std::process::id()).unwrap();
    assert_eq!(child.busy, Nanos::from_micros(300));
}

#[test]
fn a_forked_child_is_refused_and_takes_nothing_from_its_parent() {
    let device = SimDevice::create(&Config::default()).unwrap();
    let queue = device.queue().unwrap();
    queue.launch(Duration::from_millis(5)).unwrap();
    queue.mark().unwrap();
    let mut kept = Some((device.clone(), queue));
    let in_child = move || {
        let (device, queue) = kept.take().ok_or(std::io::ErrorKind::NotFound)?;
        let refused = matches!(queue.launch(Duration::ZERO), Err(SimError::Forked { .. }))
            && matches!(device.usage(), Err(SimError::Forked { .. }))
            && queue.wait(1, Duration::ZERO).is_err()
            && queue.preempt(Level::Interrupt).is_err();
        queue.progress();
        drop((device, queue));
        if refused { Ok(()) } else { Err(std::io::ErrorKind::PermissionDenied.into()) }
    };
    let mut command = Command::new("true");
    // SAFETY: the closure calls nothing that is unsafe between fork and exec: it allocates, which glibc allows, and
    // takes no lock of this process.
    unsafe { command.pre_exec(in_child) };
    assert!(command.status().expect("the child was not refused").success());

    // The command still holds the parent's handles.
    let usage = device.usage().unwrap();
    assert!(usage[0].attached);
    let deadline = Stage::until(|| {
        device.usage().unwrap().first().filter(|usage| usage.busy == Nanos::from_millis(5)).copied()
    });
    assert!(deadline.attached);
    drop(command);
}
