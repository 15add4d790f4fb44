//! Ledgers with planted faults: each must be found.

use super::compare::{same_dependencies, same_queues, same_work};
use super::*;

/// Two queues; the second waits for kernel 2 of the first, by a signal, before its kernels 11 and 12. A copy waits for
/// kernel 12, and kernel 3 for the copy.
const LEDGER: &str = "\
7 0 0 kernel spin - 100 200 0 1 90 1
7 0 1 kernel spin - 200 300 0 1 95 2
7 1 0 kernel spin - 100 150 0 1 90 10
7 1 1 barrier-and - 0:1 150 300 0 0 100 -
7 1 2 kernel spin - 300 400 0 1 100 11
7 1 3 kernel spin - 400 450 0 1 100 12
7 copy 0 copy - 1:3 450 500 0 0 120 -
7 0 2 barrier-and - copy:0,host 300 510 0 1 130 -
7 0 3 kernel spin - 510 600 0 1 130 3
";

fn ledger(text: &str) -> Ledger {
    read_all(text).unwrap().remove(&7).unwrap()
}

/// The ledger with a line replaced; an empty replacement removes it.
fn with(line: usize, replacement: &[&str]) -> Ledger {
    let mut lines: Vec<&str> = LEDGER.lines().collect();
    lines.splice(line..=line, replacement.iter().copied());
    ledger(&(lines.join("\n") + "\n"))
}

#[test]
fn correct_ledger_passes() {
    let ledger = ledger(LEDGER);
    assert_eq!(ledger.packets.len(), 9);
    ledger.check().unwrap();
    same_work(&ledger, &ledger).unwrap();
    same_queues(&ledger, &ledger).unwrap();
    same_dependencies(&ledger, &ledger).unwrap();
}

#[test]
fn incomplete_and_malformed_lines_are_errors() {
    assert!(read_all(LEDGER.trim_end()).unwrap_err().contains("incomplete"));
    for fault in ["7 0 0 kernel spin - 100 200 0 1 90\n", "7 0 0 kernel spin - 100 200 0 2 90 1\n", "\n"] {
        assert!(read_all(fault).unwrap_err().contains("malformed"), "{fault}");
    }
}

#[test]
fn duplicated_packet_is_found() {
    let original = ledger(LEDGER);
    for line in 0..9 {
        let text = LEDGER.lines().nth(line).unwrap();
        let fault = with(line, &[text, text]);
        assert!(fault.check().unwrap_err().contains("twice"), "line {line}");
        // The same kernel at the next position: no packet is duplicated, but the work is.
        if original.packets[line].kind == Kind::Kernel {
            assert!(same_work(&original, &fault).is_err(), "line {line}");
        }
    }
}

#[test]
fn lost_packet_is_found() {
    let original = ledger(LEDGER);
    for line in 0..9 {
        let fault = with(line, &[]);
        let is_last_of_its_queue = line == 5 || line == 6 || line == 8;
        let has_dependents = line == 5 || line == 6;
        assert_eq!(
            fault.check().is_err(),
            !is_last_of_its_queue || has_dependents,
            "line {line}: {:?}",
            fault.check()
        );
        assert_eq!(
            same_work(&original, &fault).is_err(),
            original.packets[line].kind == Kind::Kernel,
            "line {line}"
        );
    }
}

#[test]
fn reordered_kernels_are_found() {
    // Labels 1 and 2 exchanged: every packet is in order, but not the program's work.
    let mut fault = ledger(LEDGER);
    (fault.packets[0].label, fault.packets[1].label) = (Some(2), Some(1));
    fault.check().unwrap();
    same_work(&ledger(LEDGER), &fault).unwrap();
    assert!(same_queues(&ledger(LEDGER), &fault).unwrap_err().contains("kernel 0 of a queue"));
    assert!(same_dependencies(&ledger(LEDGER), &fault).is_err());
    // A kernel in another queue.
    let mut fault = ledger(LEDGER);
    fault.packets[0].label = Some(10);
    fault.packets[2].label = Some(1);
    assert!(same_queues(&ledger(LEDGER), &fault).is_err());
    // Times against the order of the queue: with the barrier bit, and without it.
    let overlapping = with(1, &["7 0 1 kernel spin - 199 300 0 1 95 2"]);
    assert!(overlapping.check().unwrap_err().contains("barrier bit"));
    let concurrent = with(1, &["7 0 1 kernel spin - 199 300 0 0 95 2"]);
    concurrent.check().unwrap();
    let reversed = with(1, &["7 0 1 kernel spin - 99 100 0 0 95 2"]);
    assert!(reversed.check().unwrap_err().contains("in front of it"));
    let too_early = with(1, &["7 0 1 kernel spin - 200 300 0 1 201 2"]);
    assert!(too_early.check().unwrap_err().contains("times"));
}

