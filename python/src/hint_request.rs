//! Priorities, shares and times as Python writes them. Ranges are checked where the command line checks them, with its
//! words.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use xsched_core::parse_time;
use xsched_core::{Deadline, Laxity, Nanos, Priority, Share, Timeslice};
use xsched_ipc::protocol::HintRequest;

use crate::errors::{hint_error, out_of_range};

/// A number, or `low`, `normal` or `high`.
pub(crate) fn priority(value: &Bound<'_, PyAny>) -> PyResult<Priority> {
    let py = value.py();
    if let Ok(word) = value.extract::<String>() {
        return word.parse().map_err(|error| hint_error(py, &error));
    }
    let number: i64 = value.extract().map_err(|_| not(value, "a whole number, 'low', 'normal' or 'high'"))?;
    Priority::new(number).map_err(|error| hint_error(py, &error))
}

/// Percent.
fn share(value: &Bound<'_, PyAny>) -> PyResult<Share> {
    let percent: i64 = value.extract().map_err(|_| not(value, "a whole number of percent"))?;
    Share::new(percent).map_err(|error| hint_error(value.py(), &error))
}

/// `"5ms"` or a timedelta, in microseconds. A bare number is refused: its unit would be a guess.
fn micros(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    if let Ok(text) = value.extract::<String>() {
        let Nanos(ns) = parse_time(&text).map_err(|error| out_of_range(value.py(), &error))?;
        return Ok(i64::try_from(ns / 1_000).unwrap_or(i64::MAX));
    }
    let Ok(seconds) = value.call_method0("total_seconds") else {
        return Err(not(value, "a time such as '5ms', or a timedelta"));
    };
    let seconds: f64 = seconds.extract()?;
    #[allow(clippy::cast_possible_truncation, reason = "what is too large for an i64 is out of every range")]
    Ok((seconds * 1e6).round() as i64)
}

/// The length of a turn in microseconds.
pub(crate) fn timeslice(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let us = micros(value)?;
    Timeslice::from_micros(us).map(|_| us).map_err(|error| hint_error(value.py(), &error))
}

fn is_none_word(value: &Bound<'_, PyAny>) -> bool {
    value.extract::<String>().is_ok_and(|word| word.eq_ignore_ascii_case("none"))
}

fn not(value: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    let shown = value.repr().map_or_else(|_| "this value".to_owned(), |text| text.to_string());
    PyTypeError::new_err(format!("{shown} is not {wanted}"))
}

/// What may be wished for, as Python was given it.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a, 'py> {
    pub(crate) priority: Option<&'a Bound<'py, PyAny>>,
    pub(crate) share: Option<&'a Bound<'py, PyAny>>,
    pub(crate) deadline: Option<&'a Bound<'py, PyAny>>,
    pub(crate) laxity: Option<&'a Bound<'py, PyAny>>,
}

impl Given<'_, '_> {
    /// The hint_request. `usual` tells the priority that it has now, for a laxity without priorities of its own.
    pub(crate) fn hint_request(&self, usual: impl FnOnce() -> PyResult<i64>) -> PyResult<HintRequest> {
        let priority = self.priority.map(priority).transpose()?;
        let deadline_us = match self.deadline {
            Some(value) if is_none_word(value) => Some(-1),
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
                Some(value) if is_none_word(value) => Some((-1, 0, 0)),
                Some(value) => {
                    Some(laxity(value, || priority.map_or_else(usual, |priority| Ok(priority.get().into())))?)
                }
                None => None,
            },
        })
    }
}

/// A time; or a time, the priority before and the priority after.
fn laxity(value: &Bound<'_, PyAny>, usual: impl FnOnce() -> PyResult<i64>) -> PyResult<(i64, i64, i64)> {
    type Three<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);
    let (us, before, after) = if let Ok((time, before, after)) = value.extract::<Three<'_>>() {
        (micros(&time)?, priority(&before)?.get().into(), priority(&after)?.get().into())
    } else {
        (micros(value)?, usual()?, Priority::MAX.get().into())
    };
    Laxity::new(us, before, after).map_err(|error| hint_error(value.py(), &error))?;
    Ok((us, before, after))
}

/// The number that a priority stands for.
#[pyfunction]
pub(crate) fn parse_priority(value: &Bound<'_, PyAny>) -> PyResult<i16> {
    priority(value).map(Priority::get)
}
