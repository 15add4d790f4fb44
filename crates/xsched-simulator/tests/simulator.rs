//! The simulator: its devices behave as documented, and the policies keep their promises on them.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use xsched_core::Nanos;
use xsched_policy::{Decision, GrantMode, Needs, POLICIES, Policy, PolicyInfo, Scope, TaskView};
use xsched_simulator::{self as simulator, NATIVE, Options, Report, Spec, TaskReport};

fn spec(text: &str) -> Spec {
    Spec::from_toml(text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

fn policy(name: &str) -> &'static PolicyInfo {
    PolicyInfo::find(name).unwrap()
}

fn task<'a>(report: &'a Report, name: &str) -> &'a TaskReport {
    report.task_groups.iter().find(|row| row.name == name).unwrap()
}

/// A foreground job of 1 ms at 3 ms, against background commands of 10 ms that never end.
fn interruption(level: u8) -> Spec {
    spec(&format!(
        r#"
        duration = "100ms"
        [[device]]
        name = "gpu"
        level = {level}
        preempt = "100us"
        restore = "50us"
        [[task]]
        name = "foreground"
        arrival.periodic = {{ every = "1s", phase = "3ms" }}
        command = "1ms"
        priority = "high"
        [[task]]
        name = "background"
        arrival.closed = {{}}
        commands = 3
        command = "10ms"
        "#
    ))
}

#[test]
fn foreground_waits_for_exactly_what_the_level_cannot_stop() {
    // Level 1: the running command and one more in flight; level 2: the running one; level 3: nothing.
    for (level, latency) in [(1, 17_000 + 100 + 1_000), (2, 7_000 + 100 + 1_000), (3, 100 + 1_000)] {
        let report = simulator::run(&interruption(level), policy("HPF"));
        let foreground = task(&report, "foreground");
        assert_eq!((foreground.jobs, foreground.latency.max_ns), (1, latency * 1_000), "level {level}");
        let gpu = &report.devices[0];
        assert_eq!((gpu.preemptions, gpu.lost_ns), (1, 150_000), "level {level}");
    }
}

#[test]
fn command_interrupted_at_level_3_resumes_where_it_was() {
    let report = simulator::run(&interruption(3), policy("HPF"));
    let background = task(&report, "background");
    // Its own 30 ms, the foreground's 1 ms, and both costs.
    assert_eq!(background.latency.max_ns, 31_150_000);
    assert_eq!((background.preemptions, background.held_ns), (1, 1_100_000));
}

#[test]
fn window_bounds_the_work_in_flight_at_level_1() {
    let text = |window: &str| {
        format!(
            r#"
            duration = "100ms"
            [[device]]
            name = "gpu"
            level = 1
            window = "{window}"
            [[task]]
            name = "foreground"
            arrival.periodic = {{ every = "1s", phase = "3ms" }}
            command = "1ms"
            priority = "high"
            [[task]]
            name = "background"
            arrival.closed = {{}}
            commands = 100
            command = "200us"
            "#
        )
    };
    for (window, latency) in [("0us", 1_400), ("1ms", 2_000), ("5ms", 6_000)] {
        let report = simulator::run(&spec(&text(window)), policy("HPF"));
        assert_eq!(task(&report, "foreground").latency.max_ns, latency * 1_000, "window {window}");
    }
}

#[test]
fn native_time_slices_pay_for_each_switch() {
    let report = simulator::run(
        &spec(
            r#"
            duration = "20ms"
            [[device]]
            name = "gpu"
            level = 1
            native_slice = "2ms"
            switch = "100us"
            [[task]]
            name = "a"
            arrival.periodic = { every = "1s" }
            command = "10ms"
            [[task]]
            name = "b"
            arrival.periodic = { every = "1s" }
            commands = 10
            command = "1ms"
            "#,
        ),
        &NATIVE,
    );
    // Four slices of each, eight switches, and the last slice of `a`; `b` has not finished by then.
    assert_eq!(task(&report, "a").latency.max_ns, 18_800_000);
    assert_eq!(task(&report, "b").jobs, 0);
    assert_eq!(report.devices[0].lost_ns, 900_000);
    assert_eq!(report.all_devices.preemptions, 0);
}

