//! The ledger: every packet that a process's queues completed, for tests.
//!
//! `ROCR_STANDIN_LEDGER=FILE` names a file to which each process appends one line per packet when the packet completes, with one
//! write, so that the ledger of a killed process ends with a whole line and lacks only what had not completed. A line has
//! these fields, separated by one space:
//!
//! | field | contents |
//! |---|---|
//! | 1 `pid` | the process, in its own pid namespace |
//! | 2 `queue` | `hsa_queue_t.id`; `copy` for a copy by a copy engine |
//! | 3 `position` | the packet's index in the queue, from 0; copies of a process are numbered from 0 when they are submitted |
//! | 4 `type` | `kernel`, `barrier-and`, `barrier-or`, `barrier-value`, `vendor` or `copy` |
//! | 5 `kernel` | the kernel's mangled name; for other packets `-`. Control characters and spaces are replaced by `_` |
//! | 6 `dependencies` | for each signal that a barrier or copy waited for, the packet that last completed it: `QUEUE:POSITION`, or `host` if the program stored to the signal; separated by commas; `-` without any |
//! | 7 `start_ns`, 8 `end_ns` | when the packet started and completed, in the time of `CLOCK_MONOTONIC` |
//! | 9 `agent` | the number of the device among those of the process |
//! | 10 `barrier` | 1 if the packet's barrier bit is set: it starts after every earlier packet of its queue has completed |
//! | 11 `submitted_ns` | when the doorbell was first rung for the packet or a later one of its queue, if by a function call, otherwise when the stand-in noticed it; when a copy was submitted |
//! | 12 `label` | the label of a test program's kernel (see `builtin_kernels`), else `-` |
//!
//! The dependencies of a barrier are known when it completes: the runtime reuses signals, but not while a packet waits for
//! them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A packet of the process: a queue and a position in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketId {
    /// A packet in a queue.
    Queue { queue: u64, position: u64 },
    /// A copy by a copy engine.
    Copy { number: u64 },
}

/// What kind of packet it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Kernel,
    BarrierAnd,
    BarrierOr,
    BarrierValue,
    Vendor,
    Copy,
}

impl PacketKind {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::BarrierAnd => "barrier-and",
            Self::BarrierOr => "barrier-or",
            Self::BarrierValue => "barrier-value",
            Self::Vendor => "vendor",
            Self::Copy => "copy",
        }
    }
}

/// A completed packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) packet: PacketId,
    pub(crate) kind: PacketKind,
    /// The name of the kernel that it dispatched.
    pub(crate) kernel: Option<&'a str>,
    pub(crate) label: Option<u64>,
    /// The handles of the signals that it waited for; 0 for none.
    pub(crate) waited_for: &'a [u64],
    /// The handle of the signal that it completes; 0 for none.
    pub(crate) completes: u64,
    pub(crate) has_barrier_bit: bool,
    pub(crate) agent: u32,
    pub(crate) submitted_ns: u64,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// The ledger of a process.
pub(crate) struct Ledger {
    file: File,
    /// What last changed each signal; signals that the program stores to are absent.
    completed_by: Mutex<HashMap<u64, PacketId>>,
}

static COPIES: AtomicU64 = AtomicU64::new(0);

/// The number of the next copy.
pub(crate) fn next_copy() -> PacketId {
    PacketId::Copy { number: COPIES.fetch_add(1, Ordering::Relaxed) }
}

/// The process's ledger, if `ROCR_STANDIN_LEDGER` names a file.
pub(crate) fn ledger() -> Option<&'static Ledger> {
    static LEDGER: OnceLock<Option<Ledger>> = OnceLock::new();
    LEDGER.get_or_init(|| Ledger::open(&std::env::var_os("ROCR_STANDIN_LEDGER")?)).as_ref()
}

impl Ledger {
    fn open(path: &std::ffi::OsStr) -> Option<Self> {
        match File::options().create(true).append(true).open(path) {
            Ok(file) => Some(Self { file, completed_by: Mutex::default() }),
            Err(error) => {
                eprintln!("rocr stand-in: cannot open the ledger {}: {error}", path.display());
                None
            }
        }
    }

    /// Notes that the program stored to a signal itself. `ROCr` itself calls this when a signal is created or destroyed.
    pub(crate) fn host_stored(&self, signal: u64) {
        self.completed_by.lock().unwrap_or_else(PoisonError::into_inner).remove(&signal);
    }

