//! A trace as an HTML page: a single file that loads nothing and draws the timeline.
//!
//! The page contains the trace in the same format as the file for Perfetto, so that it is written event by event as well.

use std::io::{self, Write};

const HEAD: &str = concat!(
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
    "<meta name=\"color-scheme\" content=\"light dark\">\n<title>XSched trace</title>\n<style>\n",
    include_str!("page/page.css"),
    "</style>\n</head>\n",
    include_str!("page/page.html"),
    "<script type=\"application/json\" id=\"trace\">\n",
);
const TAIL: &str =
    concat!("</script>\n<script>\n", include_str!("page/page.js"), "</script>\n</body>\n</html>\n");

/// Writes the trace that it is given into a page.
pub(crate) struct PageWriter<W> {
    out: W,
}

impl<W: Write> PageWriter<W> {
    /// Begins the page.
    pub(crate) fn begin(mut out: W) -> io::Result<Self> {
        out.write_all(HEAD.as_bytes())?;
        Ok(Self { out })
    }

    /// Ends the page.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.out.write_all(TAIL.as_bytes())?;
        self.out.flush()
    }
}

impl<W: Write> Write for PageWriter<W> {
    /// In JSON `<` occurs only in strings. Escaped, it cannot end the script element that contains the trace.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut pieces = bytes.split(|byte| *byte == b'<');
        self.out.write_all(pieces.next().unwrap_or_default())?;
        for piece in pieces {
            self.out.write_all(b"\\u003c")?;
            self.out.write_all(piece)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(trace: &str) -> String {
        let mut out = Vec::new();
        let mut page = PageWriter::begin(&mut out).unwrap();
        page.write_all(trace.as_bytes()).unwrap();
        page.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn page_loads_nothing() {
        let page = page("{}");
        for forbidden in ["http", "@import", "url(", "src="] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.ends_with("</html>\n"));
    }

    #[test]
    fn names_cannot_end_the_script_and_are_decoded_as_written() {
        let trace = r#"{"name":"</script><!--<script>"}"#;
        let page = page(trace);
        assert_eq!(page.matches("</script>").count(), 2, "only those of the page itself");
        let (_, embedded) = page.split_once("id=\"trace\">\n").unwrap();
        let (embedded, _) = embedded.split_once("</script>").unwrap();
        let [decoded, expected] =
            [embedded, trace].map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert_eq!(decoded, expected);
    }
}
