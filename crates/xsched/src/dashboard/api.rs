//! The paths of the dashboard.
//!
//! | request | response |
//! |---|---|
//! | `GET /`, `/dashboard.js` and the other [`FILES`] | the page |
//! | `GET /api/state?after=N&events=1` | the state of the service, and the timeline after sequence number N |
//! | `POST /api/task` | changes a task |
//! | `POST /api/policy` | changes the policy |
//! | `POST /api/grant` | suspends or resumes the processes of a grant |

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use xsched_ipc::protocol::{HintRequest, Request as ServiceRequest, Target};
use xsched_policy::POLICIES;

use super::access::{check_source, check_token};
use super::feed::{Feed, Report, Service};
use crate::http::{Request, Response, Token};
use crate::tool::{ToolConnection, ToolError};
use crate::{status, term};

const PAGE: &str = include_str!("page/page.html");

/// The files of the page: path, content type and text.
const FILES: [(&str, &str, &str); 8] = [
    ("/", "text/html; charset=utf-8", PAGE),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/dashboard.js", SCRIPT_TYPE, include_str!("page/page.js")),
    ("/format.js", SCRIPT_TYPE, include_str!("page/format.js")),
    ("/grants.js", SCRIPT_TYPE, include_str!("page/grants.js")),
    ("/tasks.js", SCRIPT_TYPE, include_str!("page/tasks.js")),
    ("/timeline.js", SCRIPT_TYPE, include_str!("page/timeline.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];
const SCRIPT_TYPE: &str = "text/javascript; charset=utf-8";

/// The changes that one dashboard may request in a second. The service handles each of them.
const CHANGES_PER_SECOND: f64 = 20.0;

/// Limits the changes per second; as many may be requested at once.
struct ChangeLimit {
    left: f64,
    at: Instant,
}

impl ChangeLimit {
    /// Counts a change. Returns whether it is allowed.
    fn allows(&mut self, now: Instant) -> bool {
        let regained = now.saturating_duration_since(self.at).as_secs_f64() * CHANGES_PER_SECOND;
        self.left = (self.left + regained).min(CHANGES_PER_SECOND);
        self.at = now;
        let allows = self.left >= 1.0;
        if allows {
            self.left -= 1.0;
        }
        allows
    }
}

/// Responds to the requests of pages.
pub(super) struct Api {
    token: Token,
    feed: Arc<Feed>,
    changes: Mutex<ChangeLimit>,
}

/// What a page changes about a task. Fields that are none are not changed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskChange {
    /// The process id of the service in whose status the task is.
    service: u32,
    task: u64,
    priority: Option<i64>,
    share: Option<i64>,
    suspended: Option<bool>,
}

/// What a page changes about the policy.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyChange {
    name: String,
}

/// What a page changes about a grant.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantChange {
    name: String,
    suspended: bool,
}

/// The response to a valid request, or the response that reports an error.
type RouteResult = Result<Response, Response>;

impl Api {
    pub(super) fn new(token: Token, feed: Arc<Feed>) -> Self {
        let changes = ChangeLimit { left: CHANGES_PER_SECOND, at: Instant::now() };
        Self { token, feed, changes: Mutex::new(changes) }
    }

    /// Responds to one request.
    pub(super) fn respond(&self, request: &Request) -> Response {
        self.route(request).unwrap_or_else(|response| response)
    }

