//! What was seen, in words: computed from the numbers, and as plain about a bad result as about a good one.

use super::units::{percent, times};
use super::{Results, SceneName};

/// p99s closer than this to each other are called the same.
const SAME: f64 = 0.05;
/// Up to this multiple of its p99 alone, the foreground is called protected.
const PROTECTED: f64 = 1.15;
/// A background that keeps less of what is left than this has paid for it.
const FAIR: f64 = 0.9;

const NOTHING_TO_COMPARE: &str =
    "Too little was measured to compare: not every scene finished a foreground request.";

/// The result as a title.
pub(crate) fn headline(results: &Results) -> &'static str {
    Verdict::of(results).map_or("Too little was measured to compare", |verdict| verdict.headline())
}

/// The result as one sentence with its numbers.
pub(crate) fn sentence(results: &Results) -> String {
    Verdict::of(results).map_or(NOTHING_TO_COMPARE.to_owned(), |verdict| verdict.sentence())
}

/// What XSched did for the foreground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Its p99 is close to what it is alone.
    Protected,
    /// Its p99 is better than natively, but not close to what it is alone.
    Better,
    /// Its p99 is what it is natively.
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
    /// Compares the scenes; `None` unless all three finished requests.
    fn of(results: &Results) -> Option<Self> {
        let native = results.scene(SceneName::Native)?;
        let xsched = results.scene(SceneName::XSched)?;
        let native_ratio = results.ratio_p99(native)?;
        let xsched_ratio = results.ratio_p99(xsched)?;
        let outcome = if xsched_ratio > native_ratio * (1.0 + SAME) {
            Outcome::Worse
        } else if xsched_ratio > native_ratio * (1.0 - SAME) {
            Outcome::Same
        } else if xsched_ratio <= PROTECTED {
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
            Outcome::Protected if self.background_pays() => {
                "The foreground runs as if it were alone, but the background pays for it"
            }
            Outcome::Protected => "The foreground runs as if it were alone",
            Outcome::Better => "The foreground waits less, but it still waits",
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
            "{opening} is {} times what it is alone (native: {} times){}.",
            times(self.xsched_ratio),
            times(self.native_ratio),
            self.background_clause(),
        )
    }

    fn background_clause(&self) -> String {
        let Some(rest) = self.xsched_rest else {
            return String::new();
        };
        let kept = percent(rest);
        if !self.background_pays() {
            return format!(", and the background keeps {kept} of what is left");
        }
        let but = match self.outcome {
            Outcome::Protected | Outcome::Better => "but",
            Outcome::Same | Outcome::Worse => "and",
        };
        let native = self.native_rest.map(|rest| format!(" (native: {})", percent(rest)));
        format!(", {but} the background keeps only {kept} of what is left{}", native.unwrap_or_default())
    }

    fn background_pays(&self) -> bool {
        self.xsched_rest.is_some_and(|rest| rest < FAIR)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::of_constant_latency;
    use super::super::units::plain;
    use super::*;

    fn told(native_us: f64, xsched_us: f64, utilization: f64) -> (Outcome, String) {
        let verdict = Verdict::of(&of_constant_latency(10_000.0, native_us, xsched_us, utilization)).unwrap();
        (verdict.outcome, plain(&verdict.sentence()))
    }

    #[test]
    fn a_good_result_is_told_with_its_numbers() {
        let (outcome, text) = told(27_000.0, 10_400.0, 0.784);
        assert_eq!(outcome, Outcome::Protected);
        assert_eq!(
            text,
            "With XSched the foreground's p99 is 1.04 times what it is alone (native: 2.70 times), \
             and the background keeps 98 % of what is left."
        );
    }

    #[test]
    fn a_bad_result_is_told_as_plainly() {
        let (outcome, text) = told(20_000.0, 30_000.0, 0.4);
        assert_eq!(outcome, Outcome::Worse);
        assert_eq!(
            text,
            "XSched made it worse here: the foreground's p99 is 3.00 times what it is alone (native: 2.00 times), \
             and the background keeps only 50 % of what is left (native: 95 %)."
        );
    }

    #[test]
    fn between_good_and_bad() {
        assert_eq!(told(30_000.0, 18_000.0, 0.78).0, Outcome::Better);
        // Nothing was lost natively, so nothing was won.
        assert_eq!(told(10_200.0, 10_100.0, 0.78).0, Outcome::Same);
        let starved = told(30_000.0, 10_100.0, 0.2).1;
        assert!(starved.contains("but the background keeps only 25 %"), "{starved}");
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