#[test]
fn unfinished_job_after_its_deadline_is_a_miss() {
    let report = simulator::run(
        &spec(
            r#"
            duration = "100ms"
            [[device]]
            name = "gpu"
            level = 3
            [[task]]
            name = "starved"
            arrival.periodic = { every = "10ms" }
            command = "1ms"
            deadline = "5ms"
            priority = -256
            "#,
        ),
        policy("HPF"),
    );
    let starved = task(&report, "starved");
    // The job that arrives at the end is not late yet.
    assert_eq!((starved.jobs, starved.deadline_jobs, starved.deadline_misses), (0, 10, 10));
    assert_eq!(starved.held_ns, 100_000_000);
}

#[test]
fn custom_policy_decides_for_each_device_or_for_the_machine() {
    struct FirstReadyTask;
    impl Policy for FirstReadyTask {
        fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
            assert!(tasks.is_sorted_by_key(|task| task.id));
            if let Some(first) = tasks.iter().position(|task| task.ready) {
                out.grant(first, xsched_policy::Grant::Throttled);
            }
        }
    }
    const fn info(scope: Scope) -> PolicyInfo {
        PolicyInfo {
            name: "first",
            plain: "first",
            number: 99,
            scope,
            work_conserving: true,
            grant_mode: GrantMode::Exclusive,
            selection: xsched_policy::Selection::Precedence,
            needs: Needs::NOTHING,
            summary: "the first ready task runs",
            make: || Box::new(FirstReadyTask),
        }
    }
    static PER_DEVICE: PolicyInfo = info(Scope::Device);
    static PER_MACHINE: PolicyInfo = info(Scope::Machine);
    let spec = spec(
        r#"
        duration = "1s"
        [[device]]
        name = "gpu"
        count = 4
        devices_per_machine = 2
        level = 3
        [[task]]
        name = "work"
        count = 8
        arrival.closed = {}
        command = "1ms"
        "#,
    );
    let busy = |policy| {
        let report = simulator::run(&spec, policy);
        report.all_devices.busy_ns / report.duration_ns
    };
    assert_eq!((busy(&PER_DEVICE), busy(&PER_MACHINE)), (4, 2));
}

#[test]
fn warm_up_is_not_measured() {
    let text = |top: &str| {
        format!(
            r#"
            {top}
            [[device]]
            name = "gpu"
            level = 3
            [[task]]
            name = "steady"
            arrival.periodic = {{ every = "10ms" }}
            command = "4ms"
            "#
        )
    };
    let whole = simulator::run(&spec(&text("duration = \"1s\"")), policy("HPF"));
    let warm = simulator::run(&spec(&text("duration = \"2s\"\nwarmup = \"1s\"")), policy("HPF"));
    assert_eq!(task(&whole, "steady").used_ns, task(&warm, "steady").used_ns);
    assert_eq!(task(&warm, "steady").jobs, 100);
    assert_eq!(warm.all_devices.busy_ns + warm.all_devices.idle_ns, 1_000_000_000);
}

/// Three tasks that always have work, each of a process of its own.
fn three_busy_tasks(k: u32) -> Spec {
    spec(&format!(
        r#"
        duration = "1s"
        policy.k = {k}
        [[device]]
        name = "gpu"
        level = 2
        native_slice = "2ms"
        [[task]]
        name = "first"
        arrival.closed = {{}}
        command = "1ms"
        deadline = "1ms"
        [[task]]
        name = "second"
        arrival.closed = {{}}
        command = "1ms"
        deadline = "2ms"
        [[task]]
        name = "third"
        arrival.closed = {{}}
        command = "1ms"
        deadline = "10s"
        "#
    ))
}

#[test]
fn deadline_policy_runs_k_tasks_at_the_same_time() {
    let report = simulator::run(&three_busy_tasks(2), policy("KEDF"));
    let [first, second, third] = ["first", "second", "third"].map(|name| task(&report, name).held_ns);
    assert_eq!((first, second), (0, 0), "two tasks run");
    assert!(third > 900_000_000, "the third task is held, but only for {third} ns");
    let report = simulator::run(&three_busy_tasks(3), policy("KEDF"));
    assert_eq!(report.all_tasks.held_ns, 0, "with k = 3 no task is held");
}

