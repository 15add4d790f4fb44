//! The environment variables of a scheduled program. A line of the input is a letter for the variable, then its value.

use xsched_ipc::environment::{Environment, name};

use super::Run;

pub(super) const WORDS: &[&str] = &[
    "\na", "\nb", "\nc", "\nd", "\ne", "\nf", "\ng", "\nh", "\ni", "\nj", "\nk", "\nl", "\nm", "\nn", "\no",
    "\np", "APP", "LCL", "GLB", "HPF", "fair", "KEDF", "LAX", "ON", "OFF", "low", "normal", "high", "auto",
    "-1", "+1", "1e3", "0x10", " ", "\t", "\u{a0}", "é", "\u{202e}",
];

const VARIABLES: [&str; 17] = [
    name::SCHEDULER,
    name::POLICY,
    name::AUTO,
    name::LEVEL,
    name::THRESHOLD,
    name::BATCH_SIZE,
    name::PRIORITY,
    name::JOB,
    name::SHARE,
    name::TIMESLICE,
    name::DEADLINE,
    name::KDEADLINE,
    name::LAXITY,
    name::BUDGET,
    name::NAME,
    name::SOCKET,
    name::GRANT,
];

pub(super) fn start() -> Run {
    Box::new(|input| {
        let mut values: [Option<&str>; VARIABLES.len()] = [None; VARIABLES.len()];
        for line in input.split(|byte| *byte == b'\n') {
            let Some((letter, value)) = line.split_first() else { continue };
            // The program's environment may contain any bytes; the library reads them as text if they are.
            if let Some(entry) = values.get_mut(usize::from(letter.wrapping_sub(b'a'))) {
                *entry = std::str::from_utf8(value).ok();
            }
        }
        let value = |wanted: &str| {
            let index = VARIABLES.iter().position(|name| *name == wanted)?;
            values[index].map(str::to_owned)
        };
        let mut messages = 0;
        let environment = Environment::read(value, |_, message| {
            assert!(message.starts_with("XSCHED_") && message.contains(" is ignored: "), "{message}");
            messages += 1;
        });
        assert!(messages <= VARIABLES.len());
        for text in [&environment.name, &environment.job].into_iter().flatten() {
            assert!(
                !text.is_empty() && text.chars().count() <= 64 && !text.contains(char::is_control),
                "{text:?}"
            );
        }
        // Valid together, not only one by one.
        let hints = environment.hint_request.applied_to(xsched_core::Hints::default());
        assert_eq!(hints, Ok(environment.hints()), "{:?}", environment.hint_request);
    })
}
