//! Several streams, threads and devices in one program, scheduled and unscheduled, on the stand-in for NVIDIA's driver.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::process::Command;
use std::time::Duration;

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use measured::{percentile, require, retry_comparison};
use test_program::TestProgram;
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Status, TaskState, TaskStatus};

fn stdout_of(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The order in which the kernels of a stream of high priority (`h`) and of low priority (`l`) ran. Each ran once.
fn kernel_order(command: Command) -> String {
    let order = stdout_of(command);
    assert_eq!(order.matches('h').count(), 8, "{order}");
    assert_eq!(order.matches('l').count(), 8, "{order}");
    order
}

#[test]
fn streams_run_in_the_order_of_their_own_priorities() {
    const ORDER: [&str; 2] = ["streams", "order"];
    // The first kernel starts before the kernels of high priority are launched.
    const EXPECTED: &str = "lhhhhhhhhlllllll\n";
    let check_order = |command: &dyn Fn() -> Command| {
        retry_comparison(
            || kernel_order(command()),
            |order| require(order == EXPECTED, || format!("{:?}: {order}", command())),
        );
    };
    let bare = CudaMachine::new(TestEnvironment::without_service());
    check_order(&|| bare.direct(&ORDER));
    let machine = CudaMachine::new(TestEnvironment::with_service());
    for level in [&["--level", "1"][..], &["--level", "2"], &[]] {
        check_order(&|| machine.run(level, &ORDER));
    }
    // A program of higher priority preempts it; the order of its streams stays.
    let leader = ["foreground", "stream", "1000", "2", "1000", "10000"];
    let leader = TestProgram::spawn(machine.run(&["--priority", "high"], &leader));
    leader.next_line();
    for level in ["1", "2", "auto"] {
        let measure = || {
            let mut command = machine.run(&["--priority", "low", "--level", level], &ORDER);
            // A kernel that is not launched cannot overtake: the window has room for all kernels.
            command.env("XSCHED_AUTO_XQUEUE_THRESHOLD", "64").env("XSCHED_AUTO_XQUEUE_BATCH_SIZE", "8");
            let order = kernel_order(command);
            println!("level {level}, beside a leader: {order}");
            order
        };
        retry_comparison(measure, |order| {
            // A stream runs no kernel while it passes a marker: a kernel of the other stream may start at each marker.
            let last_high = order.rfind('h').expect("the order has kernels of high priority");
            let low_before = order[..last_high].matches('l').count();
            require(order.starts_with("lh") && low_before <= 5, || format!("level {level}: {order}"))
        });
    }
}

#[test]
fn queue_with_its_own_priority_is_its_own_task() {
    let measure = || {
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let pair = TestProgram::spawn(machine.run(&["--name", "pair"], &["streams", "pair", "1000"]));
        let rounds = || {
            pair.lines.try_iter().for_each(drop);
            std::thread::sleep(Duration::from_millis(800));
            let mut rounds = [0_usize; 2];
            for line in pair.lines.try_iter() {
                rounds[usize::from(line.starts_with('b'))] += 1;
            }
            rounds
        };
        wait_until("the service knows both queues", || machine.env.status().queues.len() == 2);
        let equal = rounds();
        let queue = machine.env.status().queues[0].handle;
        let hint_request = HintRequest { priority: Some(50), ..HintRequest::default() };
        assert_eq!(machine.env.request(&Request::SetQueue { queue, hint_request }), Reply::Done);
        let tasks = machine.env.status().tasks;
        let own: Vec<_> = tasks.iter().filter(|task| task.own).collect();
        assert_eq!((tasks.len(), own.len(), own[0].priority, own[0].queues), (2, 1, 50, 1), "{tasks:?}");
        let unequal = rounds();
        println!("rounds of 4 ms: {equal:?}, and {unequal:?} with different priorities");
        (equal, unequal)
    };
    retry_comparison(measure, |(equal, unequal)| {
        let is_equal = 2 * equal.iter().min().unwrap() > *equal.iter().max().unwrap();
        require(is_equal, || format!("queues of equal priority differ: {equal:?}"))?;
        require(unequal.iter().max().unwrap() > &(4 * unequal.iter().min().unwrap()), || {
            format!("the queue of higher priority has no precedence: {unequal:?}")
        })
    });
}

#[test]
fn stream_with_gaps_and_its_own_priority_has_precedence_each_time() {
    let measure = || {
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let server = TestProgram::spawn(machine.run(&["--name", "server"], &["streams", "server", "1000"]));
        // The median of 25 requests, after 5 for warming up.
        let median = || {
            server.lines.try_iter().for_each(drop);
            let mut latencies: Vec<u64> =
                (0..30).map(|_| server.next_line().parse().unwrap()).skip(5).collect();
            latencies.sort_unstable();
            percentile(&latencies, 50)
        };
        wait_until("the service knows both queues", || machine.env.status().queues.len() == 2);
        let equal = median();
        let queue = machine.env.status().queues.iter().map(|queue| queue.handle).min().unwrap();
        let hint_request = HintRequest { priority: Some(50), ..HintRequest::default() };
        assert_eq!(machine.env.request(&Request::SetQueue { queue, hint_request }), Reply::Done);
        let preferred = median();
        println!("requests of 8 ms: {equal} us beside a peer, {preferred} us with higher priority");
        (equal, preferred)
    };
    retry_comparison(measure, |(equal, preferred)| {
        require(4 * preferred < 3 * equal, || {
            format!("no precedence: {preferred} us with higher priority, {equal} us without")
        })
    });
}

#[test]
fn per_thread_default_streams_are_removed_with_their_threads() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let mut threads = TestProgram::spawn(machine.run(&["--name", "threads"], &["threads", "6"]));
    assert_eq!(threads.next_line(), "ready");
    // Under contention the service tracks the queues of every task.
    let leader = ["foreground", "stream", "10000", "1", "1000", "5000"];
    let leader = TestProgram::spawn(machine.run(&["--priority", "high"], &leader));
    leader.next_line();
    let task = || machine.env.status().tasks.into_iter().find(|task| task.name == "threads");
    for round in 0..4 {
        threads.send_newline();
        assert_eq!(threads.next_line(), "done");
        assert_eq!(task().unwrap().queues, 6, "round {round}: one for each thread");
        wait_until("the queues are idle", || task().unwrap().state == TaskState::Idle);
        threads.send_newline();
        assert_eq!(threads.next_line(), "ended", "wrong data");
        wait_until("the queues are removed", || task().is_none_or(|task| task.queues == 0));
    }
    drop(threads.child.stdin.take());
    threads.expect_success();
}

