//! The subset of HTTP/1.1 that is needed: one request and one response, then the connection is closed.

use std::fmt::Write as _;

/// Limit on the request line and headers together, in bytes.
pub(super) const MAX_HEAD: usize = 8 * 1024;
/// Limit on the body, in bytes.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// What a page may do: load scripts and styles from this server, send requests to it, and nothing else. No other page may embed it.
const PAGE_POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n";

/// A request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
    /// The text after the `?`.
    pub(crate) query: String,
    pub(crate) host: Option<String>,
    /// Sent by a browser for a request of a web page.
    pub(crate) origin: Option<String>,
    /// Credentials, such as `Bearer TOKEN`.
    pub(crate) authorization: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// A parameter of the query; none if its value is empty.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        let has_value =
            |pair: &'_ str| pair.split_once('=').is_some_and(|(key, value)| key == name && !value.is_empty());
        self.query
            .split('&')
            .find(|pair| has_value(pair))
            .and_then(|pair| pair.split_once('='))
            .map(|(_, value)| value)
    }
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

impl Response {
    /// Status 200 with a JSON body.
    pub(crate) fn json(value: &serde_json::Value) -> Self {
        Self { status: 200, content_type: "application/json", body: value.to_string() }
    }

    /// An error status with the body `{"error": reason}`.
    pub(crate) fn error(status: u16, reason: impl std::fmt::Display) -> Self {
        Self { status, ..Self::json(&serde_json::json!({ "error": reason.to_string() })) }
    }

    /// The bytes to send.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let challenge = if self.status == 401 { "WWW-Authenticate: Bearer\r\n" } else { "" };
        let policy = if self.content_type.starts_with("text/html") { PAGE_POLICY } else { "" };
        let _ = write!(
            text,
            "HTTP/1.1 {} {}\r\n{challenge}{policy}Content-Type: {}\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{}",
            self.status,
            reason_phrase(self.status),
            self.content_type,
            self.body.len(),
            self.body
        );
        text.into_bytes()
    }
}

fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}

/// Parses the bytes received so far. Returns none if the request is incomplete, and a response if it is invalid.
pub(super) fn parse(input: &[u8]) -> Result<Option<Request>, Response> {
    let Some(end) = find(input, b"\r\n\r\n") else {
        return if input.len() > MAX_HEAD { Err(head_too_long()) } else { Ok(None) };
    };
    if end > MAX_HEAD {
        return Err(head_too_long());
    }
    let head = std::str::from_utf8(&input[..end])
        .map_err(|_| Response::error(400, "the headers are not valid UTF-8"))?;
    // Other programs may take a single CR or LF for the end of a line.
    if head.split("\r\n").any(|line| line.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t')) {
        return Err(Response::error(400, "the headers contain a control character"));
    }
    let mut lines = head.split("\r\n");
    let mut request = request_line(lines.next().unwrap_or_default())?;
    let mut length = None;
    for line in lines {
        let (name, value) =
            line.split_once(':').ok_or_else(|| Response::error(400, "a header has no colon"))?;
        if !is_token(name) {
            return Err(Response::error(400, format_args!("`{name}` is not the name of a header")));
        }
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let given = content_length(value)?;
                if length.is_some_and(|length| length != given) {
                    return Err(Response::error(400, "two Content-Length headers differ"));
                }
                length = Some(given);
            }
            "transfer-encoding" => {
                return Err(Response::error(
                    501,
                    "Transfer-Encoding is not supported: send a Content-Length",
                ));
            }
            "host" => set_once(&mut request.host, "Host", value)?,
            "origin" => set_once(&mut request.origin, "Origin", value)?,
            "authorization" => set_once(&mut request.authorization, "Authorization", value)?,
            _ => {}
        }
    }
    let body = &input[end + 4..];
    let length = length.unwrap_or(0);
    if body.len() < length {
        return Ok(None);
    }
    request.body = body[..length].to_vec();
    Ok(Some(request))
}

/// Whether a text is a name in the grammar of HTTP. A name with a space before the colon is not: other programs may ignore such a
/// header, or not.
fn is_token(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_name)
}

