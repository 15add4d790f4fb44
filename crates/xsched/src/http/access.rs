//! The rights of an HTTP request: those of its caller, never those of the service.
//!
//! | caller | rights |
//! |---|---|
//! | a process of this machine, through a loopback address | those of its user: see [`super::caller`] |
//! | a request with the token of the service | those of an administrator |
//! | any other | may read, without the names of programs |
//!
//! The service itself applies the rules, as it does on its own socket: the connection to it acts for the caller
//! ([`Request::ActFor`]).

use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use xsched_ipc::protocol::{Caller, Reply, Request};

use super::message::{self, Response};
use super::server::Handler;
use crate::tool::{ToolConnection, ToolError};

/// Which addresses may be listened on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Loopback addresses only.
    #[default]
    Loopback,
    /// Every address: the user gave --http-allow-remote.
    AnyAddress,
}

/// Which callers may connect, and what they may see.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) reach: Reach,
    /// A request with this token has the rights of an administrator.
    pub(crate) token: Option<Arc<Token>>,
    /// The metrics contain the names of all programs, for every caller.
    pub(crate) shows_all_names: bool,
}

/// The rights of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// Those of an administrator.
    Administrator,
    /// Those of a caller.
    Of(Caller),
}

impl Rights {
    /// Connects to the service. The connection has these rights only.
    pub(super) fn connect(self, service: &Path) -> Result<ToolConnection, ToolError> {
        let tool = ToolConnection::connect_to_first(vec![service.to_owned()])?;
        match self {
            Self::Administrator => Ok(tool),
            Self::Of(caller) => match tool.request(&Request::ActFor(caller))? {
                Reply::Done => Ok(tool),
                _ => Err(tool.unexpected()),
            },
        }
    }
}

/// Makes the response to a request with these rights.
pub(super) type AuthorizedHandler = Box<dyn Fn(&message::Request, Rights) -> Response + Send>;

/// Rejects requests that a browser sends for a web page, and finds the rights of all others.
pub(super) fn authorize(access: Access, handler: AuthorizedHandler) -> Handler {
    Box::new(move |request, caller| match access.rights(request, caller) {
        Ok(rights) => handler(request, rights),
        Err(response) => response,
    })
}

impl Access {
    fn rights(&self, request: &message::Request, caller: Caller) -> Result<Rights, Response> {
        // A page can reach loopback addresses by their own name (the request then has an Origin) or by a foreign name that resolves
        // to loopback (the Host is then foreign).
        if request.origin.is_some() {
            let why = "requests from web pages are rejected: the request has an Origin header";
            return Err(Response::error(403, why));
        }
        let foreign_host = request.host.as_deref().filter(|host| !is_loopback(host));
        if let (Reach::Loopback, Some(host)) = (self.reach, foreign_host) {
            let why = format_args!("the Host header `{host}` does not name this machine");
            return Err(Response::error(403, why));
        }
        if let Some(given) = &request.authorization {
            let token = given.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            return match (&self.token, token) {
                (Some(token), Some((_, given))) if token.is(given.trim_start()) => Ok(Rights::Administrator),
                (None, _) => Err(Response::error(
                    401,
                    "this service accepts no token: set token_file in its configuration",
                )),
                _ => Err(Response::error(
                    401,
                    "the token in the Authorization header is not that of this service",
                )),
            };
        }
        let caller = if foreign_host.is_some() { Caller::Unknown } else { caller };
        if caller == Caller::Unknown && request.method != "GET" {
            return Err(Response::error(
                401,
                "the user of this request is unknown, so it may not change anything: connect from this machine to a loopback \
                 address, or send the token of the service (token_file in its configuration) as `Authorization: Bearer TOKEN`",
            ));
        }
        Ok(Rights::Of(caller))
    }
}

/// Whether a `Host` header names this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or((rest, "]")),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        && (name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()))
}

/// A secret that gives the rights of an administrator.
pub(crate) struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// The allowed lengths of a token, in characters.
    const LENGTH: std::ops::RangeInclusive<usize> = 32..=256;

    /// Reads the token from a file that only its owner can read.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("cannot use the token file {}", path.display());
        let file = std::fs::File::open(path).with_context(context)?;
        let metadata = file.metadata().with_context(context)?;
        let own = rustix::process::geteuid().as_raw();
        let mut text = String::new();
        file.take(4096).read_to_string(&mut text).with_context(context)?;
        Self::check(&metadata, own, text.trim_end()).with_context(context)
    }

    fn check(metadata: &std::fs::Metadata, own: u32, text: &str) -> anyhow::Result<Self> {
        if !metadata.is_file() || metadata.mode() & 0o077 != 0 || ![0, own].contains(&metadata.uid()) {
            bail!(
                "it must be a file of the service's user that other users cannot read: use chmod 600 and chown"
            );
        }
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if !Self::LENGTH.contains(&text.len()) || !text.bytes().all(is_token) {
            bail!(
                "a token has {} to {} letters, digits and characters of -._~+/=: make one with `openssl rand -hex 32`",
                Self::LENGTH.start(),
                Self::LENGTH.end()
            );
        }
        Ok(Self(text.as_bytes().to_vec()))
    }

    /// A new random token, in hexadecimal digits.
    pub(crate) fn random() -> anyhow::Result<(Self, String)> {
        let mut bytes = [0; 32];
        let source = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
        source.context("cannot read random bytes from /dev/urandom")?;
        let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
        let text: String = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        Ok((Self(text.as_bytes().to_vec()), text))
    }

    /// Whether this is the token. The time does not depend on where they differ.
    pub(crate) fn is(&self, given: &str) -> bool {
        let given = given.as_bytes();
        let differences = self.0.iter().zip(given).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(differences) == 0 && given.len() == self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_hosts_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:50000", "[::1]", "[::1]:5"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.evil:80",
            "10.0.0.1",
            "[::2]",
            "[::1",
            "[::1]x",
            "localhost:x",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn token_files_that_others_can_read_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let with = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map_err(|error| format!("{error:#}"))
        };
        let secret = "0123456789abcdef".repeat(2);
        let token = with(&format!("{secret}\n"), 0o600).unwrap();
        assert!(
            token.is(&secret) && !token.is(&secret[1..]) && !token.is(&format!("{secret}0")) && !token.is("")
        );
        assert!(!token.is(&secret.replace('0', "1")));
        assert!(with(&secret, 0o400).is_ok());
        for (text, mode, word) in [
            (secret.as_str(), 0o640, "chmod 600"),
            (&secret, 0o604, "chmod 600"),
            ("", 0o600, "openssl rand"),
            (&secret[1..], 0o600, "openssl rand"),
            (&secret.replace('0', " "), 0o600, "openssl rand"),
        ] {
            let error = with(text, mode).unwrap_err();
            assert!(error.contains(word) && error.contains("token file"), "{error}");
        }
        assert!(Token::read(directory.path()).is_err());
    }
}
