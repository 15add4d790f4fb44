//! Stream capture: operations on a capturing stream are recorded as graph nodes instead of run.
//!
//! The nodes of a graph run in the order of capture, one at a time. That order satisfies their edges, and the
//! device runs one kernel at a time.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::thread::ThreadId;

use crate::code::{Code, Outcome, write_out};
use crate::driver::{Driver, Handle, driver, new_handle};
use crate::stream::{DefaultStream, Kind, Work, resolve, with_room};

/// Capture modes: global forbids unsafe calls to all threads, relaxed to none. The mode between them, thread-local (1),
/// forbids them to the capturing thread.
const GLOBAL: c_int = 0;
const RELAXED: c_int = 2;

/// The capture that a stream takes part in.
#[derive(Clone)]
pub(crate) struct Capturing {
    pub(crate) id: Handle,
    /// The nodes that the next node of this stream depends on.
    pub(crate) last: Vec<usize>,
}

/// A capture that has not ended.
pub(crate) struct CaptureState {
    origin: Handle,
    mode: c_int,
    thread: ThreadId,
    nodes: Vec<Node>,
    invalid: bool,
}

#[derive(Clone)]
struct Node {
    work: Work,
    after: Vec<usize>,
}

/// The result of a capture.
pub(crate) struct Graph {
    nodes: Vec<Node>,
}

/// An executable graph.
pub(crate) struct Exec {
    graph: Arc<Graph>,
    /// Its last launch: the next launch runs after it, on any stream.
    last: Option<(Handle, u64)>,
    /// The memory of its allocation nodes is reserved.
    has_memory: bool,
}

impl Exec {
    /// The memory of the graph was given back to the device.
    pub(crate) fn forget_memory(&mut self) {
        self.has_memory = false;
    }
}

