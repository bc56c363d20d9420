//! A small client of S3: signed requests of whole objects over one connection of HTTP/1.1.

use anyhow::{Context, Result, bail};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Region that the signatures name.
pub(crate) const REGION: &str = "bench";
/// Bodies are not part of the signature; over TLS they need not be either.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Key of a client.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// Client with one connection.
pub(crate) struct Connection {
    host: String,
    bucket: String,
    key: Key,
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(host: &str, bucket: &str, key: &Key) -> Result<Connection> {
        let stream = TcpStream::connect(host).with_context(|| format!("connecting to {host}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Connection {
            host: host.to_owned(),
            bucket: bucket.to_owned(),
            key: key.clone(),
            stream: BufReader::with_capacity(64 << 10, stream),
        })
    }

    /// Gets or puts an object; returns status and body. Names consist of letters, digits and slashes.
    pub(crate) fn request(&mut self, method: &str, name: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let path = format!("/{}/{name}", self.bucket);
        let time = stamp(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
        let authorization = authorization(method, &path, &self.host, &time, &self.key)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nx-amz-content-sha256: {UNSIGNED}\r\nx-amz-date: {time}\r\n\
             Authorization: {authorization}\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        let stream = self.stream.get_mut();
        // Sends a small body in one write with the header, a larger one in a second write without a copy.
        match body.len() <= 32 << 10 {
            true => stream.write_all(&[head.as_bytes(), body].concat())?,
            false => {
                stream.write_all(head.as_bytes())?;
                stream.write_all(body)?;
            }
        }
        self.answer()
    }

    fn answer(&mut self) -> Result<(u16, Vec<u8>)> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .with_context(|| format!("no status: {line:?}"))?;
        let mut bytes = None;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                bytes = Some(value.trim().parse::<usize>()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("the answer uses chunked encoding");
            }
        }
        let mut body = vec![0; bytes.unwrap_or(0)];
        self.stream.read_exact(&mut body)?;
        Ok((status, body))
    }
}

/// Signature version 4 over host, date and the mark of an unsigned body.
fn authorization(method: &str, path: &str, host: &str, time: &str, key: &Key) -> Result<String> {
    const SIGNED: &str = "host;x-amz-content-sha256;x-amz-date";
    let date = &time[..8];
    let scope = format!("{date}/{REGION}/s3/aws4_request");
    let request = format!(
        "{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{UNSIGNED}\nx-amz-date:{time}\n\n{SIGNED}\n{UNSIGNED}"
    );
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(request)));
    let mut signing = format!("AWS4{}", key.secret).into_bytes();
    for part in [date, REGION, "s3", "aws4_request", &to_sign] {
        signing = mac(&signing, part)?;
    }
    let (id, signature) = (&key.id, hex(&signing));
    Ok(format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={SIGNED}, Signature={signature}"))
}

fn mac(key: &[u8], text: &str) -> Result<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key)?;
    mac.update(text.as_bytes());
    Ok(mac.finalize().into_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A time as `YYYYMMDDTHHMMSSZ`.
fn stamp(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // A year from March on has its leap day at the end.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::stamp;

    #[test]
    fn times_follow_the_calendar() {
        assert_eq!(stamp(0), "19700101T000000Z");
        assert_eq!(stamp(951_782_400), "20000229T000000Z");
        assert_eq!(stamp(1_369_353_600), "20130524T000000Z");
        assert_eq!(stamp(1_764_032_399), "20251125T005959Z");
    }
}