/// Sets a header that a request has at most once.
fn set_once(header: &mut Option<String>, name: &str, value: &str) -> Result<(), Response> {
    match header.replace(value.to_owned()) {
        None => Ok(()),
        Some(_) => Err(Response::error(400, format_args!("the request has two {name} headers"))),
    }
}

fn head_too_long() -> Response {
    Response::error(431, format_args!("the headers are longer than {MAX_HEAD} bytes"))
}

fn request_line(line: &str) -> Result<Request, Response> {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Response::error(400, "the request line is not `METHOD /path HTTP/1.1`"));
    };
    if !["HTTP/1.1", "HTTP/1.0"].contains(&version) {
        return Err(Response::error(505, "only HTTP/1.1 and HTTP/1.0 are supported"));
    }
    if !target.starts_with('/') {
        return Err(Response::error(400, "the path does not begin with `/`"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok(Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    })
}

fn content_length(value: &str) -> Result<usize, Response> {
    // `parse` alone would accept a sign.
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return Err(Response::error(400, "the Content-Length is not a number"));
    }
    match value.parse() {
        Ok(length) if length <= MAX_BODY => Ok(length),
        _ => Err(Response::error(413, format_args!("the body is longer than {MAX_BODY} bytes"))),
    }
}

fn find(text: &[u8], pattern: &[u8]) -> Option<usize> {
    text.windows(pattern.len()).position(|window| window == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_status(input: &str) -> u16 {
        parse(input.as_bytes()).unwrap_err().status
    }

    #[test]
    fn request_can_arrive_in_any_pieces() {
        let text = "POST /config/1f?level=2&threshold=&x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";
        for cut in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..cut]), Ok(None), "{cut}");
        }
        let request = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/config/1f"));
        assert_eq!((request.host.as_deref(), request.body.as_slice()), (Some("a"), &b"{}"[..]));
        assert_eq!(request.parameter("level"), Some("2"));
        for missing in ["threshold", "x", "batch_size", ""] {
            assert_eq!(request.parameter(missing), None, "{missing}");
        }
    }

    #[test]
    fn invalid_requests_get_the_matching_status() {
        assert_eq!(error_status("invalid\r\n\r\n"), 400);
        assert_eq!(error_status("GET  / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(error_status("GET http://a/ HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(error_status("GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(error_status("GET / HTTP/1.1\r\nno colon\r\n\r\n"), 400);
        assert_eq!(error_status("GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n"), 400);
        for header in [
            "Host : a",
            "Host\t: a",
            " Host: a",
            ": a",
            "H\u{e9}: a",
            "Host: a\r\nhost: a",
            "Origin: a\r\nOrigin: b",
            "Authorization: a\r\nAuthorization: a",
            "A: b\nHost: c",
            "A: b\rHost: c",
            "A: \0",
        ] {
            assert_eq!(error_status(&format!("GET / HTTP/1.1\r\n{header}\r\n\r\n")), 400, "{header:?}");
        }
        assert_eq!(error_status("GET /\n HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(error_status("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
        assert_eq!(error_status("GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"), 413);
        assert_eq!(error_status("GET / HTTP/1.1\r\nContent-Length: 65537\r\n\r\n"), 413);
        assert_eq!(error_status("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), 501);
        assert_eq!(error_status(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_HEAD))), 431);
        assert_eq!(error_status(&format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(MAX_HEAD))), 431);
        assert_eq!(parse(b"GET / HTTP/1.1\r\nA: \xff\r\n\r\n").unwrap_err().status, 400);
    }

    #[test]
    fn only_pages_have_a_policy() {
        let text = |content_type| {
            let response = Response { status: 200, content_type, body: String::new() };
            String::from_utf8(response.to_bytes()).unwrap()
        };
        assert!(
            text("text/html; charset=utf-8").contains("\r\nContent-Security-Policy: default-src 'none';")
        );
        assert!(!text("application/json").contains("Content-Security-Policy"));
    }

    #[test]
    fn response_has_its_content_length() {
        let text = String::from_utf8(Response::error(404, "no \"such\" path").to_bytes()).unwrap();
        assert!(text.starts_with("HTTP/1.1 404 Not Found\r\n"), "{text}");
        assert!(text.contains("\r\nContent-Length: 28\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n{\"error\":\"no \\\"such\\\" path\"}"), "{text}");
    }
}