#[test]
fn throttled_processes_run_one_at_a_time_in_slices_of_200_ms() {
    let text = r#"
        duration = "1s"
        [[device]]
        name = "gpu"
        level = 3
        [[task]]
        name = "important"
        arrival.periodic = { every = "10s", phase = "5s" }
        command = "1ms"
        priority = "high"
        [[task]]
        name = "background"
        count = 2
        arrival.closed = {}
        command = "1ms"
    "#;
    let report = simulator::run(&spec(text), policy("HPF"));
    let background = task(&report, "background");
    assert_eq!((report.devices[0].switches, background.preemptions), (5, 5), "5 slices end in 1 s");
    assert_eq!(background.held_ns, 1_000_000_000, "one of the two is always held");
    assert_eq!(report.all_devices.idle_ns, 0);
}

#[test]
fn short_idle_gaps_keep_lower_priorities_off_the_device() {
    let text = |think: &str| {
        format!(
            r#"
            duration = "1s"
            [[device]]
            name = "gpu"
            level = 3
            [[task]]
            name = "important"
            arrival.closed = {{ think = "{think}" }}
            command = "1ms"
            priority = "high"
            [[task]]
            name = "background"
            arrival.closed = {{}}
            command = "1ms"
            "#
        )
    };
    let switches = |think: &str| simulator::run(&spec(&text(think)), policy("HPF")).devices[0].switches;
    assert!(switches("200us") < 10, "{} switches with gaps of 200 us", switches("200us"));
    assert!(switches("3ms") > 400, "{} switches with gaps of 3 ms", switches("3ms"));
}

#[test]
fn deadline_policy_does_not_wait_in_the_idle_gap_of_a_task_that_met_its_deadline() {
    let text = r#"
        duration = "1s"
        [[device]]
        name = "gpu"
        level = 3
        [[task]]
        name = "short"
        arrival.periodic = { every = "1ms" }
        command = "100us"
        deadline = "900us"
        [[task]]
        name = "long"
        arrival.periodic = { every = "1ms", phase = "110us" }
        command = "500us"
        deadline = "900us"
    "#;
    let report = simulator::run(&spec(text), policy("KEDF"));
    assert!(report.all_tasks.deadline_jobs > 1_900);
    assert_eq!(report.all_tasks.deadline_misses, 0);
}

const SERVING: &str = r#"
    [[task]]
    name = "serving"
    arrival.poisson = { mean = "50ms" }
    commands = 50
    command.lognormal = { median = "190us", sigma = 0.3 }
    priority = "high"
"#;

/// Serving, with or without training beside it.
fn serving(level: u8, beside: bool) -> Spec {
    let training = r#"
        [[task]]
        name = "training"
        arrival.closed = {}
        commands = 20
        command.uniform = { min = "1ms", max = "20ms" }
        priority = "low"
    "#;
    let beside = if beside { training } else { "" };
    spec(&format!(
        r#"
        duration = "60s"
        seed = 3
        [[device]]
        name = "gpu"
        level = {level}
        preempt = "20us"
        restore = "20us"
        switch = "180us"
        {SERVING}
        {beside}
        "#
    ))
}

#[test]
fn priority_policy_at_level_3_keeps_the_foreground_latency() {
    let p99 = |report: &Report| task(report, "serving").latency.p99_ns as f64;
    let alone = p99(&simulator::run(&serving(3, false), policy("HPF")));
    let beside = p99(&simulator::run(&serving(3, true), policy("HPF")));
    let native = p99(&simulator::run(&serving(3, true), &NATIVE));
    assert!(beside <= 1.1 * alone, "{beside} beside training, {alone} alone");
    assert!(native >= 1.5 * alone, "{native} natively, {alone} alone");
}

#[test]
fn higher_level_is_never_slower() {
    let latency = |level| {
        let report = simulator::run(&serving(level, true), policy("HPF"));
        let latency = task(&report, "serving").latency;
        (latency.p50_ns, latency.p99_ns)
    };
    let (one, two, three) = (latency(1), latency(2), latency(3));
    assert!(one.0 > two.0 && two.0 > three.0, "p50: {one:?} {two:?} {three:?}");
    assert!(one.1 > two.1 && two.1 > three.1, "p99: {one:?} {two:?} {three:?}");
}

