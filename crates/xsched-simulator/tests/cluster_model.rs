//! The model of a GPU in a cluster, against the simulator of kernels and against measurements on a GPU.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xsched_core::Level;
use xsched_policy::PolicyInfo;
use xsched_simulator::cluster::{Costs, Load, Sharing, Tenant, Wait, p99_alone_s, predict};
use xsched_simulator::{self as simulator, NATIVE, Spec};

const SWITCH_S: f64 = 0.000_15;
const PREEMPT_S: f64 = 0.000_02;
const SLICE_S: f64 = 0.002;

/// How the simulated GPU schedules.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scheduler {
    Native,
    Priority(u8),
}

/// A job of a case.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Requests per second, kernels of a request, length of a kernel in us.
    Service { rate: f64, kernels: u32, kernel_us: f64, priority: i16 },
    /// Kernels of a step, length of a kernel in us, time without work between steps in us.
    Batch { kernels: u32, kernel_us: f64, pause_us: f64, priority: i16 },
}

impl Job {
    fn tenant(self) -> Tenant {
        match self {
            Self::Service { rate, kernels, kernel_us, priority } => {
                let request_s = f64::from(kernels) * kernel_us / 1e6;
                Tenant { priority, load: Load::Service { rate, request_s, is_periodic: false } }
            }
            Self::Batch { kernels, kernel_us, pause_us, priority } => {
                let busy = f64::from(kernels) * kernel_us;
                Tenant { priority, load: Load::Batch { utilization: busy / (busy + pause_us) } }
            }
        }
    }

    fn table(self, name: usize) -> String {
        match self {
            Self::Service { rate, kernels, kernel_us, priority } => format!(
                "[[task]]\nname = \"job-{name}\"\narrival.poisson = {{ mean = \"{:.0}us\" }}\ncommands = {kernels}\n\
                 command = \"{kernel_us}us\"\npriority = {priority}\n",
                1e6 / rate
            ),
            Self::Batch { kernels, kernel_us, pause_us, priority } => {
                // Random lengths: otherwise a step could keep the same phase to other steps for ever.
                let (min, max) = (kernel_us * 0.5, kernel_us * 1.5);
                format!(
                    "[[task]]\nname = \"job-{name}\"\narrival.closed = {{ think = \"{pause_us}us\" }}\ncommands = {kernels}\n\
                     command.uniform = {{ min = \"{min}us\", max = \"{max}us\" }}\npriority = {priority}\n"
                )
            }
        }
    }
}

/// The longest kernel of the batch jobs, on average, in seconds.
fn kernel_s(jobs: &[Job]) -> f64 {
    let length = |job: &Job| match job {
        Job::Batch { kernel_us, .. } => *kernel_us / 1e6,
        Job::Service { .. } => 0.0,
    };
    jobs.iter().map(length).fold(0.0, f64::max)
}

/// The costs of the simulated GPU.
fn costs(scheduler: Scheduler, jobs: &[Job]) -> Costs {
    let kernel = kernel_s(jobs);
    let start = PREEMPT_S + SWITCH_S;
    let (sharing, wait) = match scheduler {
        Scheduler::Native => (Sharing::TimeSlices, Wait::default()),
        // The window is 1 ms, and two kernels at least.
        Scheduler::Priority(1) => (
            Sharing::Priority,
            Wait::uniform(start + (0.001 - kernel).max(kernel), start + 0.001_f64.max(2.0 * kernel)),
        ),
        Scheduler::Priority(2) => (Sharing::Priority, Wait::uniform(start, start + 1.25 * kernel)),
        Scheduler::Priority(_) => (Sharing::Priority, Wait::uniform(start, start)),
    };
    let preemption_s = 2.0 * (SWITCH_S + PREEMPT_S);
    Costs { sharing, switch_s: SWITCH_S, slice_s: SLICE_S, wait, preemption_s, batch_efficiency: 1.0 }
}

