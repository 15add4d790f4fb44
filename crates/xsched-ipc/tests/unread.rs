//! Tools that request a listing and do not read it.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xsched_core::DeviceId;
use xsched_ipc::Page;
use xsched_ipc::protocol::{HintRequest, PROTOCOL, Reply, Request};
use xsched_ipc::service::{Options, Service};
use xsched_ipc::socket::{Connection, Packet};

const PROGRAMS: usize = 12;
const QUEUES: usize = 254;

/// A program with as many queues as it can have.
fn join(socket: &std::path::Path) -> (Connection, Arc<Page>) {
    let connection = Connection::to(socket).unwrap();
    let hint_request = HintRequest::default();
    let join = Request::Join {
        protocol: PROTOCOL,
        version: "test".into(),
        name: None,
        hint_request,
        grant_token: None,
        memory_group: None,
    };
    connection.send(&join, None, true).unwrap();
    let Some(Packet::Message(Reply::Welcome { .. }, Some(fd))) = connection.receive(true).unwrap() else {
        panic!("the service refused")
    };
    let page = Page::attach(&fd).unwrap();
    for _ in 0..QUEUES {
        page.allocate_slot(DeviceId(1)).unwrap();
    }
    // The reply comes after the page was read.
    connection.send(&Request::Hint(HintRequest::default()), None, true).unwrap();
    assert!(matches!(connection.receive(true), Ok(Some(Packet::Message(Reply::Done, _)))));
    (connection, page)
}

/// Reads a listing. Returns the number of its queues.
fn read_listing(connection: &Connection) -> usize {
    let mut queues = 0;
    loop {
        let packet = connection.receive::<Reply>(true).unwrap();
        let Some(Packet::Message(Reply::Status(part), _)) = packet else { panic!("{packet:?}") };
        queues += part.queues.len();
        if !part.more {
            return queues;
        }
    }
}

#[test]
fn tool_that_does_not_read_its_listing_is_closed_after_the_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let options = Options { unread_timeout: Duration::from_millis(300), ..Options::at(socket.clone()) };
    let service = Service::bind(options).unwrap();
    let stopper = service.stopper();
    let thread = std::thread::spawn(move || service.run());
    let _programs: Vec<_> = (0..PROGRAMS).map(|_| join(&socket)).collect();
    let (unread, idle) = (Connection::to(&socket).unwrap(), Connection::to(&socket).unwrap());
    unread.send(&Request::Status, None, true).unwrap();
    let mut polled = [PollFd::new(&unread, PollFlags::empty())];
    let at_most = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&at_most)), Ok(1), "the connection is not closed");
    assert!(polled[0].revents().contains(PollFlags::HUP));
    // A tool that has requested nothing before, or reads what it has requested, is not closed.
    for _ in 0..2 {
        idle.send(&Request::Status, None, true).unwrap();
        assert_eq!(read_listing(&idle), PROGRAMS * QUEUES);
    }
    stopper.notify();
    thread.join().unwrap().unwrap();
}
