//! The HTTP interface of the reference's `xserver`: its paths, numbers and JSON. `docs/compatibility.md` describes it.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use xsched_ipc::protocol::{HintRequest, QueueStatus, Reply, Request as Ask, Settings, Status, Target};
use xsched_policy::{POLICIES, PolicyInfo};

use super::message::{Request, Response};
use crate::tool::{Tool, ToolError};

/// Answers one request, asking the service at `service`.
pub(super) fn answer(service: &Path, request: &Request) -> Response {
    route(service, request).unwrap_or_else(|response| response)
}

/// Both ways out are responses; the wrong one is that of a request that cannot be answered.
type Answer = Result<Response, Response>;

fn route(service: &Path, request: &Request) -> Answer {
    let path: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
    match (request.method.as_str(), &path[..]) {
        ("GET", ["xqueues"]) => Ok(queues(&connect(service)?.status().map_err(failed)?)),
        ("GET", ["xqueue", handle]) => {
            let handle = handle_of(handle)?;
            let status = connect(service)?.status().map_err(failed)?;
            let queue = find(&status, handle)?;
            Ok(Response::json(
                &json!({ "xqueue": queue_json(queue), "process": process_json(&status, queue.pid) }),
            ))
        }
        ("GET", ["policy"]) => policy(&connect(service)?),
        ("POST", ["policy"]) => {
            let policy = policy_wanted(request)?;
            let ask = Ask::Policy { name: Some(policy.name.to_owned()), timeslice_us: None, k: None };
            done(&connect(service)?, &ask)
        }
        ("POST", ["config", handle]) => {
            let (queue, settings) = (handle_of(handle)?, settings(request)?);
            let tool = connect(service)?;
            find(&tool.status().map_err(failed)?, queue)?;
            done(&tool, &Ask::Configure { queue, settings })
        }
        ("POST", ["hint"]) => hint(service, &request.body),
        (_, ["xqueues"] | ["xqueue", _]) => Err(Response::error(405, "use GET")),
        (_, ["policy"]) => Err(Response::error(405, "use GET or POST")),
        (_, ["config", _] | ["hint"]) => Err(Response::error(405, "use POST")),
        _ => Err(Response::error(404, format_args!("there is nothing at {}", request.path))),
    }
}

fn connect(service: &Path) -> Result<Tool, Response> {
    Tool::connect_to_first(vec![service.to_owned()]).map_err(failed)
}

#[allow(clippy::needless_pass_by_value, reason = "made for `map_err`")]
fn failed(error: ToolError) -> Response {
    Response::error(if matches!(error, ToolError::Refused(_)) { 400 } else { 503 }, error)
}

fn done(tool: &Tool, ask: &Ask) -> Answer {
    match tool.request(ask).map_err(failed)? {
        // A changed policy may be answered with the policy.
        Reply::Done | Reply::Policy { .. } => Ok(Response::json(&json!({ "info": "success" }))),
        _ => Err(failed(tool.unexpected())),
    }
}

fn bad(why: impl std::fmt::Display) -> Response {
    Response::error(400, why)
}

fn handle_of(hex: &str) -> Result<u64, Response> {
    let digits = hex.strip_prefix("0x").unwrap_or(hex);
    // `from_str_radix` alone would take a sign.
    let good = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let handle = if good { u64::from_str_radix(digits, 16).ok() } else { None };
    handle.ok_or_else(|| bad(format_args!("`{hex}` is not the handle of a queue in hexadecimal")))
}

fn find(status: &Status, handle: u64) -> Result<&QueueStatus, Response> {
    let found = status.queues.iter().find(|queue| queue.handle == handle);
    found.ok_or_else(|| Response::error(404, format_args!("there is no queue {handle:#x}")))
}

