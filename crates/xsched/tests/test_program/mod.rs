//! A program that a test runs: its output line by line, and its exit.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a program may take to print its next line.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(60);

/// A running program, killed when the test drops it.
pub(crate) struct TestProgram {
    pub(crate) child: Child,
    pub(crate) lines: Receiver<String>,
}

impl TestProgram {
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        Self { child, lines: receiver }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    pub(crate) fn next_line(&self) -> String {
        self.lines.recv_timeout(OUTPUT_TIMEOUT).expect("the program prints another line")
    }

    pub(crate) fn send_newline(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits for its exit, which must be a success.
    pub(crate) fn expect_success(&mut self) {
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    /// Kills it with `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Every line until it exits successfully.
    pub(crate) fn remaining_lines(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(OUTPUT_TIMEOUT) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("no output for {OUTPUT_TIMEOUT:?}, after {lines:?}"),
            }
        }
        assert!(self.child.wait().unwrap().success(), "{lines:?}");
        lines
    }

    /// The sorted latencies of its requests, in microseconds.
    pub(crate) fn latencies(self) -> Vec<u64> {
        let lines = std::iter::from_fn(|| Some(self.next_line())).take_while(|line| line != "idle");
        let mut latencies: Vec<u64> = lines.map(|line| line.parse().unwrap()).collect();
        latencies.sort_unstable();
        latencies
    }

    /// How many lines it prints per second while `meanwhile` runs. `meanwhile` must not read its lines.
    pub(crate) fn line_rate<R>(&self, meanwhile: impl FnOnce() -> R) -> (f64, R) {
        let (rates, result) = Self::line_rates(&[self], meanwhile);
        (rates[0], result)
    }

    /// The line rate of each of several programs.
    pub(crate) fn line_rates<R>(programs: &[&Self], meanwhile: impl FnOnce() -> R) -> (Vec<f64>, R) {
        // Lines from before the measurement do not count.
        for program in programs {
            program.lines.try_iter().for_each(drop);
        }
        let started = Instant::now();
        let result = meanwhile();
        let seconds = started.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "the number of lines is small")]
        let rates = programs.iter().map(|program| program.lines.try_iter().count() as f64 / seconds);
        (rates.collect(), result)
    }

    /// Checks for four seconds that each program prints at least a line per second. A program that printed none gets
    /// [`OUTPUT_TIMEOUT`] for it, because the machine may be busy.
    pub(crate) fn assert_all_progress(programs: &[Self]) {
        for second in 1..=4 {
            let all: Vec<_> = programs.iter().collect();
            let (rates, ()) = Self::line_rates(&all, || std::thread::sleep(Duration::from_secs(1)));
            println!("lines in second {second}: {rates:.0?}");
            let silent = programs.iter().zip(rates).filter(|(_, rate)| *rate == 0.0);
            silent.for_each(|(program, _)| drop(program.next_line()));
        }
    }
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
