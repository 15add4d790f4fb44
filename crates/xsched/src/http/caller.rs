//! The user of the process at the other end of a connection.
//!
//! The kernel does not report the peer of a TCP connection, but it knows the owner of every socket. If both ends are on loopback, the
//! other end is a socket of this machine and this network namespace, found by its addresses:
//!
//! ```text
//!   accepted connection   127.0.0.1:50000 ◄── 127.0.0.1:41234
//!   socket of the caller  127.0.0.1:41234 ──► 127.0.0.1:50000   user 1000
//! ```
//!
//! The answer counts only if it is certain, and the caller is unknown otherwise:
//!
//! * A closed socket has no owner. The kernel reports user 0 and inode 0 for it, so a socket without an inode does not count.
//! * The addresses of a closed connection can be reused by a process of another user. They cannot be reused while the accepted
//!   connection exists: the kernel would first reset it. So the connection is checked after the owner was read.
//! * A user who does not exist in the user namespace of this process is reported as the overflow user.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use xsched_ipc::protocol::Caller;

/// What the kernel reports for a user who does not exist in a user namespace.
const OVERFLOW_USER: u32 = 65_534;

/// A socket that the kernel has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    state: u8,
    uid: u32,
    inode: u32,
}

/// The states of a socket whose process can still receive: `ESTABLISHED`, `FIN_WAIT1` and `FIN_WAIT2`.
const OPEN_STATES: [u8; 3] = [1, 4, 5];

/// The user at the other end of an accepted connection.
pub(super) fn of_tcp(connection: &TcpStream) -> Caller {
    let (Ok(own), Ok(other)) = (connection.local_addr(), connection.peer_addr()) else {
        return Caller::Unknown;
    };
    owner_of(connection, canonical(own), canonical(other))
}

/// The owner of the socket at `other`, if it is the other end of `connection`.
fn owner_of(connection: &TcpStream, own: SocketAddr, other: SocketAddr) -> Caller {
    if !own.ip().is_loopback() || !other.ip().is_loopback() {
        return Caller::Unknown;
    }
    let found = ask_kernel(other, own).or_else(|| search_tables(other, own));
    match found {
        Some(found) if is_open(connection) => owner(found),
        _ => Caller::Unknown,
    }
}

fn owner(found: Found) -> Caller {
    if found.inode == 0 || found.uid == OVERFLOW_USER || !OPEN_STATES.contains(&found.state) {
        return Caller::Unknown;
    }
    Caller::User(found.uid)
}

/// An IPv6 socket shows IPv4 addresses as `::ffff:127.0.0.1`.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether the connection was not reset. The other end may have announced that it sends nothing more.
fn is_open(connection: &TcpStream) -> bool {
    let mut fds = [PollFd::new(connection, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct inet_diag_sockid`.
const SOCKET_ID: usize = 48;
/// `SOCK_DIAG_BY_FAMILY`
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;

/// Asks the kernel for the socket at `address` that is connected to `to`. None if it did not find one.
fn ask_kernel(address: SocketAddr, to: SocketAddr) -> Option<Found> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    rustix::net::sendto(&socket, &question(address, to), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
        .ok()?;
    let mut answer = [0; 1024];
    // The kernel answers before it returns from `sendto`.
    let (_, length, from) = rustix::net::recvfrom(&socket, &mut answer, RecvFlags::DONTWAIT).ok()?;
    let from: SocketAddrNetlink = from?.try_into().ok()?;
    if from.pid() != 0 {
        return None;
    }
    parse_answer(answer.get(..length)?, address, to)
}

/// A `struct nlmsghdr` and a `struct inet_diag_req_v2` that names both ends.
fn question(address: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = Vec::with_capacity(HEADER + 8 + SOCKET_ID);
    bytes.extend(u32::try_from(HEADER + 8 + SOCKET_ID).unwrap_or(0).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([u8::try_from(family).unwrap_or(0), IPPROTO_TCP, 0, 0]);
    // All states.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(address.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(diag_address(address.ip()));
    bytes.extend(diag_address(to.ip()));
    // Every network device, and no cookie.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([0xff; 8]);
    bytes
}

fn diag_address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The socket in a `struct inet_diag_msg`, if it is the requested one: the kernel also finds a socket that only listens.
fn parse_answer(message: &[u8], address: SocketAddr, to: SocketAddr) -> Option<Found> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let socket = message.get(HEADER..)?;
    let (family, state) = (*socket.first()?, *socket.get(1)?);
    let port = |at: usize| Some(u16::from_be_bytes(socket.get(at..at + 2)?.try_into().ok()?));
    let ip = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = socket.get(at..at + 16)?.try_into().ok()?;
        match i32::from(family) {
            libc::AF_INET => Some(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])),
            libc::AF_INET6 => Some(IpAddr::from(bytes).to_canonical()),
            _ => None,
        }
    };
    if (ip(8)?, port(4)?, ip(24)?, port(6)?) != (address.ip(), address.port(), to.ip(), to.port()) {
        return None;
    }
    let number = |at: usize| Some(u32::from_ne_bytes(socket.get(at..at + 4)?.try_into().ok()?));
    let after_times = 4 + SOCKET_ID + 12;
    Some(Found { state, uid: number(after_times)?, inode: number(after_times + 4)? })
}

/// Searches the tables of the kernel for the socket, for systems that do not allow the request above.
fn search_tables(address: SocketAddr, to: SocketAddr) -> Option<Found> {
    // A table is that of the network namespace of the calling thread. IPv6 sockets with IPv4 addresses are in the second.
    ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"].iter().find_map(|table| {
        let text = std::fs::read_to_string(table).ok()?;
        text.lines().find_map(|line| parse_line(line, address, to))
    })
}

/// The socket in a line of the table, if it is the requested one.
fn parse_line(line: &str, address: SocketAddr, to: SocketAddr) -> Option<Found> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    if table_address(fields.next()?)? != address || table_address(fields.next()?)? != to {
        return None;
    }
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    // Queues, timer, retransmissions.
    let uid = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Found { state, uid, inode })
}

/// An address of the table: words of 32 bits in the byte order of this machine, in hexadecimal, then the port.
fn table_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let mut bytes = [0; 16];
    for (index, word) in bytes.chunks_mut(4).take(ip.len() / 8).enumerate() {
        let number = u32::from_str_radix(ip.get(index * 8..index * 8 + 8)?, 16).ok()?;
        word.copy_from_slice(&number.to_ne_bytes());
    }
    let ip = match ip.len() {
        8 => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
        32 => IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests;
