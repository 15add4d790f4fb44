//! The verdict as text, computed from the numbers. States bad results as clearly as good ones.

use super::units::{percent, times};
use super::{Results, SceneName};

/// Relative difference of two p99 values up to which they count as equal.
const EQUAL_TOLERANCE: f64 = 0.05;
/// Multiple of the p99 alone up to which the foreground counts as protected.
const PROTECTED_RATIO: f64 = 1.15;
/// Part of the time left by the foreground below which the background counts as slowed down.
const FAIR_REST: f64 = 0.9;

const NOTHING_TO_COMPARE: &str =
    "Too little was measured to compare: not every scene completed a foreground request.";

/// The result as a title.
pub(crate) fn headline(results: &Results) -> &'static str {
    Verdict::of(results).map_or("Too little was measured to compare", |verdict| verdict.headline())
}

/// The result as one sentence with its numbers.
pub(crate) fn sentence(results: &Results) -> String {
    Verdict::of(results).map_or(NOTHING_TO_COMPARE.to_owned(), |verdict| verdict.sentence())
}

/// The effect of XSched on the foreground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Its p99 is close to its p99 alone.
    Protected,
    /// Its p99 is better than natively, but not close to its p99 alone.
    Better,
    /// Its p99 is the same as natively.
    Same,
    /// Its p99 is worse than natively.
    Worse,
}

/// The comparison of the three scenes.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    outcome: Outcome,
    native_ratio: f64,
    xsched_ratio: f64,
    native_rest: Option<f64>,
    xsched_rest: Option<f64>,
}

impl Verdict {
    /// Compares the scenes; none unless all three completed requests.
    fn of(results: &Results) -> Option<Self> {
        let native = results.scene(SceneName::Native)?;
        let xsched = results.scene(SceneName::XSched)?;
        let native_ratio = results.ratio_p99(native)?;
        let xsched_ratio = results.ratio_p99(xsched)?;
        let outcome = if xsched_ratio > native_ratio * (1.0 + EQUAL_TOLERANCE) {
            Outcome::Worse
        } else if xsched_ratio > native_ratio * (1.0 - EQUAL_TOLERANCE) {
            Outcome::Same
        } else if xsched_ratio <= PROTECTED_RATIO {
            Outcome::Protected
        } else {
            Outcome::Better
        };
        Some(Self {
            outcome,
            native_ratio,
            xsched_ratio,
            native_rest: native.background_of_rest(),
            xsched_rest: xsched.background_of_rest(),
        })
    }

    fn headline(&self) -> &'static str {
        match self.outcome {
            Outcome::Protected if self.slows_background_down() => {
                "The foreground runs as fast as alone, but the background is slowed down"
            }
            Outcome::Protected => "The foreground runs as fast as alone",
            Outcome::Better => "The foreground waits less, but still waits",
            Outcome::Same => "XSched made no difference here",
            Outcome::Worse => "XSched made the foreground slower here",
        }
    }

    fn sentence(&self) -> String {
        let opening = match self.outcome {
            Outcome::Protected => "With XSched the foreground's p99",
            Outcome::Better => "XSched helps, but the foreground still waits: its p99",
            Outcome::Same => "XSched made no difference here: the foreground's p99",
            Outcome::Worse => "XSched made it worse here: the foreground's p99",
        };
        format!(
            "{opening} is {} times its p99 alone (native: {} times){}.",
            times(self.xsched_ratio),
            times(self.native_ratio),
            self.background_clause(),
        )
    }

    fn background_clause(&self) -> String {
        let Some(rest) = self.xsched_rest else {
            return String::new();
        };
        let part = percent(rest);
        if !self.slows_background_down() {
            return format!(", and the background has {part} of the time left");
        }
        let conjunction = match self.outcome {
            Outcome::Protected | Outcome::Better => "but",
            Outcome::Same | Outcome::Worse => "and",
        };
        let native = self.native_rest.map(|rest| format!(" (native: {})", percent(rest)));
        format!(
            ", {conjunction} the background has only {part} of the time left{}",
            native.unwrap_or_default()
        )
    }

    fn slows_background_down(&self) -> bool {
        self.xsched_rest.is_some_and(|rest| rest < FAIR_REST)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::of_constant_latency;
    use super::super::units::plain;
    use super::*;

    fn verdict(native_us: f64, xsched_us: f64, utilization: f64) -> (Outcome, String) {
        let verdict = Verdict::of(&of_constant_latency(10_000.0, native_us, xsched_us, utilization)).unwrap();
        (verdict.outcome, plain(&verdict.sentence()))
    }

    #[test]
    fn good_result_is_stated_with_its_numbers() {
        let (outcome, text) = verdict(27_000.0, 10_400.0, 0.784);
        assert_eq!(outcome, Outcome::Protected);
        assert_eq!(
            text,
            "With XSched the foreground's p99 is 1.04 times its p99 alone (native: 2.70 times), \
             and the background has 98 % of the time left."
        );
    }

    #[test]
    fn bad_result_is_stated_with_its_numbers() {
        let (outcome, text) = verdict(20_000.0, 30_000.0, 0.4);
        assert_eq!(outcome, Outcome::Worse);
        assert_eq!(
            text,
            "XSched made it worse here: the foreground's p99 is 3.00 times its p99 alone (native: 2.00 times), \
             and the background has only 50 % of the time left (native: 95 %)."
        );
    }

    #[test]
    fn intermediate_results() {
        assert_eq!(verdict(30_000.0, 18_000.0, 0.78).0, Outcome::Better);
        // No latency was lost natively, so none can be gained.
        assert_eq!(verdict(10_200.0, 10_100.0, 0.78).0, Outcome::Same);
        let starved = verdict(30_000.0, 10_100.0, 0.2).1;
        assert!(starved.contains("but the background has only 25 %"), "{starved}");
    }

    #[test]
    fn no_verdict_without_all_three_scenes() {
        let mut results = of_constant_latency(1.0, 2.0, 1.0, 0.8);
        results.scenes[0].foreground.clear();
        assert!(Verdict::of(&results).is_none());
        results.scenes.clear();
        assert_eq!(sentence(&results), NOTHING_TO_COMPARE);
    }
}