/// The ID of a device of the stand-in.
fn device(number: u32) -> u64 {
    DeviceId::new(DeviceKind::Gpu, (6 + number) << 3).0
}

fn tasks_named<'a>(status: &'a Status, name: &str) -> Vec<&'a TaskStatus> {
    status.tasks.iter().filter(|task| task.name == name).collect()
}

/// How many rounds of 2 ms per second a batch on one device makes beside a program of high priority on this or another one.
fn batch_rate(policy: &str, batch_on: &str, leader_on: &str, is_held: bool) -> f64 {
    let machine = CudaMachine::with_devices(TestEnvironment::with_service(), "2");
    let policy = Request::Policy { name: Some(policy.to_owned()), timeslice_us: None, k: None };
    assert!(matches!(machine.env.request(&policy), Reply::Policy { .. }));
    let mut low = machine.run(&["--priority", "low", "--name", "low"], &["load", "batch", "4", "500"]);
    let batch = TestProgram::spawn({
        low.env("CUDA_VISIBLE_DEVICES", batch_on);
        low
    });
    batch.next_line();
    // Never idle during the test.
    let mut high = machine
        .run(&["--priority", "high", "--name", "high"], &["load", "requests", "1", "1000", "20000", "1"]);
    high.env("CUDA_VISIBLE_DEVICES", leader_on);
    let _leader = TestProgram::spawn(high);
    wait_until("both programs are scheduled", || machine.env.status().tasks.len() == 2);
    let status = machine.env.status();
    let number = |on: &str| u32::from(on == "1" || on.ends_with("01"));
    assert_eq!(tasks_named(&status, "low")[0].device, device(number(batch_on)), "the batch's PCI address");
    assert_eq!(tasks_named(&status, "high")[0].device, device(number(leader_on)), "the leader's PCI address");
    if is_held {
        wait_until("the batch is held", || {
            tasks_named(&machine.env.status(), "low")[0].state == TaskState::Held
        });
    }
    batch.line_rate(|| std::thread::sleep(Duration::from_millis(700))).0
}

#[test]
fn policy_decides_whether_devices_are_scheduled_separately() {
    const SECOND: &str = "GPU-7374616e-642d-696e-2047-505500000001";
    let measure = || {
        let separate = batch_rate("HPF", "1", "0", false);
        let by_uuid = batch_rate("HPF", SECOND, "0", false);
        let same_device = batch_rate("HPF", SECOND, "1", true);
        let joint = batch_rate("HHPF", "1", "0", true);
        println!(
            "rounds of 2 ms per second: {separate:.0} and {by_uuid:.0} on another device, {same_device:.0} on the \
             same device, {joint:.0} with one policy for both"
        );
        (separate, by_uuid, same_device, joint)
    };
    retry_comparison(measure, |(separate, by_uuid, same_device, joint)| {
        require(by_uuid > 0.5 * separate, || format!("by UUID {by_uuid}, by number {separate}"))?;
        for held in [same_device, joint] {
            require(separate > 10.0 * held.max(1.0), || format!("held {held}, not held {separate}"))?;
        }
        Ok(())
    });
}

#[test]
fn time_slices_change_only_on_the_contended_device() {
    let machine = CudaMachine::with_devices(TestEnvironment::with_service(), "2");
    let slices = |two: &mut TestProgram| {
        two.send_newline();
        let line = two.next_line();
        let (first, second) = line.split_once(' ').unwrap();
        [first, second].map(|us| us.parse::<u64>().unwrap())
    };
    for (order, contended) in [("0,1", 0), ("1,0", 1)] {
        let mut command = machine.run(&["--priority", "low", "--name", "two"], &["two", "500"]);
        command.env("CUDA_VISIBLE_DEVICES", order);
        let mut two = TestProgram::spawn(command);
        assert_eq!(two.next_line(), if contended == 0 { "6 7" } else { "7 6" });
        wait_until("the program uses both devices", || tasks_named(&machine.env.status(), "two").len() == 2);
        let usual = slices(&mut two);
        assert_eq!(usual[0], usual[1]);
        // On the first device of the machine, which is the second of the other program if the order is `1,0`.
        let mut leader = machine
            .run(&["--priority", "high", "--name", "high"], &["load", "requests", "1", "1000", "20000", "1"]);
        leader.env("CUDA_VISIBLE_DEVICES", "0");
        let leader = TestProgram::spawn(leader);
        let mut now = usual;
        wait_until("a time slice changes", || {
            now = slices(&mut two);
            now != usual
        });
        println!("{order}: {now:?} us beside a leader on the first device, {usual:?} us before");
        assert!(now[contended] < usual[contended] / 100, "not preempted on the contended device: {now:?}");
        assert_eq!(now[1 - contended], usual[1 - contended], "no leader is on this device");
        drop(leader);
        wait_until("the time slices are restored", || slices(&mut two) == usual);
    }
}
