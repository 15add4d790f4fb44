//! Priorities, shares and times as Python passes them. Ranges are checked by the code that the command line uses, with the
//! same messages.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use xsched_core::parse_time;
use xsched_core::{Deadline, Laxity, Nanos, Priority, Share, Timeslice};
use xsched_ipc::protocol::HintRequest;

use crate::errors::{hint_error, out_of_range};

/// A number, or `low`, `normal` or `high`.
pub(crate) fn priority(value: &Bound<'_, PyAny>) -> PyResult<Priority> {
    let py = value.py();
    if let Ok(name) = value.extract::<String>() {
        return name.parse().map_err(|error| hint_error(py, &error));
    }
    let number: i64 =
        value.extract().map_err(|_| wrong_type(value, "a whole number, 'low', 'normal' or 'high'"))?;
    Priority::new(number).map_err(|error| hint_error(py, &error))
}

/// A share in percent.
fn share(value: &Bound<'_, PyAny>) -> PyResult<Share> {
    let percent: i64 = value.extract().map_err(|_| wrong_type(value, "a whole number of percent"))?;
    Share::new(percent).map_err(|error| hint_error(value.py(), &error))
}

/// `"5ms"` or a timedelta, in microseconds. A bare number is rejected, because its unit would be ambiguous.
fn micros(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    if let Ok(text) = value.extract::<String>() {
        let Nanos(ns) = parse_time(&text).map_err(|error| out_of_range(value.py(), &error))?;
        return Ok(i64::try_from(ns / 1_000).unwrap_or(i64::MAX));
    }
    let Ok(seconds) = value.call_method0("total_seconds") else {
        return Err(wrong_type(value, "a time such as '5ms', or a timedelta"));
    };
    let seconds: f64 = seconds.extract()?;
    #[allow(clippy::cast_possible_truncation, reason = "a value that overflows an i64 is out of every range")]
    Ok((seconds * 1e6).round() as i64)
}

/// The length of a time slice in microseconds.
pub(crate) fn timeslice(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let us = micros(value)?;
    Timeslice::from_micros(us).map(|_| us).map_err(|error| hint_error(value.py(), &error))
}

fn is_none_text(value: &Bound<'_, PyAny>) -> bool {
    value.extract::<String>().is_ok_and(|text| text.eq_ignore_ascii_case("none"))
}

fn wrong_type(value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let shown = value.repr().map_or_else(|_| "this value".to_owned(), |text| text.to_string());
    PyTypeError::new_err(format!("{shown} is not {expected}"))
}

/// The arguments of a hint, as Python passed them.
#[derive(Clone, Copy)]
pub(crate) struct HintArguments<'a, 'py> {
    pub(crate) priority: Option<&'a Bound<'py, PyAny>>,
    pub(crate) share: Option<&'a Bound<'py, PyAny>>,
    pub(crate) deadline: Option<&'a Bound<'py, PyAny>>,
    pub(crate) laxity: Option<&'a Bound<'py, PyAny>>,
}

impl HintArguments<'_, '_> {
    /// Checks the arguments. `current` returns the task's priority, for a laxity without priorities.
    pub(crate) fn hint_request(&self, current: impl FnOnce() -> PyResult<i64>) -> PyResult<HintRequest> {
        let priority = self.priority.map(priority).transpose()?;
        let deadline_us = match self.deadline {
            Some(value) if is_none_text(value) => Some(-1),
            Some(value) => {
                let us = micros(value)?;
                Deadline::from_micros(us).map_err(|error| hint_error(value.py(), &error))?;
                Some(us)
            }
            None => None,
        };
        Ok(HintRequest {
            priority: priority.map(|priority| priority.get().into()),
            share: self.share.map(share).transpose()?.map(|share| share.percent().into()),
            deadline_us,
            laxity: match self.laxity {
                Some(value) if is_none_text(value) => Some((-1, 0, 0)),
                Some(value) => Some(laxity(value, || {
                    priority.map_or_else(current, |priority| Ok(priority.get().into()))
                })?),
                None => None,
            },
        })
    }
}

/// A time; or a time, the priority until then and the priority afterwards.
fn laxity(value: &Bound<'_, PyAny>, current: impl FnOnce() -> PyResult<i64>) -> PyResult<(i64, i64, i64)> {
    type Three<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);
    let (us, before, after) = if let Ok((time, before, after)) = value.extract::<Three<'_>>() {
        (micros(&time)?, priority(&before)?.get().into(), priority(&after)?.get().into())
    } else {
        (micros(value)?, current()?, Priority::MAX.get().into())
    };
    Laxity::new(us, before, after).map_err(|error| hint_error(value.py(), &error))?;
    Ok((us, before, after))
}

/// The number of a priority.
#[pyfunction]
pub(crate) fn parse_priority(value: &Bound<'_, PyAny>) -> PyResult<i16> {
    priority(value).map(Priority::get)
}
