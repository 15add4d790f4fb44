//! The loop: makes inputs, runs a target on them, and saves the first that fails.
//!
//! The current input is in a mapped file, so that it survives a crash of this process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::mm::{MapFlags, ProtFlags};

use crate::HANG_TIMEOUT;
use crate::coverage::Coverage;
use crate::mutate::{MAX_LENGTH, Random, mutate};
use crate::targets::Target;

/// When to stop.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Time(Duration),
    Executions(u64),
}

/// What a run found.
pub(crate) struct Outcome {
    pub(crate) executions: u64,
    pub(crate) took: Duration,
    /// The CPU time that all threads of this process used.
    pub(crate) cpu: Duration,
    pub(crate) failure: Option<String>,
    /// The number of inputs in the corpus at the end.
    pub(crate) inputs: usize,
}

/// How many executions pass between two looks at the clock.
const CLOCK_INTERVAL: u64 = 64;
/// How many inputs that reach new branches are kept in memory.
const MAX_INPUTS: usize = 4096;

/// The current input, in a file that is mapped: it is still there after a crash.
struct CurrentInput {
    path: PathBuf,
    base: *mut u8,
}

impl CurrentInput {
    /// A length in 8 bytes, then the input.
    const SIZE: usize = 8 + MAX_LENGTH;

    fn create(path: PathBuf) -> anyhow::Result<Self> {
        let context = || format!("cannot create {}", path.display());
        let file = std::fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(context)?;
        file.set_len(Self::SIZE as u64).with_context(context)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses: no other code refers to it.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), Self::SIZE, access, MapFlags::SHARED, &file, 0) };
        let base = base.with_context(context)?.cast::<u8>();
        Ok(Self { path, base })
    }

    fn set(&self, input: &[u8]) {
        let length = input.len().min(MAX_LENGTH);
        // SAFETY: `create` mapped 8 + MAX_LENGTH bytes at `base`, which stay mapped until the process exits.
        unsafe {
            self.base.cast::<[u8; 8]>().write((length as u64).to_ne_bytes());
            self.base.add(8).copy_from_nonoverlapping(input.as_ptr(), length);
        }
    }
}

/// The inputs of a target that are files, in the order of their names.
fn corpus_of(directory: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display())))
        .collect()
}

/// Ends the process if one execution takes too long. The input is in the mapped file.
fn start_watchdog(target: &'static str, done: &Arc<AtomicU64>, file: PathBuf) {
    let done = Arc::clone(done);
    std::thread::spawn(move || {
        let mut last = u64::MAX;
        loop {
            std::thread::sleep(HANG_TIMEOUT);
            let now = done.load(Ordering::Relaxed);
            if now == FINISHED {
                return;
            }
            if now == last {
                println!(
                    "{target}: an execution takes more than {} s: its input is in {}",
                    HANG_TIMEOUT.as_secs(),
                    file.display()
                );
                std::process::exit(1);
            }
            last = now;
        }
    });
}

/// The value of the counter of executions at the end.
const FINISHED: u64 = u64::MAX - 1;

/// Runs a target on random inputs.
pub(crate) fn fuzz(
    target: &Target,
    seed: u64,
    limit: Limit,
    corpus: &Path,
    output: &Path,
    grows: bool,
) -> anyhow::Result<Outcome> {
    std::fs::create_dir_all(output).with_context(|| format!("cannot create {}", output.display()))?;
    let directory = corpus.join(target.name);
    let mut inputs = corpus_of(&directory)?;
    let from_files = inputs.len();
    anyhow::ensure!(from_files > 0, "{} is empty", directory.display());
    let current = CurrentInput::create(output.join(format!("{}.current", target.name)))?;
    let done = Arc::new(AtomicU64::new(0));
    start_watchdog(target.name, &done, current.path.clone());
    let mut run = (target.start)();
    let mut coverage = Coverage::new();
    let mut random = Random::new(seed);
    let (started, cpu) = (Instant::now(), cpu_time());
    let (mut executions, mut input) = (0, Vec::new());
    let failure = loop {
        // First the inputs of the corpus as they are.
        let index = usize::try_from(executions).unwrap_or(usize::MAX);
        if index < from_files {
            input.clone_from(&inputs[index]);
        } else {
            input.clone_from(&inputs[random.below(inputs.len())]);
            let other = &inputs[random.below(inputs.len())];
            mutate(&mut input, other, target.words, &mut random);
        }
        current.set(&input);
        let result = catch_unwind(AssertUnwindSafe(|| run(&input)));
        executions += 1;
        done.store(executions, Ordering::Relaxed);
        if result.is_err() {
            break Some(save(target, &input, output)?);
        }
        if coverage.is_available() && coverage.is_new() && inputs.len() < MAX_INPUTS && index >= from_files {
            if grows {
                std::fs::write(directory.join(name_of(&input)), &input)?;
            }
            inputs.push(input.clone());
        }
        let is_over = match limit {
            Limit::Executions(most) => executions >= most,
            Limit::Time(time) => executions % CLOCK_INTERVAL == 0 && started.elapsed() >= time,
        };
        if is_over {
            break None;
        }
    };
    done.store(FINISHED, Ordering::Relaxed);
    if coverage.is_available() {
        println!("{:<12} {:>12} branches reached", target.name, coverage.branches());
    }
    let _ = std::fs::remove_file(&current.path);
    let (took, cpu) = (started.elapsed(), cpu_time().saturating_sub(cpu));
    Ok(Outcome { executions, took, cpu, failure, inputs: inputs.len() })
}

/// Runs a target on the inputs in files, among them those of a process that crashed.
pub(crate) fn replay(target: &Target, files: &[PathBuf], output: &Path) -> anyhow::Result<Outcome> {
    let (started, cpu) = (Instant::now(), cpu_time());
    let mut run = (target.start)();
    let (mut executions, mut failure) = (0, None);
    for file in files {
        let mut input = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        if file.extension().is_some_and(|extension| extension == "current")
            && let Some((length, rest)) = input.split_first_chunk::<8>()
        {
            let length = usize::try_from(u64::from_ne_bytes(*length)).unwrap_or(usize::MAX);
            input = rest.get(..length).unwrap_or(rest).to_vec();
        }
        executions += 1;
        if catch_unwind(AssertUnwindSafe(|| run(&input))).is_err() {
            std::fs::create_dir_all(output)?;
            failure = Some(save(target, &input, output)?);
            break;
        }
    }
    let (took, cpu) = (started.elapsed(), cpu_time().saturating_sub(cpu));
    Ok(Outcome { executions, took, cpu, failure, inputs: executions.try_into().unwrap_or(0) })
}

/// The CPU time of this process: on a busy machine it tells more than the time that passes.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn save(target: &Target, input: &[u8], output: &Path) -> anyhow::Result<String> {
    let path = output.join(format!("{}-{}", target.name, name_of(input)));
    std::fs::write(&path, input).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!(
        "a panic: the input is in {}; run it again with `cargo run -p xsched-fuzz -- {} --replay {}`",
        path.display(),
        target.name,
        path.display()
    ))
}

/// A name for an input, the same for the same bytes: FNV-1a.
fn name_of(input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
