//! The server over real sockets, with a fake service.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};
use xsched_ipc::protocol::{Caller, HintRequest, Reply, Request, Settings, Target};

use super::*;

#[path = "../../tests/common/fake_service.rs"]
mod fake_service;
use fake_service::FakeService;

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn compat(service: &FakeService) -> SocketAddr {
    serve_compat(&service.socket(), LOOPBACK, &Access::default()).unwrap()
}

/// Sends bytes and reads the whole response.
fn exchange(address: SocketAddr, text: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn split(response: &str) -> (u16, &str) {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

fn request(address: SocketAddr, method: &str, target: &str, body: &str) -> (u16, Value) {
    let length = body.len();
    let text =
        format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}");
    let response = exchange(address, text.as_bytes());
    let (status, body) = split(&response);
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

#[test]
fn queues_have_the_format_of_the_original() {
    let service = FakeService::plain();
    let address = compat(&service);
    let first = json!({
        "handle": 0x1_0000_0000_u64, "device": 0x2_0000_0030_u64, "level": 2, "pid": 4711, "threshold": 16,
        "batch_size": 8, "ready": true, "suspended": false
    });
    let process = json!({ "pid": 4711, "cmdline": "python \"train.py\"" });
    let (status, all) = request(address, "GET", "/xqueues", "");
    assert_eq!(status, 200);
    assert_eq!(all["xqueues"][0], first);
    assert_eq!(all["xqueues"][1]["suspended"], true);
    assert_eq!(all["processes"], json!([process]));
    let (status, one) = request(address, "GET", "/xqueue/100000000", "");
    assert_eq!((status, one), (200, json!({ "xqueue": first, "process": process })));
    assert_eq!(request(address, "GET", "/xqueue/0x100000000", "").0, 200);
    assert_eq!(request(address, "GET", "/xqueue/7", "").0, 404);
    for invalid in ["", "x", "-1", "+1", "1/2", "10000000000000000"] {
        let (status, response) = request(address, "GET", &format!("/xqueue/{invalid}"), "");
        assert!(status == 400 || invalid == "1/2" && status == 404, "{invalid}: {status}");
        assert!(response["error"].is_string());
    }
}

#[test]
fn every_policy_can_be_chosen_by_its_number() {
    let service = FakeService::plain();
    let address = compat(&service);
    assert_eq!(request(address, "GET", "/policy", ""), (200, json!({ "policy": 1 })));
    for policy in xsched_policy::POLICIES {
        let target = format!("/policy?policy={}", policy.number);
        assert_eq!(request(address, "POST", &target, ""), (200, json!({ "info": "success" })));
        let wanted = Request::Policy { name: Some(policy.name.into()), timeslice_us: None, k: None };
        assert_eq!(service.orders().last(), Some(&wanted));
    }
    let before = service.orders().len();
    for invalid in ["", "?policy=", "?policy=0", "?policy=12", "?policy=HPF", "?policy=-1", "?other=1"] {
        let (status, response) = request(address, "POST", &format!("/policy{invalid}"), "");
        assert_eq!(status, 400, "{invalid}");
        assert!(response["error"].is_string());
    }
    assert_eq!(service.orders().len(), before);
}

#[test]
fn queues_are_configured() {
    let service = FakeService::plain();
    let address = compat(&service);
    let (status, _) = request(address, "POST", "/config/100000001?level=1&threshold=4&batch_size=", "");
    assert_eq!(status, 200);
    let settings = Settings { level: Some(1), threshold: Some(4), batch_size: None };
    assert_eq!(service.orders(), [Request::Configure { queue: 0x1_0000_0001, settings }]);
    assert_eq!(request(address, "POST", "/config/7?level=1", "").0, 404);
    for invalid in [
        "?level=4",
        "?level=-1",
        "?threshold=-2",
        "?batch_size=x",
        "?threshold=4294967296",
        "?threshold=8&batch_size=8",
    ] {
        assert_eq!(request(address, "POST", &format!("/config/100000000{invalid}"), "").0, 400, "{invalid}");
    }
    // What the original's `xcli` sends for settings that do not change.
    for unchanged in ["", "?level=0", "?level=0&threshold=-1&batch_size=-1"] {
        let response = request(address, "POST", &format!("/config/100000000{unchanged}"), "");
        assert_eq!(response, (200, json!({ "warning": "no change" })), "{unchanged}");
    }
    assert_eq!(service.orders().len(), 1);
}

#[test]
fn hints_of_every_type_reach_the_service() {
    let service = FakeService::plain();
    let address = compat(&service);
    let set = |hint_request| Request::Set { target: Target::Pid(4711), hint_request };
    let none = HintRequest::default();
    let set_params = |timeslice_us, k| Request::Policy { name: None, timeslice_us, k };
    for (hint, wanted) in [
        (
            json!({"hint_type": 1, "handle": 0x1_0000_0000_u64, "priority": -3}),
            Request::SetQueue {
                queue: 0x1_0000_0000,
                hint_request: HintRequest { priority: Some(-3), ..none.clone() },
            },
        ),
        (
            json!({"hint_type": 2, "pid": 4711, "utilization": 30}),
            set(HintRequest { share: Some(30), ..none.clone() }),
        ),
        // The original's `xcli` sends both, 0 for the one that is not meant.
        (
            json!({"hint_type": 2, "pid": 4711, "handle": 0, "utilization": 31}),
            set(HintRequest { share: Some(31), ..none.clone() }),
        ),
        (
            json!({"hint_type": 2, "pid": 0, "handle": 0x1_0000_0000_u64, "utilization": 32}),
            Request::SetQueue {
                queue: 0x1_0000_0000,
                hint_request: HintRequest { share: Some(32), ..none.clone() },
            },
        ),
        (json!({"hint_type": 3, "timeslice": 700}), set_params(Some(700), None)),
        (
            json!({"hint_type": 4, "pid": 4711, "deadline": 9}),
            set(HintRequest { deadline_us: Some(9), ..none.clone() }),
        ),
        (json!({"hint_type": 5, "k": 2}), set_params(None, Some(2))),
        (
            json!({"hint_type": 6, "pid": 4711, "laxity": 8, "lax_prio": 1, "crit_prio": 2}),
            set(HintRequest { laxity: Some((8, 1, 2)), ..none }),
        ),
        (json!({"hint_type": 7, "pid": 4711}), Request::Focus(Some(4711))),
        (json!({"hint_type": 7, "pid": 0}), Request::Focus(None)),
    ] {
        assert_eq!(
            request(address, "POST", "/hint", &hint.to_string()),
            (200, json!({ "info": "success" })),
            "{hint}"
        );
        assert_eq!(service.orders().last(), Some(&wanted), "{hint}");
    }
}

#[test]
fn invalid_hints_are_rejected_with_a_reason() {
    let service = FakeService::plain();
    let address = compat(&service);
    for (body, status, word) in [
        ("", 400, "not a hint"),
        ("{", 400, "not a hint"),
        ("[]", 400, "not a hint"),
        ("{}", 400, "hint_type"),
        (r#"{"hint_type":1}"#, 400, "`priority`"),
        (r#"{"hint_type":1,"priority":3}"#, 400, "neither"),
        (r#"{"hint_type":1,"priority":"3","pid":1}"#, 400, "not a hint"),
        (r#"{"hint_type":1,"priority":3,"pid":-1}"#, 400, "not a hint"),
        (r#"{"hint_type":1,"priority":3,"handle":7}"#, 404, "no queue 0x7"),
        (r#"{"hint_type":1,"priority":3,"pid":999}"#, 400, "999"),
        (r#"{"hint_type":7}"#, 400, "`pid`"),
        (r#"{"hint_type":8,"pid":1}"#, 400, "unknown hint_type 8"),
    ] {
        let (got, response) = request(address, "POST", "/hint", body);
        assert_eq!(got, status, "{body}");
        assert!(response["error"].as_str().unwrap().contains(word), "{body}: {response}");
    }
}

#[test]
fn other_paths_and_methods_are_rejected() {
    let service = FakeService::plain();
    let address = compat(&service);
    for (method, path, status) in [
        ("GET", "/", 404),
        ("POST", "/stop", 404),
        ("POST", "/suspend/1", 404),
        ("GET", "/metrics", 404),
        ("POST", "/xqueues", 405),
        ("DELETE", "/policy", 405),
        ("GET", "/hint", 405),
    ] {
        assert_eq!(request(address, method, path, "").0, status, "{method} {path}");
    }
    assert_eq!(service.orders(), []);
}

#[test]
fn invalid_requests_get_an_error_and_the_next_client_is_served() {
    let service = FakeService::plain();
    let address = compat(&service);
    for (invalid, status) in [
        (b"\x16\x03\x01\x02\r\n\r\n".to_vec(), 400),
        (format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(100_000)).into_bytes(), 431),
        (
            format!("POST /hint HTTP/1.1\r\nContent-Length: 70000\r\n\r\n{}", "a".repeat(70_000))
                .into_bytes(),
            413,
        ),
        (b"POST /hint HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), 501),
    ] {
        assert_eq!(split(&exchange(address, &invalid)).0, status);
    }
    drop(TcpStream::connect(address).unwrap());
    assert_eq!(request(address, "GET", "/policy", "").0, 200);
}

#[test]
fn requests_of_web_pages_are_rejected() {
    let service = FakeService::plain();
    let address = compat(&service);
    for header in
        ["Origin: http://evil.example", "Host: evil.example", "Host: 127.evil.example:80", "Host: 10.0.0.1"]
    {
        let response =
            exchange(address, format!("POST /policy?policy=2 HTTP/1.1\r\n{header}\r\n\r\n").as_bytes());
        assert_eq!(split(&response).0, 403, "{header}");
    }
    assert_eq!(service.orders(), []);
    for header in ["Host: localhost:50000", "Host: [::1]:5", "Host: 127.0.0.9", "A: b"] {
        let response = exchange(address, format!("GET /policy HTTP/1.1\r\n{header}\r\n\r\n").as_bytes());
        assert_eq!(split(&response).0, 200, "{header}");
    }
}

#[test]
fn slow_clients_do_not_block_other_clients() {
    let service = FakeService::plain();
    let address = compat(&service);
    // More than the server holds at a time, each with half a request.
    let mut slow: Vec<_> = (0..Limits::default().connections + 10)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /pol").unwrap();
            stream
        })
        .collect();
    assert_eq!(request(address, "GET", "/policy", "").0, 200);
    let mut response = String::new();
    let _ = slow[0].read_to_string(&mut response);
    assert!(!response.contains("200"), "the oldest slow connection was not closed: {response}");
}

#[test]
fn incomplete_request_times_out() {
    let handler: Handler = Box::new(|_, _| Response::error(404, "not found"));
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::Tcp(listener);
    listener.set_nonblocking().unwrap();
    let short = Duration::from_millis(20);
    let limits = Limits { exchange_timeout: short, drain_timeout: short, ..Limits::default() };
    let server = Server { listeners: vec![listener], limits, handler };
    thread::spawn(move || server.run());
    let response = exchange(address, b"GET / HTTP/1.1\r\nHost: x");
    assert_eq!(split(&response).0, 408);
    assert_eq!(exchange(address, b""), "", "a client that sends nothing gets no response");
}

#[test]
fn concurrent_clients_get_complete_responses() {
    let service = FakeService::new(|request| {
        if matches!(request, Request::ActFor(_)) {
            return vec![Reply::Done];
        }
        let line = "xsched_line_that_is_rather_long 1\n".repeat(1000);
        let packet = |more| Reply::Metrics { text: line.clone(), more };
        vec![packet(true), packet(true), packet(false)]
    });
    let socket = service.directory().join("metrics.sock");
    let address =
        serve_metrics(&service.socket(), &socket, Some((LOOPBACK, "--metrics")), &Access::default())
            .unwrap()
            .unwrap();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let response = exchange(address, b"GET /metrics HTTP/1.1\r\n\r\n");
                let (status, body) = split(&response);
                assert_eq!((status, body.lines().count()), (200, 3000));
                assert!(response.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
            });
        }
    });
}

#[test]
fn metrics_socket_is_accessible_to_its_owner_only() {
    let service = FakeService::plain();
    let socket = service.directory().join("metrics.sock");
    std::fs::write(&socket, "left by an earlier service").unwrap();
    assert_eq!(serve_metrics(&service.socket(), &socket, None, &Access::default()).unwrap(), None);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let get = |target: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: whatever\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (status, body) = split(&response);
        (status, body.to_owned())
    };
    assert_eq!(get("/metrics"), (200, "xsched_info 1\n".to_owned()));
    assert_eq!(get("/xqueues").0, 404);
}

#[test]
fn missing_service_is_reported_as_unavailable() {
    let service = FakeService::plain();
    let nowhere = service.directory().join("no-socket");
    let address = serve_compat(&nowhere, LOOPBACK, &Access::default()).unwrap();
    for (method, target) in [("GET", "/xqueues"), ("POST", "/policy?policy=1")] {
        assert_eq!(request(address, method, target, "").0, 503);
    }
}

#[test]
fn remote_addresses_need_an_explicit_option() {
    let service = FakeService::plain();
    let remote = Access { reach: Reach::AnyAddress, ..Access::default() };
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let error = serve_compat(&service.socket(), everywhere, &Access::default()).unwrap_err().to_string();
    assert!(error.contains("--http 0.0.0.0:0") && error.contains("--http-allow-remote"), "{error}");
    let socket = service.directory().join("metrics.sock");
    assert!(
        serve_metrics(&service.socket(), &socket, Some((everywhere, "--metrics")), &Access::default())
            .is_err()
    );
    let port = serve_compat(&service.socket(), everywhere, &remote).unwrap().port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let response = exchange(address, b"GET /policy HTTP/1.1\r\nHost: gpu7.example\r\n\r\n");
    assert_eq!(split(&response).0, 200);
    let error = serve_compat(&service.socket(), address, &Access::default()).unwrap_err();
    assert!(format!("{error:#}").contains(&format!("cannot listen at {address}")), "{error:#}");
}

#[test]
fn service_acts_for_the_user_of_the_caller() {
    let service = FakeService::plain();
    let address = compat(&service);
    assert_eq!(request(address, "GET", "/xqueues", "").0, 200);
    assert_eq!(request(address, "POST", "/policy?policy=2", "").0, 200);
    let own = Caller::User(rustix::process::getuid().as_raw());
    assert_eq!(service.callers(), [own, own]);
    let socket = service.directory().join("metrics.sock");
    let metrics =
        serve_metrics(&service.socket(), &socket, Some((LOOPBACK, "--metrics")), &Access::default())
            .unwrap()
            .unwrap();
    assert_eq!(split(&exchange(metrics, b"GET /metrics HTTP/1.1\r\n\r\n")).0, 200);
    assert_eq!(service.callers().last(), Some(&own));
}

/// A service of which every address may be used, and its token.
fn with_token(service: &FakeService) -> (SocketAddr, String) {
    let secret = "0123456789abcdef".repeat(4);
    let path = service.directory().join("token");
    std::fs::write(&path, &secret).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let token = Some(std::sync::Arc::new(Token::read(&path).unwrap()));
    let access = Access { reach: Reach::AnyAddress, token, shows_all_names: false };
    (serve_compat(&service.socket(), LOOPBACK, &access).unwrap(), secret)
}

#[test]
fn unknown_callers_may_read_and_need_a_token_to_change() {
    let service = FakeService::plain();
    let (address, secret) = with_token(&service);
    // A name that resolves to loopback, as a web page could use, does not identify its caller.
    let send = |method: &str, target: &str, header: &str| {
        let text = format!("{method} {target} HTTP/1.1\r\nHost: gpu7.example\r\n{header}\r\n");
        exchange(address, text.as_bytes())
    };
    assert_eq!(split(&send("GET", "/xqueues", "")).0, 200);
    assert_eq!(service.callers(), [Caller::Unknown]);
    let response = send("POST", "/policy?policy=2", "");
    assert_eq!(split(&response).0, 401);
    assert!(
        response.contains("\r\nWWW-Authenticate: Bearer\r\n") && response.contains("token_file"),
        "{response}"
    );
    for wrong in ["Bearer ", "Bearer x", &format!("Basic {secret}"), &secret, &format!("Bearer {secret}0")] {
        for (method, target) in [("POST", "/policy?policy=2"), ("GET", "/xqueues")] {
            let response = send(method, target, &format!("Authorization: {wrong}\r\n"));
            assert_eq!(split(&response).0, 401, "{wrong}");
        }
    }
    assert_eq!((service.orders(), service.callers().len()), (vec![], 1));
    let response = send("POST", "/policy?policy=2", &format!("Authorization: Bearer {secret}\r\n"));
    assert_eq!(split(&response).0, 200, "{response}");
    assert_eq!((service.orders().len(), service.callers().len()), (1, 1), "the token gives all rights");
}

#[test]
fn token_is_rejected_by_a_service_without_one() {
    let service = FakeService::plain();
    let address = compat(&service);
    let response = exchange(address, b"GET /policy HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n");
    assert_eq!(split(&response).0, 401);
}

#[test]
fn failure_to_reduce_the_rights_is_an_error() {
    // A service of another version, which does not know the request.
    let service = FakeService::new(|request| {
        vec![match request {
            Request::ActFor(_) => Reply::Refused { why: "not a valid request".into() },
            _ => Reply::Done,
        }]
    });
    let address = compat(&service);
    assert_eq!(request(address, "POST", "/policy?policy=2", "").0, 400);
    assert_eq!(service.orders(), []);
}
