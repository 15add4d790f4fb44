//! Accepts connections of kubelets before version 1.26.
//!
//! These send the path of the socket as the HTTP/2 pseudo-header `:authority`. That is not a valid authority, and the HTTP/2
//! implementation below tonic resets such requests. This filter reads the client's frames and replaces an authority that is not
//! valid by `localhost`; everything else passes unchanged.
//!
//! ```text
//!   kubelet ── preface, SETTINGS, HEADERS(:authority = /var/lib/...), DATA ──► filter ── HEADERS(:authority = localhost) ──► tonic
//! ```

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::uri::Authority;
use loona_hpack::{Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// What a client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of the header of a frame.
const FRAME_HEADER: usize = 9;
/// The longest frame without a setting to the contrary, which tonic does not send.
const MAX_FRAME: usize = 16_384;
/// The longest list of headers in its encoded form.
const MAX_HEADERS: usize = 65_536;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kubelet's connection: {what}"))
}

/// Headers that several frames contain.
#[derive(Default)]
struct HeaderBlock {
    stream: [u8; 4],
    is_end_of_stream: bool,
    encoded: Vec<u8>,
}

/// The state of the client's side of one connection.
pub struct AuthorityFilter {
    is_preface_read: bool,
    block: Option<HeaderBlock>,
    decoder: Decoder<'static>,
    encoder: Encoder<'static>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Default for AuthorityFilter {
    fn default() -> Self {
        Self {
            is_preface_read: false,
            block: None,
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            input: Vec::new(),
            output: Vec::new(),
        }
    }
}

impl AuthorityFilter {
    /// Takes bytes of the client. Returns those for the server.
    pub fn filter(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.input.extend_from_slice(bytes);
        let mut position = 0;
        if !self.is_preface_read {
            if self.input.len() < PREFACE.len() {
                return Ok(Vec::new());
            }
            self.is_preface_read = true;
            self.output.extend_from_slice(&self.input[..PREFACE.len()]);
            position = PREFACE.len();
        }
        while let Some(header) = self.input.get(position..position + FRAME_HEADER) {
            let length = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
            if length > MAX_FRAME {
                return Err(invalid("a frame is too long"));
            }
            let end = position + FRAME_HEADER + length;
            let Some(frame) = self.input.get(position..end) else { break };
            let frame = frame.to_vec();
            self.take_frame(&frame)?;
            position = end;
        }
        self.input.drain(..position);
        Ok(std::mem::take(&mut self.output))
    }

    fn take_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        let (header, payload) = frame.split_at(FRAME_HEADER);
        let (kind, flags) = (header[3], header[4]);
        match kind {
            HEADERS => {
                let stream = [header[5], header[6], header[7], header[8]];
                let encoded = without_padding(payload, flags)?.to_vec();
                let is_end_of_stream = flags & END_STREAM != 0;
                self.block = Some(HeaderBlock { stream, is_end_of_stream, encoded });
            }
            CONTINUATION => {
                let block =
                    self.block.as_mut().ok_or_else(|| invalid("headers continue without a beginning"))?;
                block.encoded.extend_from_slice(payload);
            }
            _ => {
                self.output.extend_from_slice(frame);
                return Ok(());
            }
        }
        if self.block.as_ref().is_some_and(|block| block.encoded.len() > MAX_HEADERS) {
            return Err(invalid("the headers are too long"));
        }
        if flags & END_HEADERS != 0
            && let Some(block) = self.block.take()
        {
            self.put_headers(&block)?;
        }
        Ok(())
    }

    fn put_headers(&mut self, block: &HeaderBlock) -> io::Result<()> {
        let decoded = self.decoder.decode(&block.encoded);
        let mut headers = decoded.map_err(|_| invalid("the headers cannot be decoded"))?;
        for (name, value) in &mut headers {
            if name == b":authority" && Authority::try_from(value.as_slice()).is_err() {
                *value = b"localhost".to_vec();
            }
        }
        let pairs = headers.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let encoded = self.encoder.encode(pairs);
        let mut chunks = encoded.chunks(MAX_FRAME).peekable();
        let mut kind = HEADERS;
        while let Some(chunk) = chunks.next() {
            let mut flags = if chunks.peek().is_none() { END_HEADERS } else { 0 };
            if kind == HEADERS && block.is_end_of_stream {
                flags |= END_STREAM;
            }
            let length = u32::try_from(chunk.len()).unwrap_or(0).to_be_bytes();
            self.output.extend_from_slice(&length[1..]);
            self.output.extend_from_slice(&[kind, flags]);
            self.output.extend_from_slice(&block.stream);
            self.output.extend_from_slice(chunk);
            kind = CONTINUATION;
        }
        Ok(())
    }
}