/// What the simulator of kernels finds for each job: p99 latency relative to alone, or speed relative to alone.
fn simulate(scheduler: Scheduler, jobs: &[Job]) -> Vec<f64> {
    let run = |jobs: &[Job]| {
        let level = if let Scheduler::Priority(level) = scheduler { level } else { 3 };
        let mut text = format!(
            "duration = \"120s\"\nwarmup = \"1s\"\nseed = 3\n[[device]]\nname = \"gpu\"\nlevel = {level}\npreempt = \"20us\"\n\
             restore = \"20us\"\nswitch = \"150us\"\nnative_slice = \"2ms\"\n"
        );
        for (index, job) in jobs.iter().enumerate() {
            let _ = write!(text, "{}", job.table(index));
        }
        let policy = match scheduler {
            Scheduler::Native => &NATIVE,
            Scheduler::Priority(_) => PolicyInfo::find("priority").unwrap(),
        };
        simulator::run(&Spec::from_toml(&text).unwrap(), policy).task_groups
    };
    let together = run(jobs);
    let relative = |(index, job): (usize, &Job)| {
        let alone = &run(&[*job])[0];
        match job {
            Job::Service { .. } => together[index].latency.p99_ns as f64 / alone.latency.p99_ns as f64,
            Job::Batch { .. } => together[index].jobs_per_s / alone.jobs_per_s,
        }
    };
    jobs.iter().enumerate().map(relative).collect()
}

const TRAINING: Job = Job::Batch { kernels: 50, kernel_us: 500.0, pause_us: 0.0, priority: -100 };
const HOST_BOUND: Job = Job::Batch { kernels: 20, kernel_us: 400.0, pause_us: 8_000.0, priority: -100 };

fn service(rate: f64, kernels: u32, kernel_us: f64) -> Job {
    Job::Service { rate, kernels, kernel_us, priority: 100 }
}

/// Cases with two to four jobs, several loads and request lengths.
fn cases() -> Vec<(&'static str, Vec<Job>)> {
    let second = Job::Service { rate: 20.0, kernels: 25, kernel_us: 200.0, priority: 0 };
    vec![
        ("3 ms at 10 %, training", vec![service(33.0, 15, 200.0), TRAINING]),
        ("3 ms at 40 %, training", vec![service(133.0, 15, 200.0), TRAINING]),
        ("10 ms at 20 %, training", vec![service(20.0, 50, 200.0), TRAINING]),
        ("10 ms at 30 %, host-bound training", vec![service(30.0, 50, 200.0), HOST_BOUND]),
        ("3 ms at 20 %, two trainings", vec![service(66.0, 15, 200.0), TRAINING, TRAINING]),
        ("two services, 10 ms at 10 % and 5 ms at 10 %", vec![service(10.0, 50, 200.0), second]),
        ("two services and training", vec![service(10.0, 50, 200.0), second, TRAINING]),
        ("two services of equal priority", vec![service(20.0, 10, 200.0), service(20.0, 20, 200.0)]),
        ("two host-bound trainings", vec![HOST_BOUND, HOST_BOUND]),
        (
            "service, training, two host-bound",
            vec![service(20.0, 15, 200.0), TRAINING, HOST_BOUND, HOST_BOUND],
        ),
    ]
}

#[test]
fn model_agrees_with_the_simulator_of_kernels() {
    // Of a p99 relative to alone, 20 %; of a speed, 10 % of the speed alone.
    let (mut wrong, mut table) = (0, String::new());
    for (name, jobs) in cases() {
        for scheduler in
            [Scheduler::Native, Scheduler::Priority(1), Scheduler::Priority(2), Scheduler::Priority(3)]
        {
            let found = simulate(scheduler, &jobs);
            let tenants: Vec<_> = jobs.iter().map(|job| job.tenant()).collect();
            let predicted = predict(&costs(scheduler, &jobs), &tenants).values;
            for (index, ((job, found), predicted)) in jobs.iter().zip(found).zip(predicted).enumerate() {
                let is_close = match job {
                    Job::Service { .. } => (predicted / found - 1.0).abs() < 0.2,
                    Job::Batch { .. } => (predicted - found).abs() < 0.1,
                };
                wrong += u32::from(!is_close);
                let mark = if is_close { "" } else { "  <---" };
                let _ = writeln!(
                    table,
                    "{name:46} {scheduler:?} job-{index}: {found:.3}, model {predicted:.3}{mark}"
                );
            }
        }
    }
    println!("{table}");
    assert_eq!(wrong, 0, "predictions out of tolerance:\n{table}");
}

fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results")
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} is missing"))
}

fn mean(value: &Value) -> f64 {
    let numbers: Vec<_> = value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

#[test]
fn model_agrees_with_measurements_on_a_gpu() {
    // The constants of the levels are from h200-full.json; the other files are other runs, some of earlier builds. Of a p99
    // relative to alone, 20 %; of the training's speed, 12 % of its speed alone.
    let files = [
        "h200.json",
        "h200-full.json",
        "h200-earlier-1.json",
        "h200-earlier-2.json",
        "h200-earlier-3.json",
        "h200-earlier-4.json",
    ];
    let scenes = [
        ("native", Costs::time_slices()),
        ("xsched level 1", Costs::xsched(Level::Block)),
        ("xsched level 2", Costs::xsched(Level::Deactivate)),
        ("xsched level 3", Costs::xsched(Level::Interrupt)),
        ("xsched auto", Costs::xsched(Level::Interrupt)),
    ];
    let (mut wrong, mut table) = (0, String::new());
    for file in files {
        let text = std::fs::read_to_string(results().join(file)).unwrap();
        let results: Value = serde_json::from_str(&text).unwrap();
        let measured = &results["table"];
        // "ResNet-152 ..., a request every 13 ms, ..."
        let description = measured["foreground"].as_str().unwrap();
        let every_ms: f64 = description
            .split("every ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .unwrap()
            .parse()
            .unwrap();
        let request_s = number(measured, "/scenes/alone/p50_ms") / 1e3;
        let service = Tenant {
            priority: 100,
            load: Load::Service { rate: 1e3 / every_ms, request_s, is_periodic: true },
        };
        let training = Tenant { priority: -100, load: Load::Batch { utilization: 1.0 } };
        let alone_p99 = number(measured, "/scenes/alone/p99_ms");
        let training_alone = mean(&measured["background_alone_it_per_s"]["native"]);
        for (scene, costs) in &scenes {
            let values = predict(costs, &[service, training]).values;
            let ratio = number(&measured["scenes"][*scene], "/p99_ms") / alone_p99;
            let kept = mean(&measured["scenes"][*scene]["background_it_per_s"]) / training_alone;
            let is_close = (values[0] / ratio - 1.0).abs() < 0.2 && (values[1] - kept).abs() < 0.12;
            wrong += u32::from(!is_close);
            let mark = if is_close { "" } else { "  <---" };
            let _ = writeln!(
                table,
                "{file:20} {scene:15} p99 {ratio:.2}, model {:.2}; training {kept:.2}, model {:.2}{mark}",
                values[0], values[1]
            );
        }
    }
    println!("{table}");
    assert_eq!(wrong, 0, "predictions out of tolerance:\n{table}");
}

#[test]
fn latency_alone_grows_with_the_load_and_not_for_periodic_requests() {
    let p99 = |rate| p99_alone_s(rate, 0.01, false);
    assert!((p99(0.1) / 0.01 - 1.0).abs() < 1e-9, "{}", p99(0.1));
    assert!(p99(20.0) < p99(50.0) && p99(50.0) < p99(80.0));
    // The exact p99 wait of M/D/1 at a load of 0.2 is 1.42 service times.
    assert!((p99(20.0) / 0.0242 - 1.0).abs() < 0.03, "{}", p99(20.0));
    assert!((p99_alone_s(80.0, 0.01, true) - 0.01).abs() < 1e-12);
}
