//! Synthetic results for tests.

use super::{Owner, Request, Results, Scene, SceneName, Span, Version, Workload};

const REQUESTS: u32 = 100;
const PERIOD_US: f64 = 50_000.0;
const WORK_US: f64 = 10_000.0;
const COMMAND_US: f64 = 2_000.0;

/// Plausible results of a GPU with time slices of 2 ms.
pub(crate) fn realistic() -> Results {
    let scenes = vec![simulate(SceneName::Alone), simulate(SceneName::Native), simulate(SceneName::XSched)];
    Results { scenes, ..empty() }
}

/// Three scenes, each with a single latency, and the utilization of a foreground at 20 % load.
pub(crate) fn of_constant_latency(
    alone_us: f64,
    native_us: f64,
    xsched_us: f64,
    xsched_utilization: f64,
) -> Results {
    let mut results = empty();
    for (scene, (latency, utilization)) in
        results.scenes.iter_mut().zip([(alone_us, 0.0), (native_us, 0.76), (xsched_us, xsched_utilization)])
    {
        let arrivals = (0..REQUESTS).map(|i| f64::from(i) * PERIOD_US);
        scene.foreground = arrivals.map(|at| Request { arrived_us: at, done_us: at + latency }).collect();
        scene.foreground_utilization = 0.2;
        scene.background_utilization = utilization;
    }
    results
}

/// Results without requests.
pub(crate) fn empty() -> Results {
    Results {
        device: "NVIDIA H200".to_owned(),
        device_note: "a real GPU without other users".to_owned(),
        level: 3,
        versions: vec![
            Version { name: "xsched".to_owned(), version: "0.1.0".to_owned() },
            Version { name: "driver".to_owned(), version: "570.86.15".to_owned() },
        ],
        workload: Workload {
            request_us: WORK_US,
            commands_per_request: 20,
            load: 0.2,
            background_command_us: COMMAND_US,
            requests: REQUESTS as usize,
        },
        scenes: [SceneName::Alone, SceneName::Native, SceneName::XSched].map(empty_scene).into(),
    }
}

/// A scene without requests.
pub(crate) fn empty_scene(name: SceneName) -> Scene {
    Scene {
        name,
        foreground: Vec::new(),
        background_utilization: 0.0,
        foreground_utilization: 0.0,
        timeline: Vec::new(),
    }
}

/// A device with time slices: of 2 ms natively, of a whole request with XSched.
fn simulate(name: SceneName) -> Scene {
    let mut scene = empty_scene(name);
    let mut random = RandomNumbers(0x2545_f491_4f6c_dd1d);
    let mut now = 0.0;
    for i in 0..REQUESTS {
        let arrived_us = f64::from(i) * PERIOD_US + 4_000.0 + random.next() * 9_000.0;
        if name != SceneName::Alone {
            while now + COMMAND_US < arrived_us {
                now = add_span(&mut scene, Owner::Background, now, COMMAND_US);
            }
            let cut = if name == SceneName::XSched {
                arrived_us + 90.0 + random.next() * 80.0 - now
            } else {
                COMMAND_US
            };
            now = add_span(&mut scene, Owner::Background, now, cut);
        }
        now = now.max(arrived_us);
        let mut left = WORK_US + 80.0 + random.next() * 60.0;
        while left > 0.0 {
            let mut slice = if name == SceneName::Native { left.min(COMMAND_US) } else { left };
            if name != SceneName::Alone {
                now = add_span(&mut scene, Owner::Switch, now, 60.0);
            }
            left -= slice;
            while slice > 0.0 {
                let command = slice.min(500.0);
                now = add_span(&mut scene, Owner::Foreground, now, command);
                slice -= command;
            }
            if name == SceneName::Native && left > 0.0 {
                let held = COMMAND_US * if random.next() > 0.6 { 2.0 } else { 1.0 };
                now = add_span(&mut scene, Owner::Background, now, held);
            }
        }
        scene.foreground.push(Request { arrived_us, done_us: now });
    }
    let had = |owner| -> f64 {
        let spans = scene.timeline.iter().filter(|span| span.task == owner);
        spans.map(|span| span.end_us - span.start_us).sum::<f64>() / now
    };
    (scene.foreground_utilization, scene.background_utilization) =
        (had(Owner::Foreground), had(Owner::Background));
    scene
}

fn add_span(scene: &mut Scene, task: Owner, start_us: f64, length_us: f64) -> f64 {
    scene.timeline.push(Span { task, start_us, end_us: start_us + length_us });
    start_us + length_us
}

/// Xorshift: the same numbers in every run.
struct RandomNumbers(u64);

impl RandomNumbers {
    /// A number from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }
}
