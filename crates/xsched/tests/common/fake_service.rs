//! A stand-in for the service: a real socket, with replies that the test chooses.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::net::{SocketAddrUnix, SocketFlags};
use xsched_ipc::protocol::{Caller, QueueStatus, Reply, Request, Status, TaskState, TaskStatus};
use xsched_ipc::socket::{self, Connection, Packet};

/// Listens until the test's process ends.
pub(crate) struct FakeService {
    /// The directory of the socket.
    directory: tempfile::TempDir,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FakeService {
    /// Sends the replies that `reply` returns for each request. No reply at all closes the connection.
    pub(crate) fn new(reply: impl Fn(&Request) -> Vec<Reply> + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = socket::socket().unwrap();
        let address = SocketAddrUnix::new(directory.path().join("socket")).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 16).unwrap();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let (reply, received) = (Arc::new(reply), Arc::clone(&requests));
        thread::spawn(move || {
            while let Ok(fd) = rustix::net::accept_with(listener.as_fd(), SocketFlags::CLOEXEC) {
                let (reply, received) = (Arc::clone(&reply), Arc::clone(&received));
                thread::spawn(move || serve(&Connection::from_fd(fd), &*reply, &received));
            }
        });
        Self { directory, requests }
    }

    /// Replies to every request like a service whose status is [`busy`].
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn plain() -> Self {
        Self::new(|request| {
            vec![match request {
                Request::Status => Reply::Status(busy()),
                Request::Policy { name: None, timeslice_us: None, k: None } => {
                    Reply::Policy { name: "HPF".into(), timeslice_us: 5_000, k: 1 }
                }
                Request::Metrics => Reply::Metrics { text: "xsched_info 1\n".into(), more: false },
                Request::Set { target: xsched_ipc::protocol::Target::Pid(999), .. } => {
                    Reply::Refused { why: "no task has the process number 999".into() }
                }
                _ => Reply::Done,
            }]
        })
    }

    /// The callers that the connections acted for.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn callers(&self) -> Vec<Caller> {
        let callers =
            |request: &Request| if let Request::ActFor(caller) = request { Some(*caller) } else { None };
        self.requests.lock().unwrap().iter().filter_map(callers).collect()
    }

    /// The path of the socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// A directory for files of the test.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The requests so far, except those for the status and those that reduce the rights of the connection.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn orders(&self) -> Vec<Request> {
        let requests = self.requests.lock().unwrap();
        let is_order = |request: &&Request| !matches!(request, Request::Status | Request::ActFor(_));
        requests.iter().filter(is_order).cloned().collect()
    }
}

fn serve(connection: &Connection, reply: &dyn Fn(&Request) -> Vec<Reply>, received: &Mutex<Vec<Request>>) {
    while let Ok(Some(Packet::Message(request, _))) = connection.receive::<Request>(true) {
        received.lock().unwrap().push(request.clone());
        let replies = reply(&request);
        if replies.is_empty() || replies.iter().any(|reply| connection.send(reply, None, true).is_err()) {
            return;
        }
    }
}

/// One program with two queues on one device.
#[allow(dead_code, reason = "other tests use it")]
pub(crate) fn busy() -> Status {
    let device = 0x2_0000_0030;
    let queue = QueueStatus { task: 1, pid: 4711, device, level: 2, ready: true, ..QueueStatus::default() };
    Status {
        version: "0.1.0".into(),
        policy: "HPF".into(),
        tasks: vec![TaskStatus {
            task: 1,
            pid: 4711,
            name: "train".into(),
            cmdline: "python \"train.py\"".into(),
            device,
            state: TaskState::Running,
            queues: 2,
            ..TaskStatus::default()
        }],
        queues: vec![
            QueueStatus { handle: 0x1_0000_0000, threshold: 16, batch_size: 8, ..queue.clone() },
            QueueStatus { handle: 0x1_0000_0001, suspended: true, ..queue },
        ],
        ..Status::default()
    }
}