/// Tasks that always have work, with commands of different lengths, one for each hint.
fn busy(level: u8, hints: &[String]) -> Spec {
    let tasks = hints.iter().zip([400, 900, 250]).enumerate().map(|(n, (hint, mean))| {
        format!(
            r#"
            [[task]]
            name = "task-{n}"
            arrival.closed = {{}}
            commands = {commands}
            command.exponential = {{ mean = "{mean}us" }}
            {hint}
            "#,
            commands = 3 + 4 * n
        )
    });
    spec(&format!(
        r#"
        duration = "60s"
        seed = 5
        [[device]]
        name = "gpu"
        level = {level}
        preempt = "20us"
        switch = "50us"
        {}
        "#,
        tasks.collect::<String>()
    ))
}

/// The largest difference between the utilization of a task and its share, in points.
fn share_error(report: &Report, targets: &[f64]) -> f64 {
    let used = report.all_tasks.used_ns as f64;
    let requested: f64 = targets.iter().sum();
    let errors = report
        .task_groups
        .iter()
        .zip(targets)
        .map(|(row, target)| 100.0 * (row.used_ns as f64 / used - target / requested).abs());
    errors.fold(0.0, f64::max)
}

const SHARES: [&[u8]; 4] = [&[50, 50], &[75, 25], &[60, 30, 10], &[90, 10]];

#[test]
fn utilization_is_within_1_point_of_the_requested_share() {
    for name in ["UP", "PUP", "SPUP"] {
        for (shares, level) in SHARES.iter().flat_map(|shares| [1, 2, 3].map(|level| (shares, level))) {
            let hints: Vec<_> = shares.iter().map(|share| format!("share = {share}")).collect();
            let targets: Vec<_> = shares.iter().map(|share| f64::from(*share)).collect();
            let report = simulator::run(&busy(level, &hints), policy(name));
            let error = share_error(&report, &targets);
            assert!(error <= 1.0, "{name} {shares:?} at level {level}: off by {error:.2} points");
        }
    }
}

#[test]
fn fair_policy_shares_by_weight() {
    // Steps of priority that are near the same shares; the targets follow from the steps.
    for priorities in [&[0, 0][..], &[6, 0], &[10, 6, 0], &[12, 0]] {
        for level in [1, 2, 3] {
            let hints: Vec<_> = priorities.iter().map(|priority| format!("priority = {priority}")).collect();
            let targets: Vec<_> = priorities.iter().map(|priority| 1.2_f64.powi(*priority)).collect();
            let report = simulator::run(&busy(level, &hints), policy("CFS"));
            let error = share_error(&report, &targets);
            assert!(error <= 1.0, "CFS {priorities:?} at level {level}: off by {error:.2} points");
        }
    }
}

/// A periodic task in microseconds, its deadline no later than its period.
#[derive(Clone, Debug)]
struct Periodic {
    every: u64,
    deadline: u64,
    phase: u64,
    commands: u64,
    weight: u64,
}

