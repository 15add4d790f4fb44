//! Capture: what is put into a stream is written down instead of done; and the graphs that come of it.
//!
//! A graph's nodes are done one after the other in the order they were captured. That is one of the orders their edges
//! allow, and this device runs one kernel at a time.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::thread::ThreadId;

use crate::code::{Code, Outcome, put};
use crate::stream::{Form, Kind, Work, resolve, with_room};
use crate::world::{Handle, World, new_handle, world};

/// How much a capture forbids: to everybody, to its own thread, to nobody.
/// (1, to its own thread, is all that is left between the two.)
const GLOBAL: c_int = 0;
const RELAXED: c_int = 2;

/// What is known of a stream that is being captured.
#[derive(Clone)]
pub(crate) struct Capturing {
    pub(crate) id: Handle,
    /// The nodes that whatever comes next in this stream comes after.
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

/// What a capture comes to.
pub(crate) struct Graph {
    nodes: Vec<Node>,
}

/// A graph that can be launched.
pub(crate) struct Exec {
    graph: Arc<Graph>,
    /// Its last launch: the next one comes after it, in whatever stream.
    last: Option<(Handle, u64)>,
}

thread_local! {
    /// What this thread lets captures forbid it.
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// A capture is worth nothing any more.
pub(crate) fn invalidate(world: &mut World, id: Handle) {
    if let Some(state) = world.captures.get_mut(&id) {
        state.invalid = true;
    }
}

/// Whether a capture can go on.
pub(crate) fn check(world: &World, id: Handle) -> Outcome {
    let valid = world.captures.get(&id).is_some_and(|state| !state.invalid);
    if valid { Ok(()) } else { Err(Code::ERROR_STREAM_CAPTURE_INVALIDATED) }
}

/// The capture that makes using the legacy default stream impossible, if there is one: it waits for blocking streams.
fn in_the_way(world: &World, stream: Handle) -> Option<Handle> {
    let its = world.streams.get(&stream).filter(|its| its.kind == Kind::Legacy)?;
    let blocking =
        |other: &&crate::stream::Stream| other.context == its.context && other.kind == Kind::Blocking;
    let captured = world.streams.values().filter(blocking).find_map(|other| other.capturing.as_ref());
    captured.map(|capturing| capturing.id)
}

/// Refuses what would make the legacy default stream wait for a stream that is being captured.
pub(crate) fn forbid_implicit(world: &mut World, stream: Handle) -> Outcome {
    let Some(id) = in_the_way(world, stream) else { return Ok(()) };
    invalidate(world, id);
    Err(Code::ERROR_STREAM_CAPTURE_IMPLICIT)
}

/// Refuses what cannot be asked of a stream that is being captured.
pub(crate) fn forbid(world: &mut World, stream: Handle) -> Outcome {
    forbid_implicit(world, stream)?;
    if let Some(Capturing { id, .. }) = world.streams.get(&stream).and_then(|its| its.capturing.clone()) {
        invalidate(world, id);
        return Err(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// Refuses what may harm a capture that this thread may not even know of.
pub(crate) fn forbid_unsafe(world: &mut World) -> Outcome {
    let (me, mode) = (std::thread::current().id(), MODE.get());
    let forbids = |state: &&mut CaptureState| match (mode, state.mode) {
        (RELAXED, _) | (_, RELAXED) => false,
        (GLOBAL, GLOBAL) => true,
        _ => state.thread == me,
    };
    match world.captures.values_mut().find(forbids) {
        None => Ok(()),
        Some(state) => {
            state.invalid = true;
            Err(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// Writes something down.
pub(crate) fn add(world: &mut World, stream: Handle, work: Work) -> Outcome {
    let Some(Capturing { id, last }) = world.streams.get(&stream).and_then(|its| its.capturing.clone())
    else {
        return Err(Code::ERROR_ILLEGAL_STATE);
    };
    check(world, id)?;
    if matches!(work, Work::Await(_) | Work::Record(_)) {
        // Waiting for what was recorded outside would make the capture depend on what is not in it.
        invalidate(world, id);
        return Err(Code::ERROR_STREAM_CAPTURE_ISOLATION);
    }
    let Some(state) = world.captures.get_mut(&id) else { return Err(Code::ERROR_ILLEGAL_STATE) };
    state.nodes.push(Node { work, after: last });
    let node = state.nodes.len() - 1;
    if let Some(capturing) = world.streams.get_mut(&stream).and_then(|its| its.capturing.as_mut()) {
        capturing.last = vec![node];
    }
    Ok(())
}

/// A stream waits for something in a capture: it is captured too from now on.
pub(crate) fn join(world: &mut World, stream: Handle, id: Handle, nodes: &[usize]) -> Outcome {
    if !world.captures.contains_key(&id) {
        // The capture has ended: the event stands for nothing.
        return Err(Code::ERROR_INVALID_VALUE);
    }
    check(world, id)?;
    let Some(its) = world.streams.get_mut(&stream) else { return Err(Code::ERROR_INVALID_HANDLE) };
    match &mut its.capturing {
        Some(capturing) if capturing.id != id => {
            let other = capturing.id;
            invalidate(world, id);
            invalidate(world, other);
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
    /// Whether a node comes before one of these, or is one of them.
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

pub(crate) unsafe fn begin(form: Form, stream: Handle, mode: c_int) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let Some(its) = world.streams.get_mut(&stream) else { return Err(Code::ERROR_INVALID_HANDLE) };
    if its.kind == Kind::Legacy {
        return Err(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if its.capturing.is_some() {
        return Err(Code::ERROR_ILLEGAL_STATE);
    }
    let id = new_handle();
    its.capturing = Some(Capturing { id, last: Vec::new() });
    let thread = std::thread::current().id();
    world
        .captures
        .insert(id, CaptureState { origin: stream, mode, thread, nodes: Vec::new(), invalid: false });
    Ok(())
}

pub(crate) unsafe fn end(form: Form, stream: Handle, out: *mut Handle) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, 0) }?;
    let Some(Capturing { id, last }) = world.streams[&stream].capturing.clone() else {
        return Err(Code::ERROR_ILLEGAL_STATE);
    };
    let Some(state) = world.captures.get(&id) else { return Err(Code::ERROR_ILLEGAL_STATE) };
    if state.origin != stream {
        invalidate(&mut world, id);
        return Err(Code::ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if state.mode != RELAXED && state.thread != std::thread::current().id() {
        return Err(Code::ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let joined = world.streams.values().filter_map(|its| its.capturing.as_ref()).filter(|its| its.id == id);
    let all_joined = joined.flat_map(|its| &its.last).all(|node| state.leads_to(*node, &last));
    for its in world.streams.values_mut() {
        its.capturing = its.capturing.take().filter(|capturing| capturing.id != id);
    }
    let Some(state) = world.captures.remove(&id) else { return Err(Code::ERROR_ILLEGAL_STATE) };
    if state.invalid {
        return Err(Code::ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    if !all_joined {
        return Err(Code::ERROR_STREAM_CAPTURE_UNJOINED);
    }
    let graph = new_handle();
    world.graphs.insert(graph, Arc::new(Graph { nodes: state.nodes }));
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, graph) }
}

pub(crate) unsafe fn is_capturing(form: Form, stream: Handle, out: *mut c_int) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    if in_the_way(&world, stream).is_some() {
        return Err(Code::ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    let status = match &world.streams[&stream].capturing {
        None => 0,
        Some(capturing) if check(&world, capturing.id).is_ok() => 1,
        Some(_) => 2,
    };
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, status) }
}

pub(crate) unsafe fn exchange_mode(mode: *mut c_int) -> Outcome {
    // SAFETY: null, or the caller vouches for a mode.
    let mode = unsafe { mode.as_mut() }.ok_or(Code::ERROR_INVALID_VALUE)?;
    if !(GLOBAL..=RELAXED).contains(mode) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    *mode = MODE.replace(*mode);
    Ok(())
}

pub(crate) unsafe fn instantiate(out: *mut Handle, graph: Handle, _flags: u64) -> Outcome {
    let mut world = world()?;
    let graph = Arc::clone(world.graphs.get(&graph).ok_or(Code::ERROR_INVALID_VALUE)?);
    let exec = new_handle();
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, exec) }?;
    world.execs.insert(exec, Exec { graph, last: None });
    Ok(())
}

pub(crate) unsafe fn instantiate_old(
    out: *mut Handle,
    graph: Handle,
    _node: *mut c_void,
    _log: *mut c_void,
    _size: usize,
) -> Outcome {
    // SAFETY: the caller vouches for `out`.
    unsafe { instantiate(out, graph, 0) }
}

pub(crate) unsafe fn upload(form: Form, exec: Handle, stream: Handle) -> Outcome {
    let mut world = world()?;
    resolve(&mut world, form, stream)?;
    if world.execs.contains_key(&exec) { Ok(()) } else { Err(Code::ERROR_INVALID_VALUE) }
}

pub(crate) unsafe fn launch(form: Form, exec: Handle, stream: Handle) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    forbid_implicit(&mut world, stream)?;
    let graph = Arc::clone(&world.execs.get(&exec).ok_or(Code::ERROR_INVALID_VALUE)?.graph);
    if world.streams[&stream].capturing.is_some() {
        // As a child of the graph that is being made.
        return graph.nodes.iter().try_for_each(|node| add(&mut world, stream, node.work.clone()));
    }
    let mut world = with_room(world, stream)?;
    let mut after: Vec<_> = world.execs.get(&exec).and_then(|exec| exec.last).into_iter().collect();
    for node in &graph.nodes {
        let number = world.push(stream, node.work.clone(), &after);
        after.clear();
        if let Some(exec) = world.execs.get_mut(&exec) {
            exec.last = Some((stream, number));
        }
    }
    Ok(())
}

pub(crate) unsafe fn nodes(graph: Handle, _out: *mut Handle, count: *mut usize) -> Outcome {
    let world = world()?;
    let graph = world.graphs.get(&graph).ok_or(Code::ERROR_INVALID_VALUE)?;
    // SAFETY: the caller vouches for `count`.
    unsafe { put(count, graph.nodes.len()) }
}

pub(crate) unsafe fn destroy(graph: Handle) -> Outcome {
    world()?.graphs.remove(&graph).map(drop).ok_or(Code::ERROR_INVALID_VALUE)
}

pub(crate) unsafe fn destroy_exec(exec: Handle) -> Outcome {
    world()?.execs.remove(&exec).map(drop).ok_or(Code::ERROR_INVALID_VALUE)
}

pub(crate) unsafe fn capture_info(
    form: Form,
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    _graph: *mut Handle,
    _dependencies: *mut c_void,
    _count: *mut usize,
) -> Outcome {
    // SAFETY: the caller vouches for `status`.
    unsafe { is_capturing(form, stream, status) }?;
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    let own = world.streams[&stream].capturing.as_ref().map_or(0, |capturing| capturing.id as u64);
    // SAFETY: null, or the caller vouches for it.
    if id.is_null() { Ok(()) } else { unsafe { put(id, own) } }
}
