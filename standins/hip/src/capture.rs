//! Stream capture and graphs: a graph is the list of operations on a stream while it was capturing.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::device::write_out;
use crate::error::{CAPTURE_IMPLICIT, CAPTURE_UNMATCHED, Code, INVALID_VALUE, to_code};
use crate::stream::{self, Handle, Stream};

/// The operations recorded so far.
#[derive(Default)]
pub(crate) struct Capture(Vec<Node>);

#[derive(Clone, Copy)]
pub(crate) enum Node {
    /// A kernel of this length.
    Kernel(Duration),
    /// An event was recorded.
    Event,
}

/// The number of capturing streams.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

impl Stream {
    /// Records an operation, if the stream is capturing.
    pub(crate) fn record(&self, node: Node) -> bool {
        let mut capture = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        capture.as_mut().map(|capture| capture.0.push(node)).is_some()
    }
}

pub(crate) extern "C" fn begin(handle: Handle, _mode: c_int) -> Code {
    to_code(stream::get(handle).and_then(|stream| {
        if handle.addr() <= 1 {
            return Err(CAPTURE_IMPLICIT);
        }
        CAPTURES.fetch_add(1, Ordering::SeqCst);
        *stream.capture.lock().unwrap_or_else(PoisonError::into_inner) = Some(Capture::default());
        Ok(())
    }))
}

pub(crate) extern "C" fn end(handle: Handle, graph: *mut *mut c_void) -> Code {
    to_code(stream::get(handle).and_then(|stream| {
        let capture = stream.capture.lock().unwrap_or_else(PoisonError::into_inner).take();
        let capture = capture.ok_or(CAPTURE_UNMATCHED)?;
        CAPTURES.fetch_sub(1, Ordering::SeqCst);
        write_out(graph, Box::into_raw(Box::new(capture)).cast())
    }))
}

/// A query of the legacy stream while another stream is capturing is an error.
pub(crate) extern "C" fn is_capturing(handle: Handle, status: *mut c_int) -> Code {
    to_code(stream::get(handle).and_then(|stream| {
        if handle.addr() <= 1 && CAPTURES.load(Ordering::SeqCst) > 0 {
            return Err(CAPTURE_IMPLICIT);
        }
        let capture = stream.capture.lock().unwrap_or_else(PoisonError::into_inner);
        write_out(status, c_int::from(capture.is_some()))
    }))
}

pub(crate) extern "C" fn get_nodes(graph: *const Capture, _nodes: *mut c_void, count: *mut usize) -> Code {
    // SAFETY: null, or a graph that `end` created.
    to_code(unsafe { graph.as_ref() }.ok_or(INVALID_VALUE).and_then(|graph| write_out(count, graph.0.len())))
}

/// An executable graph is a copy of the graph.
pub(crate) extern "C" fn instantiate(
    out: *mut *mut c_void,
    graph: *const Capture,
    _node: *mut c_void,
    _log: *mut c_void,
    _size: usize,
) -> Code {
    // SAFETY: as above.
    to_code(unsafe { graph.as_ref() }.ok_or(INVALID_VALUE).and_then(|graph| {
        let copy = Box::new(Capture(graph.0.clone()));
        write_out(out, Box::into_raw(copy).cast())
    }))
}

pub(crate) extern "C" fn destroy(graph: *mut Capture) -> Code {
    if !graph.is_null() {
        // SAFETY: created by one of the functions above, and the caller guarantees that this is its last use.
        drop(unsafe { Box::from_raw(graph) });
    }
    to_code(Ok(()))
}

pub(crate) extern "C" fn launch(graph: *const Capture, handle: Handle) -> Code {
    // SAFETY: as above.
    to_code(unsafe { graph.as_ref() }.ok_or(INVALID_VALUE).and_then(|graph| {
        let stream = stream::get(handle)?;
        graph.0.iter().try_for_each(|node| match node {
            Node::Kernel(length) => stream.queue.launch(*length),
            Node::Event => Ok(()),
        })
    }))
}

pub(crate) extern "C" fn launch_spt(graph: *const Capture, handle: Handle) -> Code {
    launch(graph, stream::per_thread(handle))
}

pub(crate) extern "C" fn launch_host_function(
    handle: Handle,
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> Code {
    to_code(stream::get(handle).and_then(|stream| {
        let marker = stream.queue.mark()?;
        stream.queue.wait(marker)?;
        // SAFETY: the caller passes a function that may be called with `data`.
        unsafe { function(data) };
        Ok(())
    }))
}

pub(crate) extern "C" fn exchange_mode(mode: *mut c_uint) -> Code {
    let _ = mode;
    to_code(Ok(()))
}