    /// Appends a packet. Call it before its completion signal is decremented, so that a dependent packet finds it.
    pub(crate) fn append(&self, record: &Record<'_>) {
        let mut completed_by = self.completed_by.lock().unwrap_or_else(PoisonError::into_inner);
        let line = line(record, &completed_by);
        if record.completes != 0 {
            completed_by.insert(record.completes, record.packet);
        }
        drop(completed_by);
        // A line is one write to a file in append mode, and is shorter than a page: lines of several processes do not mix.
        if let Err(error) = (&self.file).write_all(line.as_bytes()) {
            eprintln!("rocr stand-in: cannot write the ledger: {error}");
        }
    }
}

fn id(packet: PacketId) -> String {
    match packet {
        PacketId::Queue { queue, position } => format!("{queue}:{position}"),
        PacketId::Copy { number } => format!("copy:{number}"),
    }
}

/// Names of templates of templates have tens of thousands of characters; the first ones suffice.
const MAX_NAME_LENGTH: usize = 1000;

fn line(record: &Record<'_>, completed_by: &HashMap<u64, PacketId>) -> String {
    let packet = id(record.packet).replace(':', " ");
    let replace = |c: char| if c.is_control() || c.is_whitespace() { '_' } else { c };
    let name: String = record.kernel.unwrap_or("-").chars().take(MAX_NAME_LENGTH).map(replace).collect();
    let name = if name.is_empty() { "-" } else { &name };
    let signals = record.waited_for.iter().filter(|signal| **signal != 0);
    let producer = |signal: &u64| completed_by.get(signal).map_or_else(|| "host".to_owned(), |by| id(*by));
    let mut dependencies = signals.map(producer).collect::<Vec<_>>().join(",");
    if dependencies.is_empty() {
        dependencies.push('-');
    }
    let mut line = format!("{} {packet} {} {name} {dependencies}", std::process::id(), record.kind.name());
    let _ = write!(line, " {} {} {}", record.start_ns, record.end_ns, record.agent);
    let _ = write!(line, " {} {} ", u8::from(record.has_barrier_bit), record.submitted_ns);
    match record.label {
        Some(label) => writeln!(line, "{label}"),
        None => writeln!(line, "-"),
    }
    .unwrap_or_default();
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(packet: PacketId) -> Record<'static> {
        Record {
            packet,
            kind: PacketKind::Kernel,
            kernel: Some("_Z4spin m"),
            label: Some(7),
            waited_for: &[],
            completes: 0,
            has_barrier_bit: true,
            agent: 0,
            submitted_ns: 1,
            start_ns: 2,
            end_ns: 3,
        }
    }

    #[test]
    fn line_has_the_fields_in_the_documented_order() {
        let line = line(&record(PacketId::Queue { queue: 4, position: 5 }), &HashMap::new());
        assert_eq!(line, format!("{} 4 5 kernel _Z4spin_m - 2 3 0 1 1 7\n", std::process::id()));
    }

    #[test]
    fn dependency_is_the_packet_that_last_completed_the_signal() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ledger = Ledger::open(file.path().as_os_str()).unwrap();
        let kernel = |position| record(PacketId::Queue { queue: 1, position });
        ledger.append(&Record { completes: 100, ..kernel(0) });
        ledger.append(&Record { completes: 100, ..kernel(1) });
        ledger.append(&Record {
            completes: 200,
            kind: PacketKind::Copy,
            ..record(PacketId::Copy { number: 9 })
        });
        let barrier = Record { kind: PacketKind::BarrierAnd, kernel: None, label: None, ..kernel(2) };
        ledger.append(&Record { waited_for: &[100, 0, 200, 300], ..barrier });
        ledger.host_stored(100);
        ledger.append(&Record {
            waited_for: &[100],
            packet: PacketId::Queue { queue: 1, position: 3 },
            ..barrier
        });
        let text = std::fs::read_to_string(file.path()).unwrap();
        let dependencies: Vec<_> = text.lines().map(|line| line.split(' ').nth(5).unwrap()).collect();
        assert_eq!(dependencies, ["-", "-", "-", "1:1,copy:9,host", "host"]);
    }
}