#[test]
fn violated_dependencies_are_found() {
    let barrier = with(3, &["7 1 1 barrier-and - 0:1 150 299 0 0 100 -"]);
    assert!(barrier.check().unwrap_err().contains("did not wait"));
    let behind_barrier = with(4, &["7 1 2 kernel spin - 299 400 0 0 100 11"]);
    assert!(behind_barrier.check().unwrap_err().contains("before a barrier"));
    let copy = with(6, &["7 copy 0 copy - 1:3 449 500 0 0 120 -"]);
    assert!(copy.check().unwrap_err().contains("did not wait"));
    let unknown = with(6, &["7 copy 0 copy - 1:9 450 500 0 0 120 -"]);
    assert!(unknown.check().unwrap_err().contains("missing"));
    let either = with(3, &["7 1 1 barrier-or - 0:0,0:1 150 299 0 0 100 -"]);
    either.check().unwrap();
}

#[test]
fn lost_dependency_is_found_unless_it_was_satisfied_before() {
    // Kernel 11 no longer waits for kernel 2. It was submitted before kernel 2 had ended.
    let lost = with(3, &["7 1 1 barrier-and - host 150 300 0 0 100 -"]);
    lost.check().unwrap();
    assert!(same_dependencies(&ledger(LEDGER), &lost).unwrap_err().contains("follows"));
    assert!(same_dependencies(&lost, &ledger(LEDGER)).unwrap_err().contains("follows"));
    // The runtime may omit the wait if kernels 1 and 2 ended before 11 and 12 were submitted.
    let lines: Vec<&str> = LEDGER.lines().collect();
    let late = [
        "7 1 1 barrier-and - host 150 300 0 0 100 -",
        "7 1 2 kernel spin - 300 400 0 1 300 11",
        "7 1 3 kernel spin - 400 450 0 1 300 12",
    ];
    let omitted = ledger(&([&lines[..3], &late, &lines[6..]].concat().join("\n") + "\n"));
    same_dependencies(&ledger(LEDGER), &omitted).unwrap();
}

#[test]
fn barriers_and_their_times_may_differ() {
    // One more barrier without effect, as of an event that is recorded; the positions behind it change.
    let lines: Vec<&str> = LEDGER.lines().collect();
    let more =
        ["7 0 2 barrier-and - - 300 300 0 1 96 -", "7 0 3 barrier-and - copy:0,host 300 510 0 1 130 -"];
    let last = ["7 0 4 kernel spin - 510 900 0 1 130 3"];
    let other = ledger(&([&lines[..7], &more, &last].concat().join("\n") + "\n"));
    other.check().unwrap();
    same_work(&ledger(LEDGER), &other).unwrap();
    same_queues(&ledger(LEDGER), &other).unwrap();
    same_dependencies(&ledger(LEDGER), &other).unwrap();
}

#[test]
fn declared_order_is_checked() {
    const OUTPUT: &str =
        "1#0:\n2#0: 1#0\n10#0:\n11#0: 10#0 2#0\n12#0: 11#0\n50#0: 12#0\n3#0: 50#0\nresult: 5\n";
    let order = DeclaredOrder::read(OUTPUT, "50#0 450 505\n");
    assert_eq!(order.len(), 7);
    order.check(&ledger(LEDGER)).unwrap();
    // The host function ran too early, or too late, or not at all; a kernel ran twice, or not at all.
    for host in ["50#0 449 505\n", "50#0 450 511\n", ""] {
        assert!(DeclaredOrder::read(OUTPUT, host).check(&ledger(LEDGER)).is_err());
    }
    assert!(order.check(&with(8, &[])).is_err());
    let twice = with(8, &[LEDGER.lines().nth(8).unwrap(), "7 0 4 kernel spin - 600 700 0 1 130 3"]);
    assert!(order.check(&twice).is_err());
    // Kernel 11 before kernel 2 has ended.
    let early = with(4, &["7 1 2 kernel spin - 299 400 0 1 100 11"]);
    assert!(order.check(&early).unwrap_err().contains("1 ns before"));
}
