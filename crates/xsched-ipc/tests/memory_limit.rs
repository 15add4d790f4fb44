//! A process whose memory is used up. A test program of its own, because the limit holds for the whole process.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use xsched_ipc::protocol::{Reply, Request};
use xsched_ipc::socket::{Connection, MAX_PACKET_SIZE, Packet, SocketError};

#[test]
fn receiving_without_memory_fails_and_does_not_abort_the_process() {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (client, service) = (Connection::from_fd(a), Connection::from_fd(b));
    client.send(&Request::Status, None, true).unwrap();
    service.send(&Reply::Done, None, true).unwrap();

    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(0), ..before }).unwrap();
    let mut used = Vec::with_capacity(4096);
    while used.len() < used.capacity() {
        let mut block = Vec::<u8>::new();
        if block.try_reserve_exact(MAX_PACKET_SIZE).is_err() {
            break;
        }
        used.push(block);
    }
    let received = client.receive::<Reply>(false);
    drop(used);
    setrlimit(Resource::As, before).unwrap();

    assert!(matches!(received, Err(SocketError::System { why: Errno::NOMEM, .. })), "{received:?}");
    assert!(matches!(client.receive(false), Ok(Some(Packet::Message(Reply::Done, _)))), "the packet is lost");
}