fn periodic() -> impl Strategy<Value = Periodic> {
    (1_000_u64..50_000, 20_u64..=100, 0_u64..50_000, 1_u64..5, 1_u64..100).prop_map(
        |(every, percent, phase, commands, weight)| Periodic {
            every,
            deadline: every * percent / 100,
            phase,
            commands,
            weight,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A density below 1 is enough for the earliest deadline first to meet all deadlines, whatever the phases.
    #[test]
    fn deadline_policy_misses_no_feasible_deadline(
        tasks in prop::collection::vec(periodic(), 1..8),
        density in 10_u64..100,
    ) {
        let weights: u64 = tasks.iter().map(|task| task.weight).sum();
        let entries = tasks.iter().enumerate().filter_map(|(n, task)| {
            let work = task.deadline * density * task.weight / (100 * weights);
            let length = work / task.commands;
            (length > 0).then(|| format!(
                r#"
                [[task]]
                name = "task-{n}"
                arrival.periodic = {{ every = "{}us", phase = "{}us" }}
                commands = {}
                command = "{length}us"
                deadline = "{}us"
                "#,
                task.every, task.phase, task.commands, task.deadline
            ))
        });
        let entries: String = entries.collect();
        prop_assume!(!entries.is_empty());
        let text = format!("duration = \"1s\"\n[[device]]\nname = \"gpu\"\nlevel = 3\n{entries}");
        let report = simulator::run(&spec(&text), policy("KEDF"));
        prop_assert!(report.all_tasks.deadline_jobs > 0);
        prop_assert_eq!(report.all_tasks.deadline_misses, 0, "{}", text);
    }

    /// Device time adds up under every policy and at every level.
    #[test]
    fn device_time_is_busy_lost_or_idle(
        which in 0..=POLICIES.len(),
        level in 1..=3,
        costs in (0_u64..500, 0_u64..500, 0_u64..500),
        warmup in 0_u64..400,
        seed in 0..=i64::MAX,
    ) {
        let text = format!(
            r#"
            duration = "500ms"
            warmup = "{warmup}ms"
            seed = {seed}
            [[device]]
            name = "gpu"
            count = 2
            level = {level}
            preempt = "{}us"
            restore = "{}us"
            switch = "{}us"
            [[task]]
            name = "open"
            count = 3
            arrival.poisson = {{ mean = "10ms" }}
            commands = 3
            command.exponential = {{ mean = "700us" }}
            deadline = "8ms"
            priority = 20
            focused = true
            [[task]]
            name = "closed"
            count = 4
            arrival.closed = {{ think = "1ms" }}
            commands = 4
            command.lognormal = {{ median = "2ms", sigma = 1.0 }}
            share = 30
            laxity = {{ span = "5ms", lax = 0, critical = 50 }}
            [[task]]
            name = "regular"
            count = 2
            arrival.periodic = {{ every = "7ms", jitter = "7ms" }}
            command.list = ["100us", "3ms"]
            nice = -5
            "#,
            costs.0, costs.1, costs.2
        );
        let policy = POLICIES.get(which).unwrap_or(&NATIVE);
        let report = simulator::run(&spec(&text), policy);
        let measured = report.duration_ns - report.warmup_ns;
        for device in &report.devices {
            prop_assert_eq!(device.busy_ns + device.lost_ns + device.idle_ns, measured, "{}", report.policy);
        }
        prop_assert_eq!(report.all_tasks.used_ns, report.all_devices.busy_ns);
        let each: u64 = report.tasks.iter().map(|task| task.used_ns).sum();
        prop_assert_eq!(each, report.all_tasks.used_ns);
        prop_assert_eq!(report.all_tasks.preemptions, report.all_devices.preemptions);
    }

    /// No text makes the parser panic.
    #[test]
    fn no_text_makes_the_parser_panic(text in "(duration|\\[\\[device\\]\\]|\\[\\[task\\]\\]|name|level|=|\"|[a-z0-9 .–{}\n-]){0,60}") {
        let _ = Spec::from_toml(&text);
    }
}

#[test]
fn result_depends_only_on_the_seed() {
    let fleet = spec(
        r#"
        duration = "1s"
        [[device]]
        name = "gpu"
        count = 40
        devices_per_machine = 4
        level = 2
        switch = "50us"
        [[task]]
        name = "a"
        count = 150
        arrival.poisson = { mean = "20ms" }
        command.exponential = { mean = "2ms" }
        [[task]]
        name = "b"
        count = 80
        arrival.closed = {}
        command.uniform = { min = "1ms", max = "3ms" }
        priority = "low"
        "#,
    );
    for name in ["HPF", "HHPF", "CFS"] {
        let run = |threads| {
            let options =
                Options { threads: NonZeroUsize::new(threads), every_task: true, ..Options::default() };
            simulator::run_with(&fleet, policy(name), &options)
        };
        let one = run(1);
        assert_eq!(one.tasks.len(), 230);
        assert_eq!(one, run(1), "{name}");
        assert_eq!(one, run(2), "{name}");
        assert_eq!(one, run(7), "{name}");
        let other = simulator::run(&fleet.clone().with_seed(1), policy(name));
        assert_ne!(one.all_tasks, other.all_tasks, "{name}");
    }
}

#[test]
fn many_tasks_are_reported_by_group_unless_requested() {
    let text = r#"
        duration = "10ms"
        [[device]]
        name = "gpu"
        level = 3
        [[task]]
        name = "t"
        count = 201
        arrival.closed = {}
        command = "1ms"
    "#;
    let report = simulator::run(&spec(text), policy("HPF"));
    assert_eq!((report.tasks.len(), report.task_groups.len(), report.task_groups[0].count), (0, 1, 201));
    let all = Options { every_task: true, ..Options::default() };
    let report = simulator::run_with(&spec(text), policy("HPF"), &all);
    assert_eq!((report.tasks.len(), report.tasks[200].name.as_str()), (201, "t-200"));
}
