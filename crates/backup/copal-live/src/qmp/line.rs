//! Line reader with a bounded line length.

use std::io::{self, BufRead, BufReader, Read};

/// Maximum line length. The longest reply of QEMU is its schema, a quarter of a megabyte.
pub(crate) const MAX_LINE_BYTES: usize = 8 << 20;

/// Reads lines, none longer than [`MAX_LINE_BYTES`].
pub(crate) struct LineReader<R> {
    input: BufReader<R>,
}

impl<R: Read> LineReader<R> {
    pub(crate) fn new(input: R) -> LineReader<R> {
        LineReader { input: BufReader::new(input) }
    }

    /// Returns the next line without its end, or `None` at the end of the stream. Blocks.
    /// # Errors
    /// Those of the system, and `InvalidData` for a line that is too long.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.input).take(MAX_LINE_BYTES as u64 + 1);
        if bounded.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') && line.len() > MAX_LINE_BYTES {
            let words = format!("a line is longer than {MAX_LINE_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, words));
        }
        while matches!(line.last(), Some(b'\n' | b'\r')) {
            line.pop();
        }
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_is_refused_once_it_is_too_long() {
        let mut lines = LineReader::new(&b"a\r\n\nb"[..]);
        let mut next = || lines.next_line().unwrap();
        assert_eq!(next(), Some(b"a".to_vec()));
        assert_eq!(next(), Some(Vec::new()));
        assert_eq!(next(), Some(b"b".to_vec()));
        assert_eq!(next(), None);
        let mut endless = LineReader::new(io::repeat(b'x'));
        let error = endless.next_line().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
