//! A program on a terminal.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Generous: the machine may be busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Opens both ends of a terminal. Programs that other tests start at the same time do not inherit them, because a terminal is closed, and
/// reading from it ends, when the last process has closed it.
fn open(columns: u16, lines: u16) -> (File, File) {
    let size = libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let mut name = [0; 64];
    // SAFETY: the descriptor is new and belongs to no other code; the kernel writes a name that ends with zero within `name`.
    let (terminal, name) = unsafe {
        let main = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(main >= 0, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::unlockpt(main), 0);
        assert_eq!(libc::ptsname_r(main, name.as_mut_ptr(), name.len()), 0);
        assert_eq!(libc::ioctl(main, libc::TIOCSWINSZ, &raw const size), 0);
        (File::from_raw_fd(main), CStr::from_ptr(name.as_ptr()))
    };
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let other = options.open(name.to_str().unwrap()).unwrap();
    (terminal, other)
}

/// A program on a terminal of its own. Killed when this is dropped.
pub(crate) struct OnTerminal {
    child: Child,
    #[allow(dead_code, reason = "kept open until the program has exited")]
    terminal: Option<File>,
    output: Arc<Mutex<Vec<u8>>>,
    is_closed: Arc<AtomicBool>,
    reader: Option<thread::JoinHandle<()>>,
}

impl OnTerminal {
    /// Starts the program on a terminal of this size.
    pub(crate) fn start(mut command: Command, columns: u16, lines: u16) -> Self {
        let (terminal, other) = open(columns, lines);
        command.stdin(other.try_clone().unwrap()).stdout(other.try_clone().unwrap()).stderr(other);
        // SAFETY: the closure runs in the forked child and only makes two system calls.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        // The descriptors of the terminal: it is closed, and reading ends, when the child has exited.
        drop(command);
        let output = Arc::<Mutex<Vec<u8>>>::default();
        let (mut source, target) = (terminal.try_clone().unwrap(), Arc::clone(&output));
        let is_closed = Arc::<AtomicBool>::default();
        let stop = Arc::clone(&is_closed);
        // Reads until the terminal is closed, so that the program does not block on its output.
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while !stop.load(Ordering::Relaxed) {
                if !has_input(&source) {
                    continue;
                }
                let Ok(length @ 1..) = source.read(&mut buffer) else { break };
                target.lock().unwrap().extend(&buffer[..length]);
            }
        });
        Self { child, terminal: Some(terminal), output, is_closed, reader: Some(reader) }
    }

    /// Types these characters.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn type_keys(&mut self, keys: &[u8]) {
        self.terminal.as_mut().unwrap().write_all(keys).unwrap();
    }

    /// Sends a signal to the program.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: passes two numbers; the child is not reaped yet, so the number is its.
        assert_eq!(unsafe { libc::kill(self.child.id().try_into().unwrap(), signal) }, 0);
    }

    /// Everything that the program has written so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// Waits until the output contains `text`.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.output().contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} in {:?}", self.output());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Closes the terminal, as its window does, and waits until the program has exited.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn close(mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.reader.take().unwrap().join().unwrap();
        self.terminal = None;
        self.wait();
    }

    /// Waits until the program has exited. Returns its status and everything that it has written.
    pub(crate) fn finish(mut self) -> (ExitStatus, String) {
        let status = self.wait();
        self.reader.take().unwrap().join().unwrap();
        (status, self.output())
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the program did not exit: {:?}", self.output());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits for output of the program, or its end, for 10 ms.
fn has_input(terminal: &File) -> bool {
    let mut polled = libc::pollfd { fd: terminal.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which `terminal` keeps open.
    unsafe { libc::poll(&raw mut polled, 1, 10) > 0 }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
