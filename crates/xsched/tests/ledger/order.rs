//! The order that a program prescribed, as `programs/rocr/ledger.hip` prints it.

use std::collections::HashMap;

use super::Ledger;

/// An execution of a labelled kernel or host function: the label, and how many executions of it were before.
type Execution = (u64, u64);

/// What each execution must follow.
#[derive(Debug, Default)]
pub(crate) struct DeclaredOrder {
    after: Vec<(Execution, Vec<Execution>)>,
    host_functions: HashMap<Execution, (u64, u64)>,
}

fn execution(text: &str) -> Option<Execution> {
    let (label, number) = text.split_once('#')?;
    Some((label.parse().ok()?, number.parse().ok()?))
}

impl DeclaredOrder {
    /// Reads a program's output, `LABEL#N: LABEL#N ...`, and its list of host functions, `LABEL#N START END`. Other lines of
    /// the output are results.
    pub(crate) fn read(output: &str, host_functions: &str) -> Self {
        let line = |line: &str| {
            let (name, earlier) = line.split_once(':')?;
            Some((execution(name)?, earlier.split_whitespace().map(execution).collect::<Option<_>>()?))
        };
        let host = |line: &str| {
            let mut words = line.split(' ');
            let name = execution(words.next()?)?;
            Some((name, (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
        };
        Self {
            after: output.lines().filter_map(line).collect(),
            host_functions: host_functions.lines().map(|line| host(line).expect("a host function")).collect(),
        }
    }

    /// How many executions the program declared.
    pub(crate) fn len(&self) -> usize {
        self.after.len()
    }

    /// Checks that exactly the declared kernels and host functions were executed, each after those that it must follow.
    ///
    /// Executions of one label are numbered by their start: the program orders them by the stream that launches the graph.
    pub(crate) fn check(&self, ledger: &Ledger) -> Result<(), String> {
        let mut by_label: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
        for kernel in ledger.kernels() {
            if let Some(label) = kernel.label {
                by_label.entry(label).or_default().push((kernel.start, kernel.end));
            }
        }
        let mut times: HashMap<Execution, (u64, u64)> = self.host_functions.clone();
        for (label, mut spans) in by_label {
            spans.sort_unstable();
            times.extend((0..).zip(spans).map(|(number, span)| ((label, number), span)));
        }
        if times.len() != self.after.len() {
            return Err(format!("{} executions instead of {}", times.len(), self.after.len()));
        }
        for (name, earlier) in &self.after {
            let Some((start, _)) = times.get(name) else { return Err(format!("{name:?} was not executed")) };
            for other in earlier {
                let Some((_, end)) = times.get(other) else {
                    return Err(format!("{other:?} was not executed"));
                };
                if end > start {
                    return Err(format!("{name:?} started {} ns before {other:?} ended", end - start));
                }
            }
        }
        Ok(())
    }
}
