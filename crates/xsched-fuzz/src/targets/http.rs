//! HTTP requests: their parsing, and the rights that they have.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use xsched_ipc::protocol::Caller;

use super::Run;
use crate::tool::ToolError;

#[allow(dead_code, reason = "the server does not run here")]
#[path = "../../../xsched/src/http/access.rs"]
mod access;
#[allow(dead_code, reason = "no connection has a caller here")]
#[path = "../../../xsched/src/http/caller.rs"]
mod caller;
#[path = "../../../xsched/src/http/compat.rs"]
mod compat;
#[allow(dead_code, reason = "some fields are only read by the server")]
#[path = "../../../xsched/src/http/message.rs"]
mod message;
#[allow(dead_code, reason = "the server does not run here")]
#[path = "../../../xsched/src/http/server.rs"]
mod server;

use access::{Access, Reach, Rights, Token, authorize};
use message::{MAX_BODY, MAX_HEAD, Response};

pub(super) const WORDS: &[&str] = &[
    "GET ",
    "POST ",
    "DELETE ",
    "/xqueues",
    "/xqueue/1",
    "/policy?policy=1",
    "/config/1?level=1&threshold=&batch_size=2",
    "/hint",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "Host: ",
    "Host : ",
    "localhost",
    "127.0.0.1:50000",
    "[::1]",
    "evil.example",
    "Origin: ",
    "Authorization: Bearer ",
    "0123456789abcdef0123456789abcdef",
    "Content-Length: ",
    "Transfer-Encoding: chunked\r\n",
    "\r\n",
    "\r\n\r\n",
    "\n",
    "\r",
    "\0",
    "\t",
    ": ",
    "{\"hint_type\":1,\"pid\":1,\"priority\":3}",
    "\"handle\":",
    "\"utilization\":",
    "\"kdeadline\":",
    "%2f",
    "?",
    "&",
    "=",
    "é",
];

/// The token of the service.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

pub(super) fn start() -> Run {
    let token = Some(Arc::new(token()));
    // The rights with which the last request reached the scheduler's interface.
    let reached: Rc<Cell<Option<Rights>>> = Rc::default();
    let handler = |access: Access| {
        let reached = SendCell(Rc::clone(&reached));
        authorize(
            access,
            Box::new(move |request, rights| {
                reached.set(rights);
                let no_service = || Err(ToolError::NoService { looked: vec![PathBuf::from("/none")] });
                compat::respond(&no_service, request)
            }),
        )
    };
    let handlers = [
        handler(Access::default()),
        handler(Access { reach: Reach::AnyAddress, token, shows_all_names: false }),
    ];
    let mut turn = 0_usize;
    Box::new(move |input| {
        let parsed = message::parse(input);
        check_prefix(input, &parsed);
        match parsed {
            Ok(None) => assert!(input.len() <= MAX_HEAD + 4 + MAX_BODY),
            Err(response) => check_response(&response),
            Ok(Some(request)) => {
                turn += 1;
                let caller = [Caller::Unknown, Caller::User(7)][turn % 2];
                reached.set(None);
                let response = handlers[turn / 2 % handlers.len()](&request, caller);
                check_response(&response);
                let rights = reached.get();
                assert!(rights.is_none() || request.origin.is_none(), "a web page: {request:?}");
                assert!(
                    rights != Some(Rights::Of(Caller::Unknown)) || request.method == "GET",
                    "an unknown user changes something: {request:?}"
                );
                let has_token = request.authorization.as_ref().is_some_and(|given| given.ends_with(TOKEN));
                assert!(rights != Some(Rights::Administrator) || has_token, "{request:?}");
            }
        }
    })
}

fn token() -> Token {
    use std::io::Write as _;
    // Files of this crate are readable by their owner only.
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(TOKEN.as_bytes()).expect("writing the token");
    Token::read(file.path()).expect("the token is valid")
}

/// A value of this thread in a handler, which could move to another thread but does not.
struct SendCell(Rc<Cell<Option<Rights>>>);

// SAFETY: `start` makes the handlers, and the closure that it returns calls them on the thread that called `start`: `Run` is not `Send`.
unsafe impl Send for SendCell {}

impl SendCell {
    fn set(&self, rights: Rights) {
        self.0.set(Some(rights));
    }
}

/// The server parses whatever has arrived: a shorter piece must not lead to another result.
fn check_prefix(input: &[u8], whole: &Result<Option<message::Request>, Response>) {
    let cut = input.len() / 2 + input.first().map_or(0, |byte| usize::from(*byte) % 64);
    let Some(piece) = input.get(..cut) else { return };
    match message::parse(piece) {
        Ok(None) => {}
        Ok(some) => assert_eq!(&Ok(some), whole, "a piece is complete, the whole is not the same"),
        Err(_) => assert!(whole.is_err(), "a piece is invalid, the whole is not"),
    }
}

fn check_response(response: &Response) {
    assert!(
        [200, 400, 401, 403, 404, 405, 413, 431, 501, 503, 505].contains(&response.status),
        "{response:?}"
    );
    let bytes = response.to_bytes();
    let text = std::str::from_utf8(&bytes).expect("a response is text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a response has a head");
    assert!(!head.replace("\r\n", "").contains(char::is_control), "a header contains input: {head:?}");
    serde_json::from_str::<serde::de::IgnoredAny>(body).expect("a body is JSON");
}
