//! Which requests are allowed: those of the dashboard's own page, opened with the token.
//!
//! | request | response |
//! |---|---|
//! | its Host is not this machine: a foreign name that resolves to loopback | 403 |
//! | its Origin is another page | 403 |
//! | for the page itself, which contains nothing secret | the page |
//! | for anything else without the token | 403 |
//!
//! The page keeps the token in the storage of its tab, which belongs to this address and port, and sends it as `Authorization: Bearer`. A
//! cookie would not do: browsers send the cookies of 127.0.0.1 to all its ports, and so to the servers of other users.

use crate::http::{Request, Response, Token, is_loopback};

/// What a user does about a request without the token.
const ADVICE: &str = "open the address that `xsched dashboard` printed";

/// Fails if the request is not from the dashboard's own page.
pub(super) fn check_source(request: &Request) -> Result<(), Response> {
    let host = request.host.as_deref().unwrap_or_default();
    if !is_loopback(host) {
        let why = format_args!("the Host header `{host}` does not name this machine: {ADVICE}");
        return Err(Response::error(403, why));
    }
    match request.origin.as_deref() {
        Some(origin) if origin.strip_prefix("http://") != Some(host) => {
            let why = format_args!("requests from other web pages are rejected: this one is from `{origin}`");
            Err(Response::error(403, why))
        }
        _ => Ok(()),
    }
}

/// Fails if the request does not have the token.
pub(super) fn check_token(request: &Request, token: &Token) -> Result<(), Response> {
    let given = request.authorization.as_deref().and_then(|given| given.split_once(' '));
    match given {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("bearer") && token.is(given.trim_start()) => {
            Ok(())
        }
        Some(_) => {
            Err(Response::error(403, format_args!("the token is not that of this dashboard: {ADVICE}")))
        }
        None => Err(Response::error(403, format_args!("the request has no token: {ADVICE}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: Option<&str>, origin: Option<&str>) -> Request {
        Request { host: host.map(Into::into), origin: origin.map(Into::into), ..Request::default() }
    }

    #[test]
    fn requests_of_other_pages_and_other_hosts_are_rejected() {
        for (host, origin) in [
            ("127.0.0.1:80", None),
            ("127.0.0.1:80", Some("http://127.0.0.1:80")),
            ("localhost:9000", Some("http://localhost:9000")),
        ] {
            assert_eq!(check_source(&request(Some(host), origin)), Ok(()), "{host} {origin:?}");
        }
        for (host, origin) in [
            (None, None),
            (Some("evil.example:80"), None),
            (Some("evil.example:80"), Some("http://evil.example:80")),
            (Some("127.0.0.1:80"), Some("http://127.0.0.1:81")),
            (Some("127.0.0.1:80"), Some("http://localhost:80")),
            (Some("127.0.0.1:80"), Some("https://127.0.0.1:80")),
            (Some("127.0.0.1:80"), Some("null")),
        ] {
            assert_eq!(check_source(&request(host, origin)).unwrap_err().status, 403, "{host:?} {origin:?}");
        }
    }

    #[test]
    fn requests_need_the_token() {
        let (token, text) = Token::random().unwrap();
        let with = |authorization: Option<String>| {
            check_token(&Request { authorization, ..Request::default() }, &token)
        };
        assert_eq!(with(Some(format!("Bearer {text}"))), Ok(()));
        for given in [None, Some(text.clone()), Some("Bearer ".into()), Some(format!("Bearer {text}0"))] {
            let response = with(given.clone()).unwrap_err();
            assert_eq!(response.status, 403, "{given:?}");
            assert!(
                response.body.contains("open the address that `xsched dashboard` printed"),
                "{}",
                response.body
            );
        }
        assert_ne!(Token::random().unwrap().1, text);
    }
}
