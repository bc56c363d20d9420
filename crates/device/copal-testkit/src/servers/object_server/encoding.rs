//! Percent-encoding of paths, queries and listed keys.

/// The text behind percent-encoding; nothing if an escape is malformed or the bytes are no UTF-8. In queries
/// a plus sign stands for a space.
pub(super) fn percent_decode(text: &str, is_query: bool) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                decoded.push((high * 16 + low) as u8);
            }
            b'+' if is_query => decoded.push(b' '),
            byte => decoded.push(byte),
        }
    }
    String::from_utf8(decoded).ok()
}

/// A key as lists with `encoding-type=url` carry it: a space becomes a plus sign, slashes stay.
pub(super) fn url_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' | b'/' => {
                encoded.push(char::from(byte));
            }
            b' ' => encoded.push('+'),
            byte => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

/// Names and values of a query, in its order; a name without `=` has an empty value.
pub(super) fn query_parameters(query: &str) -> Option<Vec<(String, String)>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let decoded = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((percent_decode(name, true)?, percent_decode(value, true)?))
    });
    decoded.collect()
}

#[cfg(test)]
mod tests {
    use super::{percent_decode, query_parameters, url_encode};

    #[test]
    fn listed_keys_decode_to_themselves() {
        let key = "a b+c/ü%\u{1}&=";
        assert_eq!(percent_decode(&url_encode(key), true).as_deref(), Some(key));
        assert_eq!(percent_decode("a+b%2f", false).as_deref(), Some("a+b/"));
    }

    #[test]
    fn malformed_escapes_are_refused() {
        assert!(["%", "%4", "%zz", "%ff", "a%"].iter().all(|text| percent_decode(text, false).is_none()));
        let found = query_parameters("uploads&prefix=a%20b&x=").unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(found, [pair("uploads", ""), pair("prefix", "a b"), pair("x", "")]);
    }
}
