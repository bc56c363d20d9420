//! HTTP/1.1: reads one request within bounds and writes one answer.
//!
//! Not here: addresses and queries (`requests`), the chunk framing of signed uploads (`requests` calls
//! [`read_chunks`] for it).

use super::errors::{HEADERS_TOO_LARGE, INCOMPLETE_BODY, S3Error, TOO_LARGE, bad_request};
use std::io::{self, BufRead, Read, Write};

/// Most bytes of a request line with its headers.
const MOST_HEADER_BYTES: usize = 64 << 10;
/// Most bytes of a body.
const MOST_BODY_BYTES: usize = 64 << 20;

/// A request as it arrived. The body has no transfer encoding any more.
#[derive(Debug)]
pub(super) struct HttpRequest {
    pub(super) method: String,
    /// Still percent-encoded.
    pub(super) path: String,
    /// Still percent-encoded, without the question mark.
    pub(super) query: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Whether the request said how long its body is.
    pub(super) has_length: bool,
    /// Whether the client may send another request on this connection.
    pub(super) keeps_alive: bool,
}

impl HttpRequest {
    /// Value of the first header with that name, which is in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Causes for which a connection has no further request.
#[derive(Debug)]
pub(super) enum ReadFailure {
    /// The client closed it, or the network failed.
    Closed,
    /// The request is malformed or too large. Its end is unknown, so that the connection ends after the
    /// answer.
    Refused(S3Error),
}

impl From<io::Error> for ReadFailure {
    fn from(_: io::Error) -> ReadFailure {
        ReadFailure::Closed
    }
}

/// An answer without the headers that every answer has.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl HttpAnswer {
    /// An answer without headers and body.
    pub(super) fn empty(status: u16) -> HttpAnswer {
        HttpAnswer { status, headers: Vec::new(), body: Vec::new() }
    }

    /// An answer with a document as its body.
    pub(super) fn xml(status: u16, document: String) -> HttpAnswer {
        let headers = vec![("Content-Type", "application/xml".to_owned())];
        HttpAnswer { status, headers, body: document.into_bytes() }
    }

    /// The answer with one more header.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> HttpAnswer {
        self.headers.push((name, value.into()));
        self
    }

    /// Status line and headers. Statuses without a body have no length either (RFC 9110).
    pub(super) fn head(&self) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !matches!(self.status, 204 | 304) {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        head += "\r\n";
        head.into_bytes()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Status",
    }
}

/// Reads the next request. Answers `Expect: 100-continue` through `writer` before the body.
pub(super) fn read_request(
    reader: &mut impl BufRead,
    writer: &mut impl Write,
) -> Result<HttpRequest, ReadFailure> {
    let mut left = MOST_HEADER_BYTES;
    let mut first = read_line(reader, &mut left)?;
    if first.is_empty() {
        // A client may end a body with an empty line too many (RFC 9112).
        first = read_line(reader, &mut left)?;
    }
    let (method, target, version) = request_line(&first).ok_or_else(|| refused("malformed request line"))?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = HttpRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: read_headers(reader, &mut left)?,
        body: Vec::new(),
        has_length: false,
        keeps_alive: version == "HTTP/1.1",
    };
    if request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
        request.keeps_alive = false;
    }
    let length = content_length(&request.headers)?;
    let coding = request.header("transfer-encoding").map(str::to_ascii_lowercase);
    request.has_length = length.is_some() || coding.is_some();
    let expects = request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"));
    let may_continue = expects && length.is_none_or(|length| length <= MOST_BODY_BYTES);
    if may_continue {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    request.body = match (coding.as_deref(), length) {
        (None, length) => read_plain(reader, length.unwrap_or(0))?,
        (Some("chunked"), None) => read_chunks(reader)?,
        (Some(_), _) => return Err(refused("unknown transfer encoding, or one beside Content-Length")),
    };
    Ok(request)
}

fn refused(message: &'static str) -> ReadFailure {
    ReadFailure::Refused(bad_request(message))
}

fn request_line(line: &str) -> Option<(&str, &str, &str)> {
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    let is_version = matches!(version, "HTTP/1.1" | "HTTP/1.0");
    let is_request = is_method && target.starts_with('/') && is_version && words.next().is_none();
    is_request.then_some((method, target, version))
}

