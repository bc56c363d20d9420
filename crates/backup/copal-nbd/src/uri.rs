//! NBD addresses: `nbd://host[:port]/export` and `nbd+unix:///export?socket=/path`.
//!
//! Specified by the NBD project's `doc/uri.md`.
//!
//! Not here: TLS (`nbds:`), vsock, ssh.

use crate::NbdError;
use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// Path of a unix socket.
    Unix(PathBuf),
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Address of the server.
    pub address: ServerAddress,
    /// Name of the export; empty for the default one.
    pub export: String,
}

impl Uri {
    /// Whether a text begins like an NBD address; such a text is not taken as a file name.
    pub fn looks_like(text: &str) -> bool {
        ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// Parses an address.
    ///
    /// # Errors
    /// `BadUri` with the reason.
    pub fn parse(text: &str) -> Result<Uri, NbdError> {
        let bad = |reason| NbdError::BadUri { uri: text.to_owned(), reason };
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            let export = path.strip_prefix('/').ok_or(bad("a unix address has no host"))?;
            let socket = query
                .split('&')
                .find_map(|pair| pair.strip_prefix("socket="))
                .ok_or(bad("it has no ?socket="))?;
            let socket = decode_bytes(socket).ok_or(bad("broken % escape"))?;
            if socket.is_empty() {
                return Err(bad("the socket is empty"));
            }
            let export = decode_percent(export).ok_or(bad("broken % escape"))?;
            return Ok(Uri {
                address: ServerAddress::Unix(PathBuf::from(OsString::from_vec(socket))),
                export,
            });
        }
        let Some(rest) = text.strip_prefix("nbd://") else {
            return Err(bad(if text.starts_with("nbds") {
                "TLS is not supported"
            } else {
                "unknown scheme"
            }));
        };
        let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = split_port(authority).ok_or(bad("broken host or port"))?;
        let export = decode_percent(export).ok_or(bad("broken % escape"))?;
        Ok(Uri { address: ServerAddress::Tcp(host, port), export })
    }
}

impl std::fmt::Display for Uri {
    /// In the form that [`Uri::parse`] accepts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let export = encode_percent(self.export.as_bytes());
        match &self.address {
            ServerAddress::Tcp(host, port) if host.contains(':') => {
                write!(f, "nbd://[{host}]:{port}/{export}")
            }
            ServerAddress::Tcp(host, port) => write!(f, "nbd://{host}:{port}/{export}"),
            ServerAddress::Unix(path) => {
                let socket = encode_percent(path.as_os_str().as_bytes());
                write!(f, "nbd+unix:///{export}?socket={socket}")
            }
        }
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
            ServerAddress::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// `host`, `host:port`, `[v6]`, `[v6]:port`; 10809 is the protocol's port.
fn split_port(authority: &str) -> Option<(String, u16)> {
    const PORT: u16 = 10809;
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        match after.strip_prefix(':') {
            Some(port) => (host, port.parse().ok()?),
            None if after.is_empty() => (host, PORT),
            None => return None,
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (authority, PORT),
        }
    };
    Some((if host.is_empty() { "localhost" } else { host }.to_owned(), port))
}

/// Escapes all bytes that could end a part of the address or have a meaning in a shell.
fn encode_percent(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b':' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02x}")),
        }
    }
    out
}

fn decode_percent(text: &str) -> Option<String> {
    String::from_utf8(decode_bytes(text)?).ok()
}

/// As [`decode_percent`], but for bytes that need not be UTF-8, such as a path.
fn decode_bytes(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |b: u8| char::from(b).to_digit(16);
        out.push((digit(bytes.next()?)? * 16 + digit(bytes.next()?)?) as u8);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: the address of a socket whose path is not UTF-8 led to another file. Cause: such bytes were
    /// replaced.
    #[test]
    fn the_path_of_a_socket_need_not_be_utf8() {
        let uri = Uri {
            address: ServerAddress::Unix(PathBuf::from(OsString::from_vec(b"/run/x\xff\xfe y".to_vec()))),
            export: "snap".to_owned(),
        };
        assert_eq!(uri.to_string(), "nbd+unix:///snap?socket=/run/x%ff%fe%20y");
        assert_eq!(Uri::parse(&uri.to_string()).unwrap(), uri);
    }

    #[test]
    fn usual_addresses_are_parsed() {
        let tcp = |host: &str, port, export: &str| Uri {
            address: ServerAddress::Tcp(host.into(), port),
            export: export.into(),
        };
        for (text, want) in [
            ("nbd://box", tcp("box", 10809, "")),
            ("nbd://box/", tcp("box", 10809, "")),
            ("nbd://box:7/vm%201", tcp("box", 7, "vm 1")),
            ("nbd://[::1]:7/a/b", tcp("::1", 7, "a/b")),
            ("nbd://[fe80::1]", tcp("fe80::1", 10809, "")),
            ("nbd:///disk", tcp("localhost", 10809, "disk")),
            (
                "nbd+unix:///snap?socket=/run/a%20b.sock",
                Uri { address: ServerAddress::Unix("/run/a b.sock".into()), export: "snap".into() },
            ),
        ] {
            assert_eq!(Uri::parse(text).unwrap(), want, "{text}");
            assert_eq!(Uri::parse(&want.to_string()).unwrap(), want, "{want}");
        }
    }

    #[test]
    fn broken_addresses_are_refused() {
        for text in [
            "",
            "box",
            "nbds://box",
            "nbd+unix://host/x?socket=/s",
            "nbd+unix:///x",
            "nbd+unix:///x?socket=",
            "nbd://box:port/",
            "nbd://[::1/",
            "nbd://box/%zz",
            "nbd://box/%f",
            "nbd://box/%ff",
        ] {
            assert!(matches!(Uri::parse(text), Err(NbdError::BadUri { .. })), "{text}");
        }
    }
}
