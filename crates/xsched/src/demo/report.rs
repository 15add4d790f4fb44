//! The results of a demo, and pure functions from them to text.
//!
//! The terminal table is in [`table()`], the JSON in [`json()`]; the page in [`super::html`].

mod json;
#[cfg(test)]
pub(crate) mod sample;
mod table;
pub(crate) mod units;
pub(crate) mod verdict;

pub(crate) use json::json;
pub(crate) use table::{table, workload};

use serde::Serialize;

/// The results of a demo.
#[derive(Debug, Clone)]
pub(crate) struct Results {
    /// The name of the device, as its driver reports it.
    pub device: String,
    /// A note on the device that affects the numbers, such as that it is simulated; may be empty.
    pub device_note: String,
    /// The preemption level that XSched used.
    pub level: u8,
    /// Versions in the order to show them: XSched, driver, kernel.
    pub versions: Vec<Version>,
    /// The workload of every scene.
    pub workload: Workload,
    /// The scenes, in the order they ran.
    pub scenes: Vec<Scene>,
}

/// One program or driver with its version.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Version {
    /// The name, such as `xsched` or `driver`.
    pub name: String,
    /// The version, as the program reports it.
    pub version: String,
}

impl Version {
    /// A version with its name.
    pub(crate) fn of(name: &str, version: &str) -> Self {
        Self { name: name.to_owned(), version: version.to_owned() }
    }
}

/// The foreground and the background every scene runs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Workload {
    /// Device time one foreground request needs.
    pub request_us: f64,
    /// Commands that make up one request.
    pub commands_per_request: u32,
    /// Part of the device's time that the foreground needs, 0 to 1.
    pub load: f64,
    /// Device time one background command needs.
    pub background_command_us: f64,
    /// Requests per scene.
    pub requests: usize,
}

/// Which of the three scenes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SceneName {
    /// The foreground alone on the device.
    Alone,
    /// Both, scheduled by the device.
    Native,
    /// Both, scheduled by XSched.
    XSched,
}

impl SceneName {
    /// The name, as in the JSON.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Native => "native",
            Self::XSched => "xsched",
        }
    }

    /// A short description of the scene.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Alone => "the foreground alone on the device",
            Self::Native => "both, scheduled by the device",
            Self::XSched => "both, scheduled by XSched",
        }
    }
}

/// One run of the workload. All times count from the start of the scene.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    /// The name of the scene.
    pub name: SceneName,
    /// Every completed foreground request.
    pub foreground: Vec<Request>,
    /// Part of the device's time the background had; 0 when alone.
    pub background_utilization: f64,
    /// Part of the device's time the foreground had.
    pub foreground_utilization: f64,
    /// Which task had the device when; empty if the device does not report it.
    pub timeline: Vec<Span>,
}

/// One foreground request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// When the request arrived; waiting counts.
    pub arrived_us: f64,
    /// When its last command was complete.
    pub done_us: f64,
}

impl Request {
    /// The time from arrival to completion.
    pub(crate) fn latency_us(self) -> f64 {
        self.done_us - self.arrived_us
    }
}

/// A span of device time of one task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// The task that had the device.
    pub task: Owner,
    /// Its beginning.
    pub start_us: f64,
    /// Its end.
    pub end_us: f64,
}

/// The task that has the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The latency-critical task.
    Foreground,
    /// The saturating task.
    Background,
    /// No task: a context switch.
    Switch,
}

/// The foreground's latencies in a scene that completed at least one request, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Latencies {
    /// The shortest latency.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest latency.
    pub max: f64,
}

impl Results {
    /// The scene of that name, if it was run.
    pub(crate) fn scene(&self, name: SceneName) -> Option<&Scene> {
        self.scenes.iter().find(|scene| scene.name == name)
    }

    /// `scene`'s p99 as a multiple of the p99 alone.
    pub(crate) fn ratio_p99(&self, scene: &Scene) -> Option<f64> {
        let alone = self.scene(SceneName::Alone)?.latencies()?.p99;
        let p99 = scene.latencies()?.p99;
        (alone > 0.0).then(|| p99 / alone)
    }
}

impl Scene {
    /// The latencies of all requests, in ascending order.
    pub(crate) fn sorted_latencies(&self) -> Vec<f64> {
        let mut latencies: Vec<f64> = self.foreground.iter().map(|r| r.latency_us()).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    /// The latencies in four numbers, or none if no request completed.
    pub(crate) fn latencies(&self) -> Option<Latencies> {
        let sorted = self.sorted_latencies();
        Some(Latencies {
            min: *sorted.first()?,
            p50: percentile(&sorted, 50)?,
            p99: percentile(&sorted, 99)?,
            max: *sorted.last()?,
        })
    }

    /// The background's part of the device time the foreground did not use; `None` in a scene without background.
    pub(crate) fn background_of_rest(&self) -> Option<f64> {
        let rest = 1.0 - self.foreground_utilization;
        (self.name != SceneName::Alone && rest > 0.0).then(|| self.background_utilization / rest)
    }
}

/// The nearest-rank percentile: the smallest value that at least `percent` of 100 values do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    // In integers, because 0.07 * 100.0 is more than 7.
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 50), Some(50.0));
        assert_eq!(percentile(&hundred, 99), Some(99.0));
        assert_eq!(percentile(&hundred, 100), Some(100.0));
        assert_eq!(percentile(&hundred, 7), Some(7.0));
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 50), Some(2.0));
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 99), Some(3.0));
        assert_eq!(percentile(&[5.0], 0), Some(5.0));
        assert_eq!(percentile(&[], 99), None);
    }

    #[test]
    fn latencies_do_not_depend_on_the_order_of_requests() {
        let request = |latency: f64| Request { arrived_us: 100.0, done_us: 100.0 + latency };
        let mut scene = sample::empty_scene(SceneName::Native);
        assert_eq!(scene.latencies(), None);
        scene.foreground = vec![request(30.0), request(10.0), request(20.0)];
        let expected = Latencies { min: 10.0, p50: 20.0, p99: 30.0, max: 30.0 };
        assert_eq!(scene.latencies(), Some(expected));
    }

    #[test]
    fn rest_is_the_time_that_the_foreground_leaves() {
        let mut scene = sample::empty_scene(SceneName::XSched);
        scene.foreground_utilization = 0.2;
        scene.background_utilization = 0.4;
        assert_eq!(scene.background_of_rest(), Some(0.5));
        scene.foreground_utilization = 1.0;
        assert_eq!(scene.background_of_rest(), None);
        assert_eq!(sample::empty_scene(SceneName::Alone).background_of_rest(), None);
    }
}
