//! The speed of the simulator, and its figures for the policies. Plain output, one number per line: a fleet takes too long for
//! a hundred runs.

use std::time::Instant;

use xsched_policy::{POLICIES, PolicyInfo};
use xsched_simulator::{self as simulator, NATIVE, Report, Spec};

const FLEET: &str = include_str!("../../../examples/simulations/fleet.toml");
const RUNS: usize = 3;

fn main() {
    // `cargo test --benches` runs this too, to check that it runs.
    let quick = !std::env::args().any(|arg| arg == "--bench");
    speed(quick);
    foreground(quick);
    shares(quick);
}

fn spec(text: &str, quick: bool) -> Spec {
    let spec = Spec::from_toml(text).expect("the benchmark's own file");
    let short = xsched_core::Nanos::from_millis(1_100);
    if quick { spec.with_duration(short).expect("longer than the warm-up") } else { spec }
}

fn speed(quick: bool) {
    let spec = spec(FLEET, quick);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    println!("fleet: {} devices, {} tasks, {cores} cores, best of {RUNS}", spec.devices(), spec.tasks());
    let policies = std::iter::once(&NATIVE).chain(POLICIES);
    for policy in policies.take(if quick { 2 } else { usize::MAX }) {
        let times = (0..RUNS).map(|_| {
            let start = Instant::now();
            let report = simulator::run(&spec, policy);
            (start.elapsed().as_secs_f64(), report)
        });
        let Some((best, report)) = times.min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        let virtual_s = report.duration_ns as f64 / 1e9;
        println!("  {:7} {best:6.2} s for {virtual_s:.1} s, {} jobs", report.policy, report.all_tasks.jobs);
    }
}

fn foreground(quick: bool) {
    println!("serving p99 beside training, as a multiple of alone (HPF by level, then native)");
    let p99 = |level: u8, beside: bool, policy: &'static PolicyInfo| {
        let training = r#"
            [[task]]
            name = "training"
            arrival.closed = {}
            commands = 20
            command.uniform = { min = "1ms", max = "20ms" }
            priority = "low"
        "#;
        let text = format!(
            r#"
            duration = "60s"
            [[device]]
            name = "gpu"
            level = {level}
            preempt = "20us"
            restore = "20us"
            switch = "180us"
            [[task]]
            name = "serving"
            arrival.poisson = {{ mean = "50ms" }}
            commands = 50
            command.lognormal = {{ median = "190us", sigma = 0.3 }}
            priority = "high"
            {}
            "#,
            if beside { training } else { "" }
        );
        simulator::run(&spec(&text, quick), policy).task_groups[0].latency.p99_ns as f64
    };
    let alone = p99(3, false, find("HPF"));
    for level in [1, 2, 3] {
        println!("  level {level} {:6.3}", p99(level, true, find("HPF")) / alone);
    }
    println!("  native  {:6.3}", p99(3, true, &NATIVE) / alone);
}

fn shares(quick: bool) {
    println!("largest error of a share, in points, at levels 1, 2 and 3");
    for shares in [&[50, 50][..], &[75, 25], &[60, 30, 10], &[90, 10]] {
        for name in ["UP", "PUP", "SPUP"] {
            let hints: Vec<_> = shares.iter().map(|share| format!("share = {share}")).collect();
            let targets: Vec<_> = shares.iter().map(|share| f64::from(*share)).collect();
            print_errors(name, &format!("{shares:?}"), &hints, &targets, quick);
        }
    }
    for priorities in [&[0, 0][..], &[6, 0], &[10, 6, 0], &[12, 0]] {
        let hints: Vec<_> = priorities.iter().map(|priority| format!("priority = {priority}")).collect();
        let targets: Vec<_> = priorities.iter().map(|priority| 1.2_f64.powi(*priority)).collect();
        print_errors("CFS", &format!("priorities {priorities:?}"), &hints, &targets, quick);
    }
}

fn print_errors(name: &str, what: &str, hints: &[String], targets: &[f64], quick: bool) {
    let errors = [1, 2, 3].map(|level| {
        let tasks: Vec<_> = (hints.iter().zip([400, 900, 250]).enumerate())
            .map(|(n, (hint, mean))| {
                format!(
                    "[[task]]\nname = \"task-{n}\"\narrival.closed = {{}}\ncommands = {}\n\
                     command.exponential = {{ mean = \"{mean}us\" }}\n{hint}\n",
                    3 + 4 * n
                )
            })
            .collect();
        let device =
            format!("[[device]]\nname = \"gpu\"\nlevel = {level}\npreempt = \"20us\"\nswitch = \"50us\"");
        let report = simulator::run(
            &spec(&format!("duration = \"60s\"\n{device}\n{}", tasks.concat()), quick),
            find(name),
        );
        format!("{:.2}", error(&report, targets))
    });
    println!("  {name:4} {what:22} {}", errors.join("  "));
}

fn error(report: &Report, targets: &[f64]) -> f64 {
    let (used, requested) = (report.all_tasks.used_ns as f64, targets.iter().sum::<f64>());
    let rows = report.task_groups.iter().zip(targets);
    rows.map(|(row, target)| 100.0 * (row.used_ns as f64 / used - target / requested).abs())
        .fold(0.0, f64::max)
}

fn find(name: &str) -> &'static PolicyInfo {
    PolicyInfo::find(name).expect("a policy in the table")
}
