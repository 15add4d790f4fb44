//! An HTTP client for one short exchange, for `xcli`. Also works with the server of the original C++ XSched.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// For the connection, and again for each read of the response.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit on a response in bytes; thousands of queues need a few hundred KiB.
const MAX_RESPONSE: u64 = 16 << 20;

/// A client of the server at this address.
pub(super) struct Client {
    pub(super) address: String,
    pub(super) port: u16,
    /// Sent with every request.
    pub(super) token: Option<String>,
}

impl Client {
    /// Sends a GET request and returns the JSON body.
    pub(super) fn get(&self, target: &str) -> anyhow::Result<Value> {
        self.request("GET", target, "")
    }

    /// Sends a POST request.
    pub(super) fn post(&self, target: &str, body: &str) -> anyhow::Result<()> {
        self.request("POST", target, body).map(drop)
    }

    fn request(&self, method: &str, target: &str, body: &str) -> anyhow::Result<Value> {
        let at = self.host();
        let response = self.exchange(method, target, body).with_context(|| format!("xserver at {at}"))?;
        let (status, body) = parse(&response).with_context(|| format!("xserver at {at}"))?;
        let value: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        match (status, value["error"].as_str()) {
            (200, _) if !value.is_null() => Ok(value),
            (200, _) => bail!("xserver at {at} did not reply with JSON: does another program use this port?"),
            (_, Some(reason)) => bail!("{reason}"),
            (status, None) => bail!("xserver at {at} replied with status {status} to {method} {target}"),
        }
    }

    fn host(&self) -> String {
        let Self { address, port, .. } = self;
        // An IPv6 address contains colons.
        if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
    }

    fn exchange(&self, method: &str, target: &str, body: &str) -> anyhow::Result<String> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        let (host, length) = (self.host(), body.len());
        let credentials = self
            .token
            .as_ref()
            .map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\n{credentials}Content-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        let mut response = Vec::new();
        stream.take(MAX_RESPONSE).read_to_end(&mut response)?;
        String::from_utf8(response).context("the response is not valid UTF-8")
    }

    fn connect(&self) -> anyhow::Result<TcpStream> {
        let mut last = None;
        for address in
            (self.address.as_str(), self.port).to_socket_addrs().context("the address cannot be resolved")?
        {
            match TcpStream::connect_timeout(&address, IO_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(|| anyhow::anyhow!("the host name has no address"), Into::into))
            .context("cannot connect (is it running?)")
    }
}

/// The status and the body of a response.
fn parse(response: &str) -> anyhow::Result<(u16, &str)> {
    let (head, body) = response.split_once("\r\n\r\n").context("the response is incomplete")?;
    let status = head.strip_prefix("HTTP/1.").and_then(|line| line.split(' ').nth(1)?.parse().ok());
    Ok((status.context("the response is not HTTP")?, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_parsed_and_invalid_ones_rejected() {
        assert_eq!(parse("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}").unwrap(), (200, "{}"));
        assert_eq!(parse("HTTP/1.0 404 Not Found\r\n\r\n").unwrap(), (404, ""));
        for invalid in
            ["", "HTTP/1.1 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.1 x\r\n\r\n", "HTTP/1.1\r\n\r\n"]
        {
            assert!(parse(invalid).is_err(), "{invalid:?}");
        }
    }
}
