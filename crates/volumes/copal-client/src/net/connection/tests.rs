use super::*;
use std::io;

/// No test noticed before when the error of a failed handshake named no fault: each of these says which
/// certificate it is, or that a clock may be wrong.
#[test]
fn a_failed_handshake_says_what_is_at_fault() {
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
            "the certificate of master.copal and its authority's were never good at the same time",
        ),
        (
            of_certificate(CertificateError::NotValidYet),
            "the certificate of master.copal and its authority's were never good at the same time",
        ),
        (of_certificate(CertificateError::BadSignature), "the certificate of master.copal cannot be used"),
        (
            rustls::Error::AlertReceived(AlertDescription::CertificateExpired),
            "the certificate of this process for ended: it is, or the clock there is wrong",
        ),
    ] {
        let told = fault(error);
        assert!(told.contains(sentence), "{told}");
    }
    assert_eq!(handshake_fault(&io::Error::other("no route"), &name), "no route");
}