/// The encoded headers of a frame.
fn without_padding(payload: &[u8], flags: u8) -> io::Result<&[u8]> {
    let truncated = || invalid("a frame of headers is too short");
    let (mut rest, mut padding) = (payload, 0);
    if flags & PADDED != 0 {
        let (first, after) = rest.split_first().ok_or_else(truncated)?;
        (rest, padding) = (after, usize::from(*first));
    }
    if flags & PRIORITY != 0 {
        rest = rest.get(5..).ok_or_else(truncated)?;
    }
    rest.get(..rest.len().checked_sub(padding).ok_or_else(truncated)?).ok_or_else(truncated)
}

/// A connection of the kubelet whose requests have a valid authority.
pub struct FilteredStream<S> {
    stream: S,
    filter: AuthorityFilter,
    ready: Vec<u8>,
    position: usize,
}

impl<S> FilteredStream<S> {
    /// Filters what the client sends on this connection.
    pub fn new(stream: S) -> Self {
        Self { stream, filter: AuthorityFilter::default(), ready: Vec::new(), position: 0 }
    }
}

impl<S> Connected for FilteredStream<S> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl<S: AsyncRead + Unpin> AsyncRead for FilteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.position < self.ready.len() {
                let count = buffer.remaining().min(self.ready.len() - self.position);
                buffer.put_slice(&self.ready[self.position..self.position + count]);
                self.position += count;
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; 4_096];
            let mut read = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.ready = self.filter.filter(read.filled())?;
            self.position = 0;
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FilteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }

    fn encoded(encoder: &mut Encoder<'_>, authority: &[u8]) -> Vec<u8> {
        let headers: [(&[u8], &[u8]); 3] =
            [(b":method", b"POST"), (b":authority", authority), (b"te", b"trailers")];
        encoder.encode(headers)
    }

    /// The authorities in the headers of a client's frames.
    fn authorities(mut bytes: &[u8]) -> Vec<String> {
        let mut decoder = Decoder::new();
        let mut found = Vec::new();
        bytes = bytes.strip_prefix(PREFACE).unwrap();
        while !bytes.is_empty() {
            let length = usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
            let (frame, rest) = bytes.split_at(FRAME_HEADER + length);
            if frame[3] == HEADERS {
                assert_eq!(frame[4] & END_HEADERS, END_HEADERS);
                let headers = decoder.decode(&frame[FRAME_HEADER..]).unwrap();
                let authority = headers.into_iter().find(|(name, _)| name == b":authority").unwrap().1;
                found.push(String::from_utf8(authority).unwrap());
            }
            bytes = rest;
        }
        found
    }

    #[test]
    fn authority_that_is_a_path_is_replaced_in_whatever_pieces_it_arrives() {
        let path = b"/var/lib/kubelet/device-plugins/xsched.sock";
        let mut encoder = Encoder::new();
        let [first, second, third] =
            [&path[..], b"localhost", path].map(|authority| encoded(&mut encoder, authority));
        let (begin, end) = second.split_at(2);
        let padded = [&[3, 0, 0, 0, 0, 16][..], &third, &[0; 3]].concat();
        let data = frame(0, END_STREAM, 1, b"a message");
        let sent = [
            PREFACE,
            &frame(4, 0, 0, &[]),
            &frame(HEADERS, END_HEADERS, 1, &first),
            &data,
            &frame(HEADERS, END_STREAM, 3, begin),
            &frame(CONTINUATION, END_HEADERS, 3, end),
            &frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 5, &padded),
        ]
        .concat();
        for piece in [1, 7, sent.len()] {
            let mut filter = AuthorityFilter::default();
            let received: Vec<u8> =
                sent.chunks(piece).flat_map(|bytes| filter.filter(bytes).unwrap()).collect();
            assert_eq!(authorities(&received), ["localhost"; 3]);
            assert!(received.windows(data.len()).any(|window| window == data));
        }
    }

    #[test]
    fn invalid_frames_are_errors() {
        for wrong in [
            frame(CONTINUATION, END_HEADERS, 1, &[]),
            frame(HEADERS, END_HEADERS | PADDED, 1, &[9]),
            frame(HEADERS, END_HEADERS | PRIORITY, 1, &[0; 3]),
            frame(HEADERS, END_HEADERS, 1, &[0xff; 40]),
            vec![255, 255, 255, 0, 0, 0, 0, 0, 1],
        ] {
            let mut filter = AuthorityFilter::default();
            assert!(filter.filter(&[PREFACE, &wrong].concat()).is_err(), "{wrong:?}");
        }
    }
}
