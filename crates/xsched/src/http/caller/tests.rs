//! Callers over real sockets, and what the kernel reports about closed ones.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener};

use super::*;

/// Both ends of a connection to a listener at `address`.
fn connected(address: &str, to: Option<&str>) -> Option<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((address, 0)).ok()?;
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect((to.unwrap_or(address), port)).unwrap();
    Some((client, listener.accept().unwrap().0))
}

fn own() -> Caller {
    Caller::User(rustix::process::getuid().as_raw())
}

fn addresses(client: &TcpStream) -> (SocketAddr, SocketAddr) {
    (canonical(client.local_addr().unwrap()), canonical(client.peer_addr().unwrap()))
}

/// Waits until the server's end has received the end of the client's data.
fn wait_for_end(server: &TcpStream) {
    let mut byte = [0];
    while server.peek(&mut byte).is_ok_and(|length| length > 0) {
        std::io::Read::read(&mut &*server, &mut byte).unwrap();
    }
}

#[test]
fn callers_on_loopback_are_known_by_both_ways() {
    let mut families = 0;
    // The last: an IPv4 client of an IPv6 socket, whose addresses are shown as ::ffff:127.0.0.1.
    for (listen, to) in [("127.0.0.1", None), ("::1", None), ("::", Some("127.0.0.1"))] {
        let Some((client, server)) = connected(listen, to) else { continue };
        families += 1;
        assert_eq!(of_tcp(&server), own(), "{listen}");
        let (from, to) = addresses(&client);
        let asked = ask_kernel(from, to);
        let searched = search_tables(from, to).unwrap();
        assert_eq!(owner(searched), own(), "{listen}");
        // A kernel without this interface answers nothing.
        assert!(asked.is_none() || asked == Some(searched), "{asked:?} {searched:?}");
    }
    assert!(families > 0, "this machine has no loopback address");
}

#[test]
fn ipv6_client_with_an_ipv4_address_is_known() {
    // Its socket is in the table of IPv6.
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let Ok(client) = TcpStream::connect(format!("[::ffff:127.0.0.1]:{port}")) else { return };
    let server = listener.accept().unwrap().0;
    let (from, to) = addresses(&client);
    assert!(client.local_addr().unwrap().is_ipv6());
    assert_eq!((of_tcp(&server), search_tables(from, to).map(owner)), (own(), Some(own())));
}

#[test]
fn half_closed_callers_are_known_and_closed_ones_are_not() {
    let (mut client, server) = connected("127.0.0.1", None).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    wait_for_end(&server);
    assert_eq!(of_tcp(&server), own());
    let (from, to) = addresses(&client);
    drop(client);
    assert_eq!(of_tcp(&server), Caller::Unknown, "the kernel reports user 0 for a socket without a process");
    // Neither way may find an owner of the closed socket.
    for found in [ask_kernel(from, to), search_tables(from, to)].into_iter().flatten() {
        assert_eq!(owner(found), Caller::Unknown, "{found:?}");
    }
}

#[test]
fn caller_of_a_reset_connection_is_unknown_even_if_its_address_is_in_use_again() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let to = listener.local_addr().unwrap();
    // Both sockets may have one address, so no other process can take it in between.
    let socket = |at: SocketAddr| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &at).unwrap();
        socket
    };
    let first = socket("127.0.0.1:0".parse().unwrap());
    rustix::net::connect(&first, &to).unwrap();
    let first = TcpStream::from(first);
    let from = first.local_addr().unwrap();
    let accepted = listener.accept().unwrap().0;
    assert_eq!(of_tcp(&accepted), own());
    let second = socket(from);
    // A close without lingering resets the connection, and frees its address at once.
    rustix::net::sockopt::set_socket_linger(&first, Some(std::time::Duration::ZERO)).unwrap();
    drop(first);
    rustix::net::connect(&second, &to).unwrap();
    let second = (TcpStream::from(second), listener.accept().unwrap().0);
    assert_eq!(second.1.peer_addr().unwrap(), from);
    assert_eq!(of_tcp(&second.1), own());
    assert_eq!(of_tcp(&accepted), Caller::Unknown);
    assert_eq!(
        owner_of(&accepted, to, from),
        Caller::Unknown,
        "the socket at this address is of another connection"
    );
}

#[test]
fn sockets_without_a_certain_owner_do_not_count() {
    let found = Found { state: 1, uid: 7, inode: 9 };
    assert_eq!(owner(found), Caller::User(7));
    assert_eq!(owner(Found { uid: 0, ..found }), Caller::User(0));
    // Closed, and TIME_WAIT: user 0 and inode 0.
    assert_eq!(owner(Found { uid: 0, inode: 0, ..found }), Caller::Unknown);
    assert_eq!(owner(Found { state: 6, uid: 0, inode: 0 }), Caller::Unknown);
    // SYN_SENT and LISTEN: another process at the same address.
    assert_eq!(owner(Found { state: 2, ..found }), Caller::Unknown);
    assert_eq!(owner(Found { state: 10, ..found }), Caller::Unknown);
    // A user of another user namespace.
    assert_eq!(owner(Found { uid: OVERFLOW_USER, ..found }), Caller::Unknown);
}

#[test]
fn malformed_answers_and_lines_are_ignored() {
    let (client, _server) = connected("127.0.0.1", None).unwrap();
    let (from, to) = addresses(&client);
    let text = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let line = text.lines().find(|line| parse_line(line, from, to).is_some()).unwrap();
    for cut in 0..line.len() {
        let parsed = line.get(..cut).and_then(|line| parse_line(line, from, to));
        assert!(parsed.is_none_or(|found| found.uid == rustix::process::getuid().as_raw()), "{cut}");
    }
    assert_eq!(parse_answer(&question(from, to), from, to), None, "not an answer");
    for length in 0..HEADER + 8 + SOCKET_ID {
        assert_eq!(parse_answer(&vec![20; length], from, to), None);
    }
    assert_eq!(table_address("0100007F:C350").unwrap().to_string(), "127.0.0.1:50000");
    assert_eq!(table_address("0000000000000000FFFF00000100007F:0050").unwrap().to_string(), "127.0.0.1:80");
    for invalid in ["", ":", "0100007F", "0100007F:", "0100007:1", "0100007G:1", "0100007F:10000", "ééé:1"]
    {
        assert_eq!(table_address(invalid), None, "{invalid}");
    }
}