fn read_headers(reader: &mut impl BufRead, left: &mut usize) -> Result<Vec<(String, String)>, ReadFailure> {
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader, left)?;
        if line.is_empty() {
            return Ok(headers);
        }
        let header = line.split_once(':').filter(|(name, _)| !name.is_empty() && !name.contains([' ', '\t']));
        let Some((name, value)) = header else { return Err(refused("malformed header")) };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn content_length(headers: &[(String, String)]) -> Result<Option<usize>, ReadFailure> {
    let mut values = headers.iter().filter(|(name, _)| name == "content-length").map(|(_, value)| value);
    let Some(first) = values.next() else { return Ok(None) };
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    match is_number && values.all(|value| value == first) {
        // Digits that exceed the type exceed the limit too.
        true => Ok(Some(first.parse().unwrap_or(usize::MAX))),
        false => Err(refused("malformed Content-Length")),
    }
}

/// A line without its end; it takes its bytes off `left`.
fn read_line(reader: &mut impl BufRead, left: &mut usize) -> Result<String, ReadFailure> {
    let mut line = Vec::new();
    let read = reader.by_ref().take(*left as u64).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        let is_too_long = read == *left;
        return Err(if is_too_long { ReadFailure::Refused(HEADERS_TOO_LARGE) } else { ReadFailure::Closed });
    }
    *left -= read;
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| refused("header that is no UTF-8"))
}

fn read_plain(reader: &mut impl BufRead, length: usize) -> Result<Vec<u8>, ReadFailure> {
    if length > MOST_BODY_BYTES {
        return Err(ReadFailure::Refused(TOO_LARGE));
    }
    let mut body = Vec::new();
    reader.by_ref().take(length as u64).read_to_end(&mut body)?;
    match body.len() == length {
        true => Ok(body),
        false => Err(ReadFailure::Closed),
    }
}

/// Reads chunks up to the empty one, and the trailers behind it. A line of a chunk may have extensions.
pub(super) fn read_chunks(reader: &mut impl BufRead) -> Result<Vec<u8>, ReadFailure> {
    let mut body = Vec::new();
    loop {
        let mut left = MOST_HEADER_BYTES;
        let line = read_line(reader, &mut left)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_number {
            return Err(ReadFailure::Refused(INCOMPLETE_BODY));
        }
        let length = usize::from_str_radix(digits, 16).unwrap_or(usize::MAX);
        if length > MOST_BODY_BYTES - body.len() {
            return Err(ReadFailure::Refused(TOO_LARGE));
        }
        if length == 0 {
            while !read_line(reader, &mut left)?.is_empty() {}
            return Ok(body);
        }
        body.append(&mut read_plain(reader, length)?);
        if !read_line(reader, &mut left)?.is_empty() {
            return Err(ReadFailure::Refused(INCOMPLETE_BODY));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decoder, decoders_survive};

    fn read(text: &str) -> Result<HttpRequest, ReadFailure> {
        read_request(&mut text.as_bytes(), &mut io::sink())
    }

    fn status(text: &str) -> u16 {
        match read(text) {
            Ok(_) => 200,
            Err(ReadFailure::Refused(error)) => error.status,
            Err(ReadFailure::Closed) => 0,
        }
    }

    #[test]
    fn bodies_have_a_length_or_chunks() {
        let request = read("PUT /b/k?x=1 HTTP/1.1\r\nContent-Length: 3\r\nA:  b \r\n\r\nabcd").unwrap();
        assert_eq!((request.body.as_slice(), request.header("a")), (&b"abc"[..], Some("b")));
        assert_eq!((request.path.as_str(), request.query.as_str()), ("/b/k", "x=1"));
        let chunks = "PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nt: 1\r\n\r\n";
        assert_eq!(read(chunks).unwrap().body, b"abc");
        assert!((0..chunks.len()).all(|len| status(&chunks[..len]) == 0), "no prefix is a request");
    }

    #[test]
    fn malformed_and_too_large_requests_are_refused() {
        for text in [
            "GET / HTTP/2\r\n\r\n",
            "get / HTTP/1.1\r\n\r\n",
            "GET b HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nbroken\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        ] {
            assert_eq!(status(text), 400, "{text:?}");
        }
        assert_eq!(status(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(MOST_HEADER_BYTES))), 400);
        for length in ["67108865", "99999999999999999999999"] {
            assert_eq!(status(&format!("PUT /b/k HTTP/1.1\r\nContent-Length: {length}\r\n\r\n")), 413);
        }
        assert_eq!(status("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"), 413);
    }

    #[test]
    fn no_input_panics() {
        let request: Decoder = |bytes| drop(read_request(&mut &bytes[..], &mut io::sink()));
        let chunks: Decoder = |bytes| drop(read_chunks(&mut &bytes[..]));
        decoders_survive(&[("request", request), ("chunks", chunks)], 500);
    }
}
