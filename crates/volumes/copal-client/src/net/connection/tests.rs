use super::*;
use std::io;

/// Each error of a failed handshake names the certificate at fault, or that a clock may be wrong. No earlier test
/// noticed errors without that.
#[test]
fn the_error_of_a_failed_handshake_names_the_fault() {
    let name = ServerName::try_from("master.copal").unwrap();
    let fault = |error: rustls::Error| handshake_fault(&io::Error::other(error), &name);
    let of_certificate = rustls::Error::InvalidCertificate;
    for (error, sentence) in [
        (of_certificate(CertificateError::NotValidForName), "its certificate is not that of master.copal"),
        (
            of_certificate(CertificateError::UnknownIssuer),
            "the certificate of master.copal is not signed by the authority",
        ),
        (
            of_certificate(CertificateError::Expired),
            "the certificate of master.copal and its authority's were never valid at the same time",
        ),
        (
            of_certificate(CertificateError::NotValidYet),
            "the certificate of master.copal and its authority's were never valid at the same time",
        ),
        (of_certificate(CertificateError::BadSignature), "the certificate of master.copal cannot be used"),
        (
            rustls::Error::AlertReceived(AlertDescription::CertificateExpired),
            "the certificate of this process expired: it is, or the clock there is wrong",
        ),
    ] {
        let text = fault(error);
        assert!(text.contains(sentence), "{text}");
    }
    assert_eq!(handshake_fault(&io::Error::other("no route"), &name), "no route");
}
