//! An API server of the test's own: lists and watches pods, and creates events, over HTTP on the loopback interface.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

/// The token that requests need.
pub(crate) const TOKEN: &str = "secret-of-the-test";

#[derive(Default)]
struct State {
    version: u64,
    pods: Vec<Value>,
    /// Changes for watches, with their versions.
    changes: Vec<(u64, String)>,
    events: Vec<Value>,
    lists: usize,
}

/// A running API server. Its threads end with the test's process.
pub(crate) struct TestApiServer {
    state: Arc<(Mutex<State>, Condvar)>,
    address: SocketAddr,
}

impl TestApiServer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = shared.clone();
                // A client that closes its connection ends the thread.
                std::thread::spawn(move || drop(serve(&stream, &state)));
            }
        });
        Self { state, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn change(&self, kind: &str, mut pod: Value) {
        let (state, changed) = &*self.state;
        let mut state = state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        let uid = pod["metadata"]["uid"].clone();
        state.pods.retain(|other| other["metadata"]["uid"] != uid);
        let line = json!({"type": kind, "object": pod}).to_string();
        if kind != "DELETED" {
            state.pods.push(pod);
        }
        state.changes.push((version, line));
        changed.notify_all();
    }

    /// Creates or changes a pod.
    pub(crate) fn put(&self, pod: Value) {
        self.change("MODIFIED", pod);
    }

    /// Deletes a pod.
    pub(crate) fn delete(&self, pod: Value) {
        self.change("DELETED", pod);
    }

    /// Ends every watch with an error, as after a long interruption. Clients have to list again.
    pub(crate) fn expire_watches(&self) {
        let (state, changed) = &*self.state;
        let mut state = state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        let gone = json!({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}});
        state.changes.clear();
        state.changes.push((version, gone.to_string()));
        changed.notify_all();
    }

    /// How often the pods were listed.
    pub(crate) fn lists(&self) -> usize {
        self.state.0.lock().unwrap().lists
    }

    /// Reason and message of each event of a pod.
    pub(crate) fn events(&self, pod: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let state = self.state.0.lock().unwrap();
        let own = state.events.iter().filter(|event| event["involvedObject"]["name"] == pod);
        own.map(|event| (text(&event["reason"]), text(&event["message"]))).collect()
    }
}

fn serve(stream: &TcpStream, shared: &(Mutex<State>, Condvar)) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    let header = |name: &str| {
        head.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    };
    let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body)?;
    if header("authorization") != Some(format!("Bearer {TOKEN}")) {
        return answer(stream, "401 Unauthorized", &json!({"message": "no valid token"}));
    }
    let mut words = head[0].split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let node = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1";
    match (method, path.strip_prefix(node)) {
        ("GET", Some("")) => {
            let mut state = shared.0.lock().unwrap();
            state.lists += 1;
            let version = state.version.to_string();
            let list = json!({"metadata": {"resourceVersion": version}, "items": state.pods});
            drop(state);
            answer(stream, "200 OK", &list)
        }
        ("GET", Some(options)) if options.contains("&watch=true") => {
            let version = options.rsplit_once("resourceVersion=").unwrap().1.parse().unwrap();
            watch(stream, shared, version)
        }
        ("POST", _) if path.starts_with("/api/v1/namespaces/") && path.ends_with("/events") => {
            let event: Value = serde_json::from_slice(&body)?;
            let mut state = shared.0.lock().unwrap();
            if state.events.iter().any(|other| other["metadata"]["name"] == event["metadata"]["name"]) {
                return answer(stream, "409 Conflict", &json!({"message": "exists already"}));
            }
            state.events.push(event.clone());
            drop(state);
            answer(stream, "201 Created", &event)
        }
        _ => answer(stream, "404 Not Found", &json!({"message": "no such object"})),
    }
}

fn answer(mut stream: &TcpStream, status: &str, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn watch(mut stream: &TcpStream, shared: &(Mutex<State>, Condvar), mut version: u64) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    loop {
        let lines: Vec<(u64, String)> = {
            let state = shared.0.lock().unwrap();
            let state = shared
                .1
                .wait_while(state, |state| state.changes.iter().all(|(changed, _)| *changed <= version));
            state.unwrap().changes.iter().filter(|(changed, _)| *changed > version).cloned().collect()
        };
        for (changed, line) in lines {
            // Two chunks: a line may arrive in pieces.
            let (first, second) = line.split_at(line.len() / 2);
            write!(stream, "{:x}\r\n{first}\r\n", first.len())?;
            stream.flush()?;
            write!(stream, "{:x}\r\n{second}\n\r\n", second.len() + 1)?;
            version = changed;
            if line.contains("\"ERROR\"") {
                return write!(stream, "0\r\n\r\n");
            }
        }
    }
}
