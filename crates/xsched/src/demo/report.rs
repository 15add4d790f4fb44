//! What a demo measured, and what follows from it: pure functions from data to text.
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

/// Everything one demo measured.
#[derive(Debug, Clone)]
pub(crate) struct Results {
    /// The device's name, as its driver gives it.
    pub device: String,
    /// What a reader has to know about the device to judge the numbers (simulated? shared?); may be empty.
    pub device_note: String,
    /// The level XSched worked at.
    pub level: u8,
    /// What ran, in the order to show it: XSched itself, driver, kernel.
    pub versions: Vec<Version>,
    /// What was run in every scene.
    pub workload: Workload,
    /// The scenes, in the order they were run.
    pub scenes: Vec<Scene>,
}

/// One program or driver with its version.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Version {
    /// What it is: `xsched`, `driver`.
    pub name: String,
    /// Its version, as it gives it.
    pub version: String,
}

impl Version {
    /// The version of this.
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
    /// Part of the device's time the foreground asks for, 0 to 1.
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
    /// The foreground has the device to itself.
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

    /// What the scene is, in a few words.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Alone => "the foreground has the device to itself",
            Self::Native => "both, the device schedules",
            Self::XSched => "both, XSched schedules",
        }
    }
}

/// One run of the workload. All its times count from the same moment, the start of the scene.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    /// Which one.
    pub name: SceneName,
    /// Every finished foreground request.
    pub foreground: Vec<Request>,
    /// Part of the device's time the background had; 0 when alone.
    pub background_utilization: f64,
    /// Part of the device's time the foreground had.
    pub foreground_utilization: f64,
    /// Who had the device when; empty where the device cannot tell.
    pub timeline: Vec<Span>,
}

/// One foreground request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// When it was asked for; waiting counts.
    pub arrived_us: f64,
    /// When its last command had finished.
    pub done_us: f64,
}

impl Request {
    /// How long its user waited.
    pub(crate) fn latency_us(self) -> f64 {
        self.done_us - self.arrived_us
    }
}

/// A stretch of device time that belonged to one task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Whose it was.
    pub task: Owner,
    /// Its beginning.
    pub start_us: f64,
    /// Its end.
    pub end_us: f64,
}

/// Who has the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The latency-critical task.
    Foreground,
    /// The saturating task.
    Background,
    /// Nobody: it is being handed over.
    Switch,
}

/// The foreground's latencies in a scene that finished at least one request, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Latencies {
    /// The quickest request.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// What 99 of 100 requests do not exceed.
    pub p99: f64,
    /// The slowest request.
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
    /// The latencies of all requests, quickest first.
    pub(crate) fn sorted_latencies(&self) -> Vec<f64> {
        let mut latencies: Vec<f64> = self.foreground.iter().map(|r| r.latency_us()).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    /// The latencies in four numbers, or `None` if no request finished.
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
    // Whole numbers, because 0.07 * 100.0 is more than 7.
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
    fn the_rest_is_what_the_foreground_leaves() {
        let mut scene = sample::empty_scene(SceneName::XSched);
        scene.foreground_utilization = 0.2;
        scene.background_utilization = 0.4;
        assert_eq!(scene.background_of_rest(), Some(0.5));
        scene.foreground_utilization = 1.0;
        assert_eq!(scene.background_of_rest(), None);
        assert_eq!(sample::empty_scene(SceneName::Alone).background_of_rest(), None);
    }
}
