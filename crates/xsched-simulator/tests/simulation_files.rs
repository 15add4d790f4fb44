//! Simulation files that are rejected, and the error messages.

use xsched_core::Nanos;
use xsched_simulator::Spec;

const VALID: &str = r#"duration = "1s"
seed = 1
[policy]
timeslice = "5ms"
k = 1
[[device]]
name = "gpu"
level = 3
preempt = "20us"
[[device]]
name = "npu"
count = 2
level = 2
[[task]]
name = "serving"
device = "gpu"
arrival.periodic = { every = "10ms", jitter = "1ms" }
command = "1ms"
priority = "high"
share = 50
deadline = "5ms"
laxity = { span = "1ms", lax = 0, critical = 10 }
nice = 0
[[task]]
name = "training"
arrival.closed = {}
command.uniform = { min = "1ms", max = "2ms" }
"#;

/// The error for the valid file with `from` replaced by `to`.
fn rejection(from: &str, to: &str) -> String {
    assert!(VALID.contains(from), "{from}");
    match Spec::from_toml(&VALID.replacen(from, to, 1)) {
        Ok(_) => panic!("`{to}` instead of `{from}` was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn valid_file_is_accepted() {
    let spec = Spec::from_toml(VALID).unwrap();
    assert_eq!((spec.devices(), spec.tasks()), (3, 2));
}

/// What is replaced, by what, and a part of the error.
type Case = (&'static str, &'static str, &'static str);

/// Times and lengths.
const TIMES: &[Case] = &[
    (
        "duration = \"1s\"",
        "duration = 1",
        "line 1: `duration`: invalid type: integer `1`, expected a time in quotes with its unit, such as \"500us\"",
    ),
    ("\"1s\"", "\"1 parsec\"", "line 1: `duration`: `1 parsec` is not a time: expected a time in quotes"),
    ("\"1s\"", "\"-1s\"", "line 1: `duration`: time `-1s` is negative: allowed is 0s to 24h"),
    ("\"1s\"", "\"25h\"", "line 1: `duration`: time `25h` is too long: allowed is 0s to 24h"),
    ("\"1s\"", "\"1us\"", "line 1: `duration`: 1.0 us is too short: allowed is 1.00 ms to 24h"),
    (
        "seed = 1",
        "warmup = \"1s\"",
        "line 2: `warmup`: warmup 1.00 s leaves nothing to measure: allowed is less",
    ),
    ("preempt = \"20us\"", "preempt = \"-20us\"", "line 9: `preempt`: time `-20us` is negative"),
    (
        "preempt = \"20us\"",
        "native_slice = \"0us\"",
        "line 9: `native_slice`: 0 ns is too short: allowed is 1.0 us",
    ),
    ("every = \"10ms\"", "every = \"0ms\"", "line 17: `every`: 0 ns is too short: allowed is 1.0 us to 24h"),
    (
        "jitter = \"1ms\"",
        "jitter = \"11ms\"",
        "`arrival.periodic`: jitter 11.00 ms is longer than the period: allowed is 0s to 10.00 ms",
    ),
    (
        "command = \"1ms\"",
        "command = \"0ms\"",
        "line 18: `command`: 0 ns is too short: allowed is 1.0 us to 24h",
    ),
    (
        "command = \"1ms\"",
        "command = 5",
        "line 18: `command`: invalid type: integer `5`, expected a time such as",
    ),
    ("max = \"2ms\"", "max = \"500us\"", "line 27: `command.uniform`: min 1.00 ms is more than max 500.0 us"),
    (
        "uniform = { min = \"1ms\", max = \"2ms\" }",
        "exponential = { mean = \"0s\" }",
        "line 27: `mean`: 0 ns is too short",
    ),
    ("uniform = { min = \"1ms\", max = \"2ms\" }", "list = []", "line 27: `command.list`: the list is empty"),
    (
        "uniform = { min = \"1ms\", max = \"2ms\" }",
        "list = [\"1ms\", \"0s\"]",
        "line 27: `command.list`: 0 ns is too short",
    ),
    (
        "uniform = { min = \"1ms\", max = \"2ms\" }",
        "lognormal = { median = \"1ms\", sigma = -1.0 }",
        "line 27: `sigma`: sigma -1 is out of range: allowed is 0 to 5",
    ),
    (
        "uniform",
        "gaussian",
        "`command.gaussian`: unknown variant `gaussian`, expected one of `uniform`, `exponential`",
    ),
];

/// Hints, with the ranges of the hints themselves.
const HINTS: &[Case] = &[
    (
        "\"5ms\"",
        "\"50us\"",
        "line 4: `timeslice`: timeslice 50 is out of range: allowed is 100 to 10000000 (microseconds)",
    ),
    ("k = 1", "k = 0", "line 5: `k`: 0 is out of range: allowed is 1 to 1000000"),
    (
        "\"high\"",
        "300",
        "line 19: `priority`: priority 300 is out of range: allowed is -256 (never run) to 255",
    ),
    ("\"high\"", "\"urgent\"", "line 19: `priority`: priority `urgent` is out of range: allowed is -256"),
    ("\"high\"", "1.5", "line 19: `priority`: invalid type: floating point `1.5`, expected a priority: -256"),
    ("share = 50", "share = 101", "line 20: `share`: share 101 is out of range: allowed is 0 to 100"),
    (
        "deadline = \"5ms\"",
        "deadline = \"0ms\"",
        "line 21: `deadline`: deadline 0 is out of range: allowed is 1 to",
    ),
    (
        "deadline = \"5ms\"",
        "deadline = \"1500ns\"",
        "line 21: `deadline`: 1500 ns is not a whole number of microseconds",
    ),
    (
        "lax = 0",
        "lax = 256",
        "line 22: `lax`: priority 256 is out of range: allowed is -256 (never run) to 255",
    ),
    ("nice = 0", "nice = 20", "line 23: `nice`: nice 20 is out of range: allowed is -20 to 19"),
];

/// Devices and names.
const DEVICES_AND_NAMES: &[Case] = &[
    ("level = 3", "level = 4", "line 8: `level`: level 4 does not exist: allowed is 1, 2 or 3"),
    ("level = 3", "level = \"deep\"", "line 8: `level`: invalid type: string \"deep\", expected i64"),
    ("level = 3\n", "", "line 6: missing field `level`"),
    ("count = 2", "count = 0", "line 12: `count`: 0 is out of range: allowed is 1 to 100000"),
    ("count = 2", "count = -3", "line 12: `count`: -3 is out of range: allowed is 1 to 100000"),
    (
        "device = \"gpu\"",
        "device = \"gpu2\"",
        "line 16: `device`: there is no device `gpu2`: allowed is `gpu`, `npu` (any of `npu-0` to `npu-1`)",
    ),
    ("name = \"npu\"", "name = \"gpu\"", "line 11: `name`: there is a device `gpu` already"),
    ("name = \"gpu\"", "name = \"npu-1\"", "line 11: `name`: there is a device `npu-1` already"),
    ("name = \"training\"", "name = \"serving\"", "line 25: `name`: there is a task `serving` already"),
    (
        "name = \"training\"",
        "name = \"\"",
        "line 25: `name`: name \"\" is not usable: allowed is 1 to 64 characters",
    ),
    (
        "name = \"training\"",
        "name = \"gn\\u202Ekrow\"",
        "line 25: `name`: name \"gn\\u{202e}krow\" is not usable: allowed is 1 to 64 characters",
    ),
];

/// The structure of the file, and its limits.
const SHAPE: &[Case] = &[
    ("seed = 1", "sed = 1", "line 2: unknown field `sed`, expected one of `duration`, `warmup`, `seed`"),
    ("nice = 0", "niceness = 0", "line 23: unknown field `niceness`, expected one of"),
    (
        "jitter",
        "wobble",
        "line 17: `wobble`: unexpected keys in table: wobble, available keys: every, phase, jitter",
    ),
    (
        "arrival.closed",
        "arrival.open",
        "`arrival.open`: unknown variant `open`, expected one of `periodic`, `poisson`, `closed`",
    ),
    ("arrival.closed = {}\n", "", "line 24: missing field `arrival`"),
    ("seed = 1", "seed = -1", "line 2: `seed`: invalid value: integer `-1`, expected u64"),
    ("seed = 1", "seed = ", "line 2"),
    ("seed = 1", "\"–\" = 1", "line 2: unknown field `–`"),
    ("level = 3", "\"level\" = 9 # –", "line 8: level 9 does not exist: allowed is 1, 2 or 3"),
    ("[[task]]", "[[task]", "line 14"),
    (
        "every = \"10ms\", jitter = \"1ms\" }",
        "every = \"1us\" }\ncount = 1000",
        "too many jobs: with task `serving` they are more than 200000000 over 1.00 s",
    ),
];

#[test]
fn error_names_the_line_the_field_and_what_is_allowed() {
    for (from, to, expected) in [TIMES, HINTS, DEVICES_AND_NAMES, SHAPE].concat() {
        let said = rejection(from, to);
        assert!(
            said.contains(expected),
            "`{to}` instead of `{from}`:\n  said     {said}\n  expected {expected}"
        );
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn error_about_a_file_without_devices_or_tasks_names_what_is_missing() {
    for (text, expected) in [
        ("", "missing field `duration`"),
        ("duration = \"1s\"", "no device: a file needs at least one [[device]]"),
        (
            "duration = \"1s\"\n[[device]]\nname = \"gpu\"\nlevel = 1",
            "no task: a file needs at least one [[task]]",
        ),
    ] {
        let said = Spec::from_toml(text).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn duration_of_the_command_line_is_checked_like_that_of_the_file() {
    let spec = Spec::from_toml(&VALID.replace("seed = 1", "warmup = \"500ms\"")).unwrap();
    let refused = |duration| spec.clone().with_duration(duration).unwrap_err().to_string();
    assert!(refused(Nanos::from_millis(500)).contains("warmup 500.00 ms leaves nothing to measure"));
    assert!(refused(Nanos::ZERO).contains("duration 0 ns is out of range: allowed is 1ms to 24h"));
    assert!(refused(Nanos::MAX).contains("allowed is 1ms to 24h"));
    assert!(spec.clone().with_duration(Nanos::from_secs(2)).is_ok());
    assert_eq!(xsched_core::parse_time("2ms"), Ok(Nanos::from_millis(2)));
}
