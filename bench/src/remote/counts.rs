//! Requests of S3 by kind, read from the bytes that a client sends.
//!
//! Not here: transport of these bytes (`link`).

/// Longest header section that is read; S3 allows 8 KiB.
const MOST_HEADER_BYTES: usize = 64 << 10;

/// Requests and bytes of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) puts: u64,
    pub(super) gets: u64,
    pub(super) lists: u64,
    /// HEAD, DELETE, POST, and questions about the bucket.
    pub(super) others: u64,
    /// Bytes from the client, with headers.
    pub(super) sent: u64,
    /// Bytes to the client, with headers.
    pub(super) received: u64,
}

impl Counts {
    pub(super) fn requests(&self) -> u64 {
        self.puts + self.gets + self.lists + self.others
    }

    pub(super) fn beside_puts(&self) -> u64 {
        self.requests() - self.puts
    }

    fn add(&mut self, method: &str, target: &str) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let is_list =
            query.split('&').any(|word| word.starts_with("list-type=") || word.starts_with("prefix="));
        let names_object = path.trim_matches('/').contains('/');
        match method {
            "GET" if is_list => self.lists += 1,
            "GET" if names_object => self.gets += 1,
            "PUT" if names_object => self.puts += 1,
            _ => self.others += 1,
        }
    }
}

/// Finds the begin of each request in the bytes of one connection.
#[derive(Default)]
pub(super) struct RequestReader {
    header: Vec<u8>,
    /// Bytes of the body that are still to come.
    body_left: u64,
    /// No more requests are found: the connection does not speak as expected.
    is_lost: bool,
}

impl RequestReader {
    /// Looks at the next bytes and counts the requests that begin in them. `false`: they are not understood.
    pub(super) fn observe(&mut self, mut bytes: &[u8], counts: &mut Counts) -> bool {
        counts.sent += bytes.len() as u64;
        while !bytes.is_empty() && !self.is_lost {
            if self.body_left > 0 {
                let taken = self.body_left.min(bytes.len() as u64);
                self.body_left -= taken;
                bytes = &bytes[taken as usize..];
                continue;
            }
            let before = self.header.len();
            self.header.extend_from_slice(bytes);
            let Some(end) = self.header.windows(4).position(|window| window == b"\r\n\r\n") else {
                self.is_lost = self.header.len() > MOST_HEADER_BYTES;
                break;
            };
            bytes = &bytes[end + 4 - before..];
            self.header.truncate(end);
            let text = String::from_utf8_lossy(&self.header).into_owned();
            self.header.clear();
            self.is_lost = !self.begin(&text, counts);
        }
        !self.is_lost
    }

    fn begin(&mut self, header: &str, counts: &mut Counts) -> bool {
        let mut lines = header.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return false };
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { return false };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => match value.parse() {
                    Ok(bytes) => self.body_left = bytes,
                    Err(_) => return false,
                },
                "transfer-encoding" => return false,
                _ => {}
            }
        }
        counts.add(method, target);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_wherever_the_bytes_are_cut() {
        let text = b"PUT /b/p/n/1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET /GET /b/?list-type=2&prefix=p HTTP/1.1\r\nHost: h\r\n\r\n\
                     GET /b/p/n/1 HTTP/1.1\r\n\r\nHEAD /b/p/n/1 HTTP/1.1\r\n\r\nGET /b/?location= HTTP/1.1\r\n\r\n";
        let sent = text.len() as u64;
        let want = Counts { puts: 1, gets: 1, lists: 1, others: 2, sent, received: 0 };
        for step in [1, 2, 3, 7, 50, text.len()] {
            let (mut reader, mut counts) = (RequestReader::default(), Counts::default());
            assert!(text.chunks(step).all(|bytes| reader.observe(bytes, &mut counts)));
            assert_eq!(counts, want, "pieces of {step} bytes");
        }
    }
}
