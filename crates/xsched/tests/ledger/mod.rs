//! Reads the ledger of the stand-in for `ROCr`, and checks what the device executed.
//!
//! `standins/rocr/src/ledger.rs` defines the format. Three questions are answered here:
//!
//! 1. [`Ledger::check`]: did each packet execute exactly once, in its queue's order, after its dependencies?
//! 2. [`DeclaredOrder::check`]: did kernels and host functions execute in the order that the program prescribed by streams,
//!    events and graphs?
//! 3. [`compare::same_work`]: does a ledger with `XSched` equal one without, except in time?

pub(crate) mod compare;
mod order;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

pub(crate) use order::DeclaredOrder;

/// A queue of a process; copies of the copy engines form one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Queue {
    Aql(u64),
    Copies,
}

/// A packet of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PacketId {
    pub(crate) queue: Queue,
    pub(crate) position: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Kernel,
    BarrierAnd,
    BarrierOr,
    BarrierValue,
    Vendor,
    Copy,
}

impl Kind {
    /// Packets behind a barrier packet of the same queue start after it has ended.
    fn is_barrier(self) -> bool {
        matches!(self, Self::BarrierAnd | Self::BarrierOr | Self::BarrierValue)
    }
}

/// What completed a signal for which a packet waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dependency {
    Packet(PacketId),
    /// The program stored to the signal.
    Host,
}

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) pid: u32,
    pub(crate) id: PacketId,
    pub(crate) kind: Kind,
    /// The mangled name, or `-`.
    pub(crate) kernel: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) agent: u32,
    pub(crate) has_barrier_bit: bool,
    pub(crate) submitted: u64,
    pub(crate) label: Option<u64>,
}

/// The packets of one process, in the order in which they completed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) packets: Vec<Packet>,
}

fn packet_id(queue: &str, position: &str) -> Option<PacketId> {
    let queue = if queue == "copy" { Queue::Copies } else { Queue::Aql(queue.parse().ok()?) };
    Some(PacketId { queue, position: position.parse().ok()? })
}

fn dependency(text: &str) -> Option<Dependency> {
    if text == "host" {
        return Some(Dependency::Host);
    }
    let (queue, position) = text.split_once(':')?;
    packet_id(queue, position).map(Dependency::Packet)
}

fn packet(line: &str) -> Option<Packet> {
    let fields: [&str; 12] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let [pid, queue, position, kind, kernel, dependencies, start, end, agent, barrier, submitted, label] =
        fields;
    let kind = match kind {
        "kernel" => Kind::Kernel,
        "barrier-and" => Kind::BarrierAnd,
        "barrier-or" => Kind::BarrierOr,
        "barrier-value" => Kind::BarrierValue,
        "vendor" => Kind::Vendor,
        "copy" => Kind::Copy,
        _ => return None,
    };
    let dependencies = match dependencies {
        "-" => Vec::new(),
        list => list.split(',').map(dependency).collect::<Option<_>>()?,
    };
    Some(Packet {
        pid: pid.parse().ok()?,
        id: packet_id(queue, position)?,
        kind,
        kernel: kernel.to_owned(),
        dependencies,
        start: start.parse().ok()?,
        end: end.parse().ok()?,
        agent: agent.parse().ok()?,
        has_barrier_bit: match barrier {
            "0" => false,
            "1" => true,
            _ => return None,
        },
        submitted: submitted.parse().ok()?,
        label: if label == "-" { None } else { Some(label.parse().ok()?) },
    })
}

/// The ledgers of the processes that wrote to a file, by process.
pub(crate) fn read_all(text: &str) -> Result<BTreeMap<u32, Ledger>, String> {
    let mut ledgers: BTreeMap<u32, Ledger> = BTreeMap::new();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(format!("the last line is incomplete: {:?}", text.lines().last()));
    }
    for line in text.lines() {
        let packet = packet(line).ok_or_else(|| format!("malformed line: {line:?}"))?;
        ledgers.entry(packet.pid).or_default().packets.push(packet);
    }
    Ok(ledgers)
}