    fn route(&self, request: &Request) -> RouteResult {
        check_source(request)?;
        if let Some(file) = file(request) {
            return file;
        }
        check_token(request, &self.token)?;
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/api/state") => self.state(request),
            ("POST", "/api/task") => {
                let change: TaskChange = self.change(request)?;
                self.change_task(&change)
            }
            ("POST", "/api/policy") => {
                let change: PolicyChange = self.change(request)?;
                let name = Some(change.name);
                self.send(&[ServiceRequest::Policy { name, timeslice_us: None, k: None }])
            }
            ("POST", "/api/grant") => {
                let GrantChange { name, suspended: is_suspended } = self.change(request)?;
                self.send(&[ServiceRequest::SuspendGrant { name, is_suspended }])
            }
            (_, "/api/state") => Err(Response::error(405, "use GET")),
            (_, "/api/task" | "/api/policy" | "/api/grant") => Err(Response::error(405, "use POST")),
            _ => Err(Response::error(404, format_args!("{} does not exist", request.path))),
        }
    }

    /// The change that a request contains.
    fn change<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Response> {
        let change = serde_json::from_slice(&request.body)
            .map_err(|error| Response::error(400, format_args!("the body is not a valid change: {error}")))?;
        let mut limit = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if limit.allows(Instant::now()) {
            Ok(change)
        } else {
            let why = format_args!("more than {CHANGES_PER_SECOND} changes in one second: try again");
            Err(Response::error(429, why))
        }
    }

    fn state(&self, request: &Request) -> RouteResult {
        let after = match request.parameter("after").map(str::parse) {
            None => 0,
            Some(Ok(after)) => after,
            Some(Err(_)) => return Err(Response::error(400, "after is not a sequence number")),
        };
        let shared = self.feed.view(request.parameter("events") == Some("1"));
        let mut state = match &shared.service {
            Service::Connecting => json!({ "service": "connecting" }),
            Service::Disconnected(error) => json!({ "service": "disconnected", "error": error }),
            Service::Connected(report) => report_json(report)
                .map_err(|error| Response::error(500, format_args!("cannot write the state: {error:#}")))?,
        };
        state["timeline"] = shared.timeline.to_json(after);
        state["waits"] = shared.timeline.waits_to_json();
        if after == 0 {
            state["policies"] = POLICIES
                .iter()
                .map(|info| json!({ "name": info.name, "plain": info.plain, "summary": info.summary }))
                .collect();
        }
        Ok(Response::json(&state))
    }

    fn change_task(&self, change: &TaskChange) -> RouteResult {
        let mut requests = Vec::new();
        {
            let shared = self.feed.lock();
            let Service::Connected(report) = &shared.service else { return Err(no_service()) };
            let Some(task) = report.task(change.service, change.task) else {
                return Err(Response::error(
                    409,
                    format_args!("task {} does not exist any more", change.task),
                ));
            };
            let hint_request =
                HintRequest { priority: change.priority, share: change.share, ..HintRequest::default() };
            let queue = report.status.queues.iter().find(|queue| task.own && queue.task == task.task);
            if hint_request != HintRequest::default() {
                requests.push(match queue {
                    Some(queue) => ServiceRequest::SetQueue { queue: queue.handle, hint_request },
                    None => ServiceRequest::Set { target: Target::Pid(task.pid), hint_request },
                });
            }
            match change.suspended {
                Some(true) => requests.push(ServiceRequest::Suspend(Target::Pid(task.pid))),
                Some(false) => requests.push(ServiceRequest::Resume(Target::Pid(task.pid))),
                None => {}
            }
        }
        self.send(&requests)
    }

    /// Sends requests to the service that the page shows.
    fn send(&self, requests: &[ServiceRequest]) -> RouteResult {
        let socket = match &self.feed.lock().service {
            Service::Connected(report) => report.socket.clone(),
            _ => return Err(no_service()),
        };
        let error_response = |error: ToolError| {
            Response::error(if matches!(error, ToolError::Refused(_)) { 400 } else { 503 }, error)
        };
        let tool = ToolConnection::connect_to_first(vec![socket]).map_err(error_response)?;
        for request in requests {
            tool.request(request).map_err(error_response)?;
        }
        self.feed.refresh();
        Ok(Response::json(&json!({ "done": true })))
    }
}

fn no_service() -> Response {
    Response::error(503, "the page has no connection to a scheduler")
}

/// A file of the page; none if the path is not one.
fn file(request: &Request) -> Option<RouteResult> {
    let (_, content_type, text) = FILES.iter().find(|(path, ..)| *path == request.path)?;
    Some(match request.method.as_str() {
        "GET" => Ok(Response { status: 200, content_type, body: (*text).to_owned() }),
        _ => Err(Response::error(405, "use GET")),
    })
}

/// What `xsched ps --json` prints, and what the page needs beside it.
fn report_json(report: &Report) -> anyhow::Result<Value> {
    let mut devices: Vec<u64> = report.status.tasks.iter().map(|task| task.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let devices: Vec<Value> = devices
        .iter()
        .map(|id| json!({ "device": id, "name": term::device(*id), "memory": report.memory.get(id) }))
        .collect();
    let unscheduled: Vec<String> = report.status.unscheduled.iter().map(term::unscheduled).collect();
    Ok(json!({
        "service": "connected",
        "now_us": report.now_ns() / 1_000,
        "uid": rustix::process::getuid().as_raw(),
        "socket": report.socket.display().to_string(),
        "status": status::to_json(&report.status, &report.rates)?,
        "policy": report.policy,
        "grants": report.grants,
        "users": report.users,
        "devices": devices,
        "notes": unscheduled,
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn page_is_small_and_loads_nothing_from_elsewhere() {
        let size: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(size <= 300 * 1024, "{size} bytes");
        for (path, _, text) in FILES.iter().filter(|(path, ..)| *path != "/icon.svg") {
            for word in ["https://", "http://", "url(", "@import", "innerHTML", "eval("] {
                assert!(!text.contains(word), "{path}: {word}");
            }
        }
        // The policy of the page forbids scripts and styles in it.
        assert!(!PAGE.contains("style=") && !PAGE.contains("onclick") && !PAGE.contains("<style"));
    }

    #[test]
    fn changes_per_second_are_limited() {
        let start = Instant::now();
        let mut limit = ChangeLimit { left: CHANGES_PER_SECOND, at: start };
        let allowed = |limit: &mut ChangeLimit, at| (0..1_000).filter(|_| limit.allows(at)).count();
        assert_eq!(allowed(&mut limit, start), 20);
        assert_eq!(allowed(&mut limit, start + Duration::from_millis(500)), 10);
        assert_eq!(allowed(&mut limit, start + Duration::from_secs(60)), 20);
    }
}
