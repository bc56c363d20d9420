//! Join token of a new data server or master: addresses of the masters, fingerprint of the authority, and a
//! one-time secret.

use copal_client::fingerprint;
use sha2::{Digest, Sha256};
use std::{fmt, str::FromStr};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

/// A join token, written as ADDRESSES/FINGERPRINT/SECRET. See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Masters: host:port.
    pub masters: Vec<String>,
    /// Fingerprint of the authority's certificate.
    pub fingerprint: [u8; 32],
    secret: [u8; 16],
}

/// The text is not a join token.
#[derive(Debug, thiserror::Error)]
#[error("that is no token; get one with `copal node token`, and give it as it was printed")]
pub struct TokenError;

impl JoinToken {
    /// Makes a token with a random secret.
    /// # Errors
    /// The operating system gives no randomness, or the authority's certificate cannot be read.
    pub fn draw(masters: &[String], authority: &str) -> Result<JoinToken, String> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(|error| error.to_string())?;
        let certificate =
            CertificateDer::from_pem_slice(authority.as_bytes()).map_err(|error| error.to_string())?;
        Ok(JoinToken { masters: masters.to_vec(), fingerprint: fingerprint(&certificate), secret })
    }

    /// The hash of the secret that the master stores.
    pub fn hash(&self, joiner: JoinRole) -> [u8; 32] {
        hash_of_secret(&self.secret(), joiner)
    }

    /// The secret as it is sent to the master.
    pub fn secret(&self) -> String {
        hex(&self.secret)
    }
}

/// The role that a token admits to. A data server's token cannot add a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRole {
    /// A data server.
    DataServer,
    /// A master, which receives the authority's key.
    Master,
}

/// The hash of a presented secret, as the master stores it.
pub(crate) fn hash_of_secret(secret: &str, joiner: JoinRole) -> [u8; 32] {
    let of = match joiner {
        JoinRole::DataServer => "data ",
        JoinRole::Master => "master ",
    };
    Sha256::new_with_prefix(of).chain_update(secret).finalize().into()
}

/// Hexadecimal digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of hexadecimal digits; `None`: not hexadecimal, or another length.
pub fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    if digits.len() != 2 * N || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masters = self.masters.join(",");
        write!(f, "{masters}/{}/{}", hex(&self.fingerprint), self.secret())
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret.
        f.debug_struct("JoinToken").field("masters", &self.masters).finish_non_exhaustive()
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<JoinToken, TokenError> {
        let mut parts = text.trim().split('/');
        let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or(TokenError);
        let masters = next()?.split(',').map(str::to_owned).collect();
        let fingerprint = unhex(next()?).ok_or(TokenError)?;
        let secret = unhex(next()?).ok_or(TokenError)?;
        match parts.next() {
            None => Ok(JoinToken { masters, fingerprint, secret }),
            Some(_) => Err(TokenError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CertificateAuthority;

    #[test]
    fn a_token_is_read_as_it_was_written_and_nothing_else_is() {
        let authority = CertificateAuthority::new("test").unwrap();
        let masters = ["127.0.0.1:7400".to_owned(), "[::1]:7400".to_owned()];
        let token = JoinToken::draw(&masters, authority.certificate()).unwrap();
        let text = token.to_string();
        assert!(text.parse::<JoinToken>().unwrap() == token);
        assert!(!format!("{token:?}").contains(&token.secret()));
        for broken in ["", "a/b", &text[1..text.len() - 1], &format!("{text}/x"), "a/é/ü"] {
            assert!(broken.parse::<JoinToken>().is_err(), "{broken}");
        }
    }
}
