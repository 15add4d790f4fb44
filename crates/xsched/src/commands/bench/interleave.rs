//! Measures several scenes in turn, again and again, so that a change of the machine affects all of them.

use super::progress::Progress;
use super::results::{Failure, Row, Samples};
use super::scene::RunError;

/// What was measured, and what could not be.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) rows: Vec<Row>,
    pub(super) failures: Vec<Failure>,
}

/// Measures each scene once per repetition. A scene whose program fails is left out of the following repetitions; the other scenes,
/// and its earlier values, are kept.
pub(super) fn interleave<S>(
    repetitions: u32,
    scenes: &[(String, S)],
    mut measure: impl FnMut(&S, &mut Samples) -> Result<(), RunError>,
) -> anyhow::Result<Measured> {
    let progress = Progress::with_time_left();
    let mut samples = Samples::default();
    let mut failures: Vec<Failure> = Vec::new();
    progress.phase("measuring", repetitions * u32::try_from(scenes.len())?);
    for repetition in 1..=repetitions {
        for (name, scene) in scenes {
            if failures.iter().all(|failure| failure.scene != *name) {
                progress.message(&format!("repetition {repetition} of {repetitions}: {name}"));
                match measure(scene, &mut samples) {
                    Ok(()) => {}
                    Err(RunError::Fatal(error)) => return Err(error),
                    Err(RunError::Program(failure)) => {
                        failures.push(Failure { scene: name.clone(), failure });
                    }
                }
            }
            progress.step();
        }
    }
    progress.finish();
    Ok(Measured { rows: samples.rows(), failures })
}

#[cfg(test)]
mod tests {
    use super::super::results::Metric;
    use super::super::scene::ProgramFailure;
    use super::*;

    const METRIC: Metric = Metric { key: "n", title: "n" };

    #[test]
    fn scenes_alternate_and_a_failed_one_is_left_out() {
        let scenes = ["a", "b"].map(|name| (name.to_owned(), name));
        let mut order = String::new();
        let measured = interleave(3, &scenes, |name, samples| {
            order.push_str(name);
            if order == "ab" {
                let failure = ProgramFailure {
                    program: "program".to_owned(),
                    command: "false".to_owned(),
                    reason: "failed".to_owned(),
                    output: String::new(),
                };
                return Err(RunError::Program(failure));
            }
            samples.push(name, "program", METRIC, 1.0);
            Ok(())
        })
        .unwrap();
        assert_eq!(order, "abaa");
        assert_eq!(measured.rows.len(), 1);
        assert_eq!(measured.rows[0].figure(METRIC).unwrap().samples.len(), 3);
        assert_eq!(measured.failures[0].scene, "b");
    }
}
