//! A program on the stage: what it says, and its end.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What does not come within this time will not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that is killed at the end of its scene, however that ends.
pub(crate) struct Actor {
    pub(crate) child: Child,
    pub(crate) lines: Receiver<String>,
}

impl Actor {
    pub(crate) fn enter(mut command: Command) -> Self {
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

    /// What it says next, which must come.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }

    pub(crate) fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn ends_well(&mut self) {
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    /// As hard as can be.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What it says until its end, which must be a good one.
    pub(crate) fn rest(mut self) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it is stuck, after {said:?}"),
            }
        }
        assert!(self.child.wait().unwrap().success(), "{said:?}");
        said
    }

    /// How long its requests took, in microseconds, the shortest first.
    pub(crate) fn latencies(self) -> Vec<u64> {
        let told = std::iter::from_fn(|| Some(self.line())).take_while(|line| line != "idle");
        let mut all: Vec<u64> = told.map(|line| line.parse().unwrap()).collect();
        all.sort_unstable();
        all
    }

    /// How many lines it says in a second, while something else takes place. It must not say more than is read here.
    pub(crate) fn pace<R>(&self, meanwhile: impl FnOnce() -> R) -> (f64, R) {
        let (paces, result) = Self::paces(&[self], meanwhile);
        (paces[0], result)
    }

    /// The same of several.
    pub(crate) fn paces<R>(actors: &[&Self], meanwhile: impl FnOnce() -> R) -> (Vec<f64>, R) {
        // What was said before does not count.
        for actor in actors {
            actor.lines.try_iter().for_each(drop);
        }
        let begun = Instant::now();
        let result = meanwhile();
        let seconds = begun.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "few enough")]
        let said = actors.iter().map(|actor| actor.lines.try_iter().count() as f64 / seconds);
        (said.collect(), result)
    }

    /// Some seconds, after each of which all of them have said something. On a busy machine that may come late.
    pub(crate) fn none_stands_still(actors: &[Self]) {
        for second in 1..=4 {
            let all: Vec<_> = actors.iter().collect();
            let (paces, ()) = Self::paces(&all, || std::thread::sleep(Duration::from_secs(1)));
            println!("rounds in second {second}: {paces:.0?}");
            let silent = actors.iter().zip(paces).filter(|(_, pace)| *pace == 0.0);
            silent.for_each(|(actor, _)| drop(actor.line()));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
