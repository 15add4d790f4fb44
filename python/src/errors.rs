//! The package's exceptions. They are defined in Python, because `OutOfRange` is also a `ValueError`.

use pyo3::prelude::*;
use xsched_core::HintError;
use xsched_ipc::tool::ToolError;

/// An exception of `xsched._errors` by its class name, or the error of creating it.
pub(crate) fn exception(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let created = py
        .import("xsched._errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((message,)));
    match created {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// An `OutOfRange` error.
pub(crate) fn out_of_range(py: Python<'_>, message: &str) -> PyErr {
    exception(py, "OutOfRange", message)
}

/// As [`out_of_range`], with the message of the hint.
pub(crate) fn hint_error(py: Python<'_>, error: &HintError) -> PyErr {
    out_of_range(py, &error.to_string())
}

/// An error of the service, with the message of the command line, after `context` if there is one.
pub(crate) fn tool_error(py: Python<'_>, error: &ToolError, context: Option<&str>) -> PyErr {
    let class = match error {
        ToolError::NoService { .. } => "NoScheduler",
        ToolError::NotAllowed { .. } => "NotAllowed",
        ToolError::Refused(_) => "Refused",
        ToolError::NoReply { .. }
        | ToolError::NotAccepted { .. }
        | ToolError::ConnectionFailed { .. }
        | ToolError::UnexpectedReply { .. } => "SchedulerFailed",
    };
    match context {
        Some(context) => exception(py, class, &format!("{context}: {error}")),
        None => exception(py, class, &error.to_string()),
    }
}
