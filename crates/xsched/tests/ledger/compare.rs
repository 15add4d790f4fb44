//! Compares what two runs of a program executed, for example with and without `XSched`.
//!
//! Times differ, and so do packets that are not work: `XSched` records events on the program's streams, which are barrier
//! packets, and its stop points are barrier packets that wait for a value (level 2). The runtime adds barriers of its own,
//! depending on what has completed when it submits work. So the ledgers are compared in their kernels:
//!
//! 1. *The same kernels*: as often, by device, name and label. `XSched` launches none, so nothing is exempt.
//! 2. *The same order in each queue* ([`same_queues`]): the sequences of kernels of the queues are equal; the queues' numbers
//!    may differ. This holds for programs whose streams are assigned to queues in a fixed order, which is so with one thread.
//! 3. *The same dependencies* ([`same_dependencies`]): one kernel precedes another if the packets force it to: by the barrier
//!    bit, a barrier packet between them, or a chain of signals. The relation is equal, restricted to labelled kernels,
//!    except for pairs whose first kernel had ended before the second was submitted, in the run that lacks the pair: the
//!    runtime omits the wait for an event that has completed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Kind, Ledger, Packet, PacketId, Queue};

/// A kernel without its place and time.
type Work<'a> = (u32, &'a str, Option<u64>);

fn work(packet: &Packet) -> Work<'_> {
    (packet.agent, &packet.kernel, packet.label)
}

fn counted(ledger: &Ledger) -> BTreeMap<Work<'_>, usize> {
    let mut counts = BTreeMap::new();
    for kernel in ledger.kernels() {
        *counts.entry(work(kernel)).or_default() += 1;
    }
    counts
}

/// The same kernels were executed as often (1).
pub(crate) fn same_work(one: &Ledger, other: &Ledger) -> Result<(), String> {
    let (one, other) = (counted(one), counted(other));
    for name in one.keys().chain(other.keys()) {
        let (first, second) = (one.get(name).unwrap_or(&0), other.get(name).unwrap_or(&0));
        if first != second {
            return Err(format!(
                "{name:?} was executed {first} times in one run and {second} times in the other"
            ));
        }
    }
    Ok(())
}

fn sequences(ledger: &Ledger) -> Vec<Vec<Work<'_>>> {
    let kernels = |packets: &Vec<&Packet>| -> Vec<usize> {
        (0..packets.len()).filter(|n| packets[*n].kind == Kind::Kernel).collect()
    };
    let queues = ledger.queues();
    let mut sequences: Vec<Vec<Work<'_>>> = queues
        .values()
        .map(|packets| kernels(packets).into_iter().map(|n| work(packets[n])).collect())
        .filter(|sequence: &Vec<_>| !sequence.is_empty())
        .collect();
    sequences.sort();
    sequences
}

/// The queues executed the same sequences of kernels (2).
pub(crate) fn same_queues(one: &Ledger, other: &Ledger) -> Result<(), String> {
    let (one, other) = (sequences(one), sequences(other));
    if one.len() != other.len() {
        return Err(format!("{} queues with kernels in one run and {} in the other", one.len(), other.len()));
    }
    for (first, second) in one.iter().zip(&other) {
        if let Some(n) = first.iter().zip(second).position(|(a, b)| a != b) {
            return Err(format!(
                "kernel {n} of a queue is {:?} in one run and {:?} in the other",
                first[n], second[n]
            ));
        }
        if first.len() != second.len() {
            return Err(format!(
                "a queue executed {} kernels in one run and {} in the other",
                first.len(),
                second.len()
            ));
        }
    }
    Ok(())
}

/// A labelled kernel: its label, and how many executions of the label started before.
type Labelled = (u64, usize);

/// The kernels that packets force to end before each labelled kernel starts, with the times of the kernels.
struct Dependencies {
    before: HashMap<Labelled, BTreeSet<Labelled>>,
    /// When each kernel was submitted, and when it ended.
    times: HashMap<Labelled, (u64, u64)>,
}

fn names(ledger: &Ledger) -> HashMap<PacketId, Labelled> {
    let mut labelled: Vec<&Packet> = ledger.kernels().filter(|kernel| kernel.label.is_some()).collect();
    labelled.sort_by_key(|kernel| kernel.start);
    let mut executions: HashMap<u64, usize> = HashMap::new();
    let mut name = |packet: &&Packet| {
        let label = packet.label?;
        let number = executions.entry(label).or_default();
        *number += 1;
        Some((packet.id, (label, *number - 1)))
    };
    labelled.iter().filter_map(&mut name).collect()
}

/// Computes, for each packet in the order in which packets ended, which labelled kernels must have ended before it starts and
/// before it ends. Packets end after everything that they wait for, so one pass is enough.
fn dependencies(ledger: &Ledger) -> Dependencies {
    let names = names(ledger);
    let (mut before, mut times) = (HashMap::new(), HashMap::new());
    // What ends before packets behind the last barrier of each queue start, and what all packets of a queue imply.
    let mut behind_barrier: HashMap<Queue, BTreeSet<Labelled>> = HashMap::new();
    let mut all_of_queue: HashMap<Queue, BTreeSet<Labelled>> = HashMap::new();
    let mut at_end: HashMap<PacketId, BTreeSet<Labelled>> = HashMap::new();
    let mut packets: Vec<&Packet> = ledger.packets.iter().collect();
    // A queue's packets stay in its order, and a packet that ends at the same instant as another may depend on it only
    // if it was appended later.
    packets.sort_by_key(|packet| packet.end);
    for packet in packets {
        let queue = packet.id.queue;
        let mut at_start = behind_barrier.get(&queue).cloned().unwrap_or_default();
        if packet.has_barrier_bit && queue != Queue::Copies {
            at_start.extend(all_of_queue.get(&queue).into_iter().flatten());
        }
        let mut end = at_start.clone();
        if packet.kind != Kind::BarrierOr {
            let known = packet.awaited().filter_map(|id| at_end.get(&id));
            end.extend(known.flatten());
        }
        if let Some(name) = names.get(&packet.id) {
            before.insert(*name, at_start);
            times.insert(*name, (packet.submitted, packet.end));
            end.insert(*name);
        }
        if queue != Queue::Copies {
            all_of_queue.entry(queue).or_default().extend(end.iter().copied());
            if packet.kind.is_barrier() {
                behind_barrier.entry(queue).or_default().extend(end.iter().copied());
            }
        }
        at_end.insert(packet.id, end);
    }
    Dependencies { before, times }
}

/// The packets force the same order of labelled kernels (3).
pub(crate) fn same_dependencies(one: &Ledger, other: &Ledger) -> Result<(), String> {
    let (one, other) = (dependencies(one), dependencies(other));
    for (has, lacks) in [(&one, &other), (&other, &one)] {
        for (kernel, before) in &has.before {
            let Some(in_other) = lacks.before.get(kernel) else {
                return Err(format!("{kernel:?} was executed in one run only"));
            };
            for earlier in before.difference(in_other) {
                let (Some((submitted, _)), Some((_, end))) =
                    (lacks.times.get(kernel), lacks.times.get(earlier))
                else {
                    return Err(format!("{earlier:?} was executed in one run only"));
                };
                if end > submitted {
                    return Err(format!("{kernel:?} follows {earlier:?} in one run, but not in the other"));
                }
            }
        }
    }
    Ok(())
}