impl Ledger {
    /// The ledger of the only process that wrote to a file.
    pub(crate) fn of_one_process(file: &Path) -> Self {
        let text =
            std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let ledgers = read_all(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(ledgers.len(), 1, "one process has a device: {:?}", ledgers.keys());
        ledgers.into_values().next().expect("one ledger")
    }

    pub(crate) fn kernels(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().filter(|packet| packet.kind == Kind::Kernel)
    }

    /// The packets of each queue, by position.
    fn queues(&self) -> BTreeMap<Queue, Vec<&Packet>> {
        let mut queues: BTreeMap<Queue, Vec<&Packet>> = BTreeMap::new();
        for packet in &self.packets {
            queues.entry(packet.id.queue).or_default().push(packet);
        }
        for packets in queues.values_mut() {
            packets.sort_by_key(|packet| packet.id.position);
        }
        queues
    }

    /// Checks that each packet executed exactly once, in its queue's order and after its dependencies:
    /// - The positions in each queue are 0, 1, 2 ... without a gap or repetition. The end of a queue is not known: packets
    ///   that a killed process left behind are not missed.
    /// - A packet starts after it was submitted, after the packet before it in its queue has started, after every earlier barrier
    ///   packet of its queue has ended, and, if its barrier bit is set, after every earlier packet has ended. The copy engines
    ///   have no such order.
    /// - A barrier ends after the packets that completed its signals (of a barrier-or, one of them) have ended. A copy starts
    ///   after them.
    ///
    /// Together these mean that a kernel starts after everything that its queue's barriers waited for.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut errors = BTreeSet::new();
        let mut ends: HashMap<PacketId, u64> = HashMap::new();
        for packet in &self.packets {
            if ends.insert(packet.id, packet.end).is_some() {
                errors.insert(format!("{:?} executed twice", packet.id));
            }
            if !(packet.submitted <= packet.start && packet.start <= packet.end) {
                errors.insert(format!("the times of {:?} are not in order", packet.id));
            }
        }
        for (queue, packets) in self.queues() {
            for (expected, packet) in (0..).zip(&packets) {
                if packet.id.position != expected {
                    errors
                        .insert(format!("{queue:?}: the packet at {expected} is missing, or executed twice"));
                    break;
                }
            }
            if queue != Queue::Copies {
                check_queue(&packets, &mut errors);
            }
        }
        for packet in &self.packets {
            packet.check_dependencies(&ends, &mut errors);
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors.into_iter().take(20).collect::<Vec<_>>().join("\n"))
        }
    }
}

impl Packet {
    /// The packets that completed the signals for which it waited.
    fn awaited(&self) -> impl Iterator<Item = PacketId> {
        self.dependencies.iter().filter_map(|dependency| match dependency {
            Dependency::Packet(id) => Some(*id),
            Dependency::Host => None,
        })
    }

    fn check_dependencies(&self, ends: &HashMap<PacketId, u64>, errors: &mut BTreeSet<String>) {
        let limit = if self.kind == Kind::Copy { self.start } else { self.end };
        let mut is_satisfied = Vec::new();
        for dependency in self.awaited() {
            match ends.get(&dependency) {
                None => {
                    errors.insert(format!("{:?} waited for {dependency:?}, which is missing", self.id));
                }
                Some(end) => is_satisfied.push(*end <= limit),
            }
        }
        let is_ok = match self.kind {
            Kind::BarrierOr => is_satisfied.is_empty() || is_satisfied.contains(&true),
            _ => !is_satisfied.contains(&false),
        };
        if !is_ok {
            errors.insert(format!("{:?} did not wait for {:?}", self.id, self.dependencies));
        }
    }
}

fn check_queue(packets: &[&Packet], errors: &mut BTreeSet<String>) {
    let (mut last_start, mut last_end, mut last_barrier_end) = (0, 0, 0);
    for packet in packets {
        if packet.start < last_start {
            errors.insert(format!("{:?} started before the packet in front of it", packet.id));
        }
        if packet.start < last_barrier_end {
            errors.insert(format!("{:?} started before a barrier in front of it ended", packet.id));
        }
        if packet.has_barrier_bit && packet.start < last_end {
            errors.insert(format!(
                "{:?} has the barrier bit and started before an earlier packet ended",
                packet.id
            ));
        }
        last_start = last_start.max(packet.start);
        last_end = last_end.max(packet.end);
        if packet.kind.is_barrier() {
            last_barrier_end = last_barrier_end.max(packet.end);
        }
    }
}
