//! The rules of the trace event format that Perfetto and Chrome read.

use std::collections::HashMap;

use serde_json::Value;

/// Times have three decimals.
const ROUNDING: f64 = 0.000_5;

/// Fails if an event lacks a field that its phase requires, if a number is not in range, if slices of a track overlap without being nested,
/// or if they are not in the order of time.
pub(crate) fn assert_valid(events: &[Value]) {
    let mut ends = HashMap::<(u64, u64), (f64, f64)>::new();
    for event in events {
        let number = |name: &str| {
            let number = event[name].as_f64().filter(|number| number.is_finite() && *number >= 0.0);
            number.unwrap_or_else(|| panic!("{name}: {event}"))
        };
        let id = |name: &str| {
            let id = event[name].as_u64().filter(|id| u32::try_from(*id).is_ok());
            id.unwrap_or_else(|| panic!("{name} is not a number of 32 bits: {event}"))
        };
        let (track, at) = ((id("pid"), id("tid")), number("ts"));
        assert!(event["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
        match event["ph"].as_str() {
            Some("X") => {
                let (last_begin, last_end) = ends.get(&track).copied().unwrap_or((0.0, 0.0));
                let end = at + number("dur");
                assert!(at >= last_begin, "not in the order of time: {event}");
                assert!(at + ROUNDING >= last_end || end <= last_end + ROUNDING, "overlaps: {event}");
                ends.insert(track, (at, end));
            }
            Some("i") => assert!(matches!(event["s"].as_str(), Some("g" | "p" | "t")), "{event}"),
            Some("C") => {
                let values = event["args"].as_object().unwrap_or_else(|| panic!("{event}"));
                assert!(!values.is_empty() && values.values().all(Value::is_number), "{event}");
            }
            Some("M") => {
                let key = match event["name"].as_str() {
                    Some("process_name" | "thread_name") => "name",
                    Some("process_sort_index") => "sort_index",
                    other => panic!("unknown metadata {other:?}"),
                };
                assert!(!event["args"][key].is_null(), "{event}");
            }
            other => panic!("unknown phase {other:?}: {event}"),
        }
    }
}
