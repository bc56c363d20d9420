//! Failed handshakes: each error names the certificate at fault.

use super::*;

/// No earlier test checked that the error of a failed handshake names the certificate at fault.
#[tokio::test]
async fn a_failed_handshake_names_the_certificate_at_fault() {
    let (authority, other) =
        (CertificateAuthority::new("ours").unwrap(), CertificateAuthority::new("theirs").unwrap());
    let (address, _) = start(&authority).await;
    let client =
        |authority: &CertificateAuthority| client_tls(&authority.identity("client.copal").unwrap()).unwrap();
    for (name, tls, sentence) in [
        (
            name_of_master(),
            client(&other),
            "the certificate of master.copal is not signed by the authority of this cluster",
        ),
        (
            name_of_server(&[7; 16]),
            client(&authority),
            "another process answers there: its certificate is not that of",
        ),
    ] {
        let error = Connection::open(&address, name, tls).await.err().unwrap();
        assert!(error.to_string().contains(sentence), "{error}");
    }
}