thread_local! {
    /// This thread's capture mode.
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Invalidates a capture.
pub(crate) fn invalidate(driver: &mut Driver, id: Handle) {
    if let Some(state) = driver.captures.get_mut(&id) {
        state.invalid = true;
    }
}

/// Checks that a capture is valid.
pub(crate) fn check(driver: &Driver, id: Handle) -> Outcome {
    let valid = driver.captures.get(&id).is_some_and(|state| !state.invalid);
    if valid { Ok(()) } else { Err(Code::ERROR_STREAM_CAPTURE_INVALIDATED) }
}

/// The capture that makes the legacy default stream unusable, if there is one: that stream waits for blocking streams.
fn conflicting_capture(driver: &Driver, stream: Handle) -> Option<Handle> {
    let its = driver.streams.get(&stream).filter(|its| its.kind == Kind::Legacy)?;
    let blocking =
        |other: &&crate::stream::Stream| other.context == its.context && other.kind == Kind::Blocking;
    let captured = driver.streams.values().filter(blocking).find_map(|other| other.capturing.as_ref());
    captured.map(|capturing| capturing.id)
}

/// Rejects an operation that would make the legacy default stream wait for a capturing stream.
pub(crate) fn forbid_implicit(driver: &mut Driver, stream: Handle) -> Outcome {
    let Some(id) = conflicting_capture(driver, stream) else { return Ok(()) };
    invalidate(driver, id);
    Err(Code::ERROR_STREAM_CAPTURE_IMPLICIT)
}

/// Rejects an operation that is not allowed on a capturing stream.
pub(crate) fn forbid(driver: &mut Driver, stream: Handle) -> Outcome {
    forbid_implicit(driver, stream)?;
    if let Some(Capturing { id, .. }) = driver.streams.get(&stream).and_then(|its| its.capturing.clone()) {
        invalidate(driver, id);
        return Err(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// Rejects a potentially unsafe call while a capture forbids it to this thread.
pub(crate) fn forbid_unsafe(driver: &mut Driver) -> Outcome {
    let (me, mode) = (std::thread::current().id(), MODE.get());
    let forbids = |state: &&mut CaptureState| match (mode, state.mode) {
        (RELAXED, _) | (_, RELAXED) => false,
        (GLOBAL, GLOBAL) => true,
        _ => state.thread == me,
    };
    match driver.captures.values_mut().find(forbids) {
        None => Ok(()),
        Some(state) => {
            state.invalid = true;
            Err(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// Records an operation of a capturing stream.
pub(crate) fn add(driver: &mut Driver, stream: Handle, work: Work) -> Outcome {
    let Some(Capturing { id, last }) = driver.streams.get(&stream).and_then(|its| its.capturing.clone())
    else {
        return Err(Code::ERROR_ILLEGAL_STATE);
    };
    check(driver, id)?;
    if matches!(work, Work::Await(_) | Work::Record(_)) {
        // Waiting for an event that was recorded outside would make the graph depend on uncaptured work.
        invalidate(driver, id);
        return Err(Code::ERROR_STREAM_CAPTURE_ISOLATION);
    }
    let Some(state) = driver.captures.get_mut(&id) else { return Err(Code::ERROR_ILLEGAL_STATE) };
    state.nodes.push(Node { work, after: last });
    let node = state.nodes.len() - 1;
    if let Some(capturing) = driver.streams.get_mut(&stream).and_then(|its| its.capturing.as_mut()) {
        capturing.last = vec![node];
    }
    Ok(())
}

/// Makes a stream wait for nodes of a capture: the stream joins the capture.
pub(crate) fn join(driver: &mut Driver, stream: Handle, id: Handle, nodes: &[usize]) -> Outcome {
    if !driver.captures.contains_key(&id) {
        // The capture has ended, so the event is not valid for a wait.
        return Err(Code::ERROR_INVALID_VALUE);
    }
    check(driver, id)?;
    let Some(its) = driver.streams.get_mut(&stream) else { return Err(Code::ERROR_INVALID_HANDLE) };
    match &mut its.capturing {
        Some(capturing) if capturing.id != id => {
            let other = capturing.id;
            invalidate(driver, id);
            invalidate(driver, other);
            Err(Code::ERROR_STREAM_CAPTURE_MERGE)
        }
        Some(capturing) => {
            capturing.last.extend(nodes);
            Ok(())
        }
        None if its.kind == Kind::Legacy => Err(Code::ERROR_STREAM_CAPTURE_IMPLICIT),
        None => {
            its.capturing = Some(Capturing { id, last: nodes.to_vec() });
            Ok(())
        }
    }
}

impl CaptureState {
    /// Whether a node precedes one of these nodes, or is one of them.
    fn leads_to(&self, node: usize, ends: &[usize]) -> bool {
        let mut open = ends.to_vec();
        while let Some(next) = open.pop() {
            if next == node {
                return true;
            }
            open.extend(&self.nodes[next].after);
        }
        false
    }
}

pub(crate) unsafe fn begin(default_stream: DefaultStream, stream: Handle, mode: c_int) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let Some(its) = driver.streams.get_mut(&stream) else { return Err(Code::ERROR_INVALID_HANDLE) };
    if its.kind == Kind::Legacy {
        return Err(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if its.capturing.is_some() {
        return Err(Code::ERROR_ILLEGAL_STATE);
    }
    let id = new_handle();
    its.capturing = Some(Capturing { id, last: Vec::new() });
    let thread = std::thread::current().id();
    driver
        .captures
        .insert(id, CaptureState { origin: stream, mode, thread, nodes: Vec::new(), invalid: false });
    Ok(())
}

pub(crate) unsafe fn end(default_stream: DefaultStream, stream: Handle, out: *mut Handle) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, 0) }?;
    let Some(Capturing { id, last }) = driver.streams[&stream].capturing.clone() else {
        return Err(Code::ERROR_ILLEGAL_STATE);
    };
    let Some(state) = driver.captures.get(&id) else { return Err(Code::ERROR_ILLEGAL_STATE) };
    if state.origin != stream {
        invalidate(&mut driver, id);
        return Err(Code::ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if state.mode != RELAXED && state.thread != std::thread::current().id() {
        return Err(Code::ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let joined = driver.streams.values().filter_map(|its| its.capturing.as_ref()).filter(|its| its.id == id);
    let all_joined = joined.flat_map(|its| &its.last).all(|node| state.leads_to(*node, &last));
    for its in driver.streams.values_mut() {
        its.capturing = its.capturing.take().filter(|capturing| capturing.id != id);
    }
    let Some(state) = driver.captures.remove(&id) else { return Err(Code::ERROR_ILLEGAL_STATE) };
    if state.invalid {
        return Err(Code::ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    if !all_joined {
        return Err(Code::ERROR_STREAM_CAPTURE_UNJOINED);
    }
    let graph = new_handle();
    driver.graphs.insert(graph, Arc::new(Graph { nodes: state.nodes }));
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, graph) }
}

pub(crate) unsafe fn is_capturing(default_stream: DefaultStream, stream: Handle, out: *mut c_int) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    if conflicting_capture(&driver, stream).is_some() {
        return Err(Code::ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    let status = match &driver.streams[&stream].capturing {
        None => 0,
        Some(capturing) if check(&driver, capturing.id).is_ok() => 1,
        Some(_) => 2,
    };
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, status) }
}

pub(crate) unsafe fn exchange_mode(mode: *mut c_int) -> Outcome {
    // SAFETY: null, or a valid mode as the caller guarantees.
    let mode = unsafe { mode.as_mut() }.ok_or(Code::ERROR_INVALID_VALUE)?;
    if !(GLOBAL..=RELAXED).contains(mode) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    *mode = MODE.replace(*mode);
    Ok(())
}

pub(crate) unsafe fn instantiate(out: *mut Handle, graph: Handle, _flags: u64) -> Outcome {
    let mut driver = driver()?;
    let graph = Arc::clone(driver.graphs.get(&graph).ok_or(Code::ERROR_INVALID_VALUE)?);
    let exec = new_handle();
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, exec) }?;
    driver.execs.insert(exec, Exec { graph, last: None, has_memory: false });
    Ok(())
}

pub(crate) unsafe fn instantiate_old(
    out: *mut Handle,
    graph: Handle,
    _node: *mut c_void,
    _log: *mut c_void,
    _size: usize,
) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { instantiate(out, graph, 0) }
}

pub(crate) unsafe fn upload(default_stream: DefaultStream, exec: Handle, stream: Handle) -> Outcome {
    let mut driver = driver()?;
    resolve(&mut driver, default_stream, stream)?;
    if driver.execs.contains_key(&exec) { Ok(()) } else { Err(Code::ERROR_INVALID_VALUE) }
}

/// Reserves the memory of a graph's allocation nodes, at its first launch.
fn reserve_memory(driver: &mut Driver, exec: Handle, graph: &Graph) -> Outcome {
    let Some(exec) = driver.execs.get_mut(&exec) else { return Ok(()) };
    if std::mem::replace(&mut exec.has_memory, true) {
        return Ok(());
    }
    for node in &graph.nodes {
        if let Work::GraphAllocation { device, bytes } = node.work {
            driver.reserve_for_graph(device, bytes)?;
        }
    }
    Ok(())
}

pub(crate) unsafe fn launch(default_stream: DefaultStream, exec: Handle, stream: Handle) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    forbid_implicit(&mut driver, stream)?;
    let graph = Arc::clone(&driver.execs.get(&exec).ok_or(Code::ERROR_INVALID_VALUE)?.graph);
    if driver.streams[&stream].capturing.is_some() {
        // Recorded as a child graph of the graph being captured.
        return graph.nodes.iter().try_for_each(|node| add(&mut driver, stream, node.work.clone()));
    }
    reserve_memory(&mut driver, exec, &graph)?;
    let mut driver = with_room(driver, stream)?;
    let mut after: Vec<_> = driver.execs.get(&exec).and_then(|exec| exec.last).into_iter().collect();
    for node in &graph.nodes {
        let number = driver.push(stream, node.work.clone(), &after);
        after.clear();
        if let Some(exec) = driver.execs.get_mut(&exec) {
            exec.last = Some((stream, number));
        }
    }
    Ok(())
}

pub(crate) unsafe fn nodes(graph: Handle, _out: *mut Handle, count: *mut usize) -> Outcome {
    let driver = driver()?;
    let graph = driver.graphs.get(&graph).ok_or(Code::ERROR_INVALID_VALUE)?;
    // SAFETY: the caller guarantees that `count` is valid.
    unsafe { write_out(count, graph.nodes.len()) }
}

pub(crate) unsafe fn destroy(graph: Handle) -> Outcome {
    driver()?.graphs.remove(&graph).map(drop).ok_or(Code::ERROR_INVALID_VALUE)
}

pub(crate) unsafe fn destroy_exec(exec: Handle) -> Outcome {
    driver()?.execs.remove(&exec).map(drop).ok_or(Code::ERROR_INVALID_VALUE)
}

pub(crate) unsafe fn capture_info(
    default_stream: DefaultStream,
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    _graph: *mut Handle,
    _dependencies: *mut c_void,
    _count: *mut usize,
) -> Outcome {
    // SAFETY: the caller guarantees that `status` is valid.
    unsafe { is_capturing(default_stream, stream, status) }?;
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    let own = driver.streams[&stream].capturing.as_ref().map_or(0, |capturing| capturing.id as u64);
    // SAFETY: null, or the caller guarantees that it is valid.
    if id.is_null() { Ok(()) } else { unsafe { write_out(id, own) } }
}
