//! The package's exceptions. They are written in Python, so that one can be a `ValueError` as well.

use pyo3::prelude::*;
use xsched_core::HintError;
use xsched_ipc::tool::ToolError;

/// An exception of `xsched._errors` by its name, or why there is none.
pub(crate) fn exception(py: Python<'_>, class: &str, words: &str) -> PyErr {
    let made = py
        .import("xsched._errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((words,)));
    match made {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// A value that cannot be.
pub(crate) fn out_of_range(py: Python<'_>, words: &str) -> PyErr {
    exception(py, "OutOfRange", words)
}

/// As [`out_of_range`], with the words of the hint.
pub(crate) fn hint_error(py: Python<'_>, error: &HintError) -> PyErr {
    out_of_range(py, &error.to_string())
}

/// The words are those of the command line, after `context` if there is one.
pub(crate) fn tool_error(py: Python<'_>, error: &ToolError, context: Option<&str>) -> PyErr {
    let class = match error {
        ToolError::NoService { .. } => "NoScheduler",
        ToolError::NotAllowed { .. } => "NotAllowed",
        ToolError::Refused(_) => "Refused",
        ToolError::NoReply { .. }
        | ToolError::ConnectionFailed { .. }
        | ToolError::UnexpectedReply { .. } => "SchedulerFailed",
    };
    match context {
        Some(context) => exception(py, class, &format!("{context}: {error}")),
        None => exception(py, class, &error.to_string()),
    }
}
