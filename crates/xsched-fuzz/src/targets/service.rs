//! A running service, and packets of several connections to it. A line of the input is a packet; its first letter selects the
//! connection.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use xsched_core::DeviceId;
use xsched_ipc::Page;
use xsched_ipc::protocol::{Reply, Request};
use xsched_ipc::service::{Options, Service};
use xsched_ipc::socket::{Connection, MAX_PACKET_SIZE, Packet, SocketError};

use super::Run;

/// The number of connections.
const CONNECTIONS: usize = 3;
/// How long the service may take to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The most packets of one input.
const MAX_PACKETS: usize = 32;

pub(super) fn start() -> Run {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let service = Service::bind(Options::at(socket.clone())).expect("a service");
    // The service ends with this process. If it panics, its connections close and the next input finds no service.
    std::thread::spawn(move || service.run());
    Box::new(move |input| {
        let _ = &directory;
        let mut connections: Vec<Client> = (0..CONNECTIONS).map(|_| Client::new(&socket)).collect();
        for line in input.split(|byte| *byte == b'\n').take(MAX_PACKETS) {
            let Some((first, packet)) = line.split_first() else { continue };
            connections[usize::from(*first) % CONNECTIONS].send(packet);
        }
        // It still serves other connections.
        let mut last = Client::new(&socket);
        last.send(b"{\"request\":\"policy\",\"args\":{\"name\":null,\"timeslice_us\":null,\"k\":null}}");
        assert!(matches!(last.last_reply, Some(Reply::Policy { .. })), "{:?}", last.last_reply);
    })
}

struct Client {
    /// None after the service has closed it.
    connection: Option<Connection>,
    page: Option<Arc<Page>>,
    last_reply: Option<Reply>,
}

impl Client {
    fn new(socket: &std::path::Path) -> Self {
        let connection = Connection::to(socket).expect("the service accepts connections");
        Self { connection: Some(connection), page: None, last_reply: None }
    }

    fn send(&mut self, packet: &[u8]) {
        let Some(connection) = &self.connection else { return };
        match packet {
            // A packet of no bytes means the end of the connection.
            [] => return,
            [b'+', number, ..] => {
                if let Some(page) = &self.page {
                    let _ = page.allocate_slot(DeviceId(u64::from(*number % 3)));
                }
                connection.notify();
                return;
            }
            b"!" => {
                connection.notify();
                return;
            }
            _ => {}
        }
        // It would end the service: this process may do everything.
        if packet.len() > MAX_PACKET_SIZE
            || serde_json::from_slice(packet).is_ok_and(|request| matches!(request, Request::Stop))
        {
            return;
        }
        // A connection that the service has closed reports that here or below.
        if rustix::net::send(connection, packet, SendFlags::NOSIGNAL).is_ok() {
            self.receive();
        } else {
            self.connection = None;
        }
    }

    /// Receives the reply to a request: one, in several packets if it is long. Others come without a request.
    fn receive(&mut self) {
        loop {
            let Some(connection) = &self.connection else { return };
            let timeout = Timespec::try_from(REPLY_TIMEOUT).ok();
            let ready = poll(&mut [PollFd::new(connection, PollFlags::IN)], timeout.as_ref());
            assert_eq!(ready, Ok(1), "the service does not reply");
            match connection.receive::<Reply>(true) {
                Ok(Some(Packet::Message(reply, fd))) => {
                    if let Some(fd) = fd {
                        self.page = Some(Page::attach(&fd).expect("the service passes a page"));
                    }
                    let is_last = match &reply {
                        Reply::Events { .. } | Reply::Configure { .. } => false,
                        Reply::Status(status) => !status.more,
                        Reply::Metrics { more, .. } | Reply::Grants { more, .. } => !more,
                        _ => true,
                    };
                    self.last_reply = Some(reply);
                    if is_last {
                        return;
                    }
                }
                Err(SocketError::Closed) => self.connection = None,
                Ok(_) | Err(SocketError::System { .. } | SocketError::NotAccepted) => {}
                Err(error @ SocketError::Malformed(_)) => panic!("{error}"),
            }
        }
    }
}