fn queues(status: &Status) -> Response {
    let mut pids: Vec<u32> = status.queues.iter().map(|queue| queue.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let queues: Vec<Value> = status.queues.iter().map(queue_json).collect();
    let processes: Vec<Value> = pids.into_iter().map(|pid| process_json(status, pid)).collect();
    Response::json(&json!({ "xqueues": queues, "processes": processes }))
}

fn queue_json(queue: &QueueStatus) -> Value {
    json!({
        "handle": queue.handle,
        "device": queue.device,
        "level": queue.level,
        "pid": queue.pid,
        "threshold": queue.threshold,
        "batch_size": queue.batch_size,
        "ready": queue.ready,
        "suspended": queue.suspended,
    })
}

fn process_json(status: &Status, pid: u32) -> Value {
    let task = status.tasks.iter().find(|task| task.pid == pid);
    let cmdline = task.map_or("", |task| if task.cmdline.is_empty() { &task.name } else { &task.cmdline });
    json!({ "pid": pid, "cmdline": cmdline })
}

fn policy(tool: &Tool) -> Answer {
    let ask = Ask::Policy { name: None, timeslice_us: None, k: None };
    let Reply::Policy { name, .. } = tool.request(&ask).map_err(failed)? else {
        return Err(failed(tool.unexpected()));
    };
    // A policy this program does not know has the reference's number for that.
    let number = PolicyInfo::find(&name).map_or(0, |policy| policy.number);
    Ok(Response::json(&json!({ "policy": number })))
}

fn policy_wanted(request: &Request) -> Result<&'static PolicyInfo, Response> {
    let given =
        request.parameter("policy").ok_or_else(|| bad("the number of a policy is missing: ?policy=1"))?;
    let number = given.parse::<u32>().ok();
    POLICIES.iter().find(|policy| Some(policy.number) == number).ok_or_else(|| {
        let known: Vec<_> =
            POLICIES.iter().map(|policy| format!("{} {}", policy.number, policy.name)).collect();
        bad(format_args!("unknown policy `{given}`: use one of {}", known.join(", ")))
    })
}

fn settings(request: &Request) -> Result<Settings, Response> {
    let number = |name: &str, most: i64| {
        let Some(given) = request.parameter(name) else { return Ok(None) };
        match given.parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(Some(number)),
            _ => Err(bad(format_args!("{name} `{given}` is not a number from 1 to {most}"))),
        }
    };
    let settings = Settings {
        level: number("level", 3)?,
        threshold: number("threshold", u32::MAX.into())?,
        batch_size: number("batch_size", u32::MAX.into())?,
    };
    if settings == Settings::default() {
        return Err(bad("nothing to change: give level, threshold or batch_size"));
    }
    Ok(settings)
}

/// The body of a hint. Which fields are needed depends on the type.
#[derive(Deserialize)]
struct Hint {
    #[serde(rename = "hint_type")]
    kind: i64,
    handle: Option<u64>,
    pid: Option<u32>,
    priority: Option<i64>,
    utilization: Option<i64>,
    timeslice: Option<i64>,
    deadline: Option<i64>,
    #[serde(alias = "kdeadline")]
    k: Option<usize>,
    laxity: Option<i64>,
    lax_prio: Option<i64>,
    crit_prio: Option<i64>,
}

fn need<T>(value: Option<T>, name: &str) -> Result<T, Response> {
    value.ok_or_else(|| bad(format_args!("the hint has no `{name}`")))
}

fn hint(service: &Path, body: &[u8]) -> Answer {
    let hint: Hint =
        serde_json::from_slice(body).map_err(|error| bad(format_args!("not a hint: {error}")))?;
    let hint_request = HintRequest::default();
    let hint_request = match hint.kind {
        1 => HintRequest { priority: Some(need(hint.priority, "priority")?), ..hint_request },
        2 => HintRequest { share: Some(need(hint.utilization, "utilization")?), ..hint_request },
        3 => {
            let timeslice_us = Some(need(hint.timeslice, "timeslice")?);
            return done(&connect(service)?, &Ask::Policy { name: None, timeslice_us, k: None });
        }
        4 => HintRequest { deadline_us: Some(need(hint.deadline, "deadline")?), ..hint_request },
        5 => {
            let k = Some(need(hint.k, "k")?);
            return done(&connect(service)?, &Ask::Policy { name: None, timeslice_us: None, k });
        }
        6 => {
            let span = need(hint.laxity, "laxity")?;
            let laxity = (span, hint.lax_prio.unwrap_or(0), hint.crit_prio.unwrap_or(0));
            HintRequest { laxity: Some(laxity), ..hint_request }
        }
        7 => {
            // No process has the number 0: nobody has the focus.
            let pid = Some(need(hint.pid, "pid")?).filter(|pid| *pid != 0);
            return done(&connect(service)?, &Ask::Focus(pid));
        }
        other => {
            return Err(bad(format_args!(
                "unknown hint_type {other}: use 1 (priority), 2 (utilization), 3 (timeslice), 4 (deadline), \
                 5 (k of the deadlines), 6 (laxity) or 7 (window active)"
            )));
        }
    };
    let tool = connect(service)?;
    let order = match (hint.handle, hint.pid) {
        (Some(handle), _) => {
            let queue = find(&tool.status().map_err(failed)?, handle)?.handle;
            Ask::SetQueue { queue, hint_request }
        }
        (None, Some(pid)) => Ask::Set { target: Target::Pid(pid), hint_request },
        (None, None) => return Err(bad("the hint has neither `handle` nor `pid`")),
    };
    done(&tool, &order)
}
