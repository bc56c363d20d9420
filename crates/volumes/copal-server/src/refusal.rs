//! Refusals of calls.

use copal_proto::messages::{Failure, failure::Code};

/// A refusal, as a message.
pub type Refused = Box<Failure>;

/// A refusal with a word and a sentence.
pub fn refused(code: Code, text: impl Into<String>) -> Refused {
    Box::new(Failure { code: code.into(), text: text.into(), ..Failure::default() })
}

/// The caller has given up.
pub(crate) fn expired() -> Refused {
    refused(Code::Expired, "the time that the call was given is over")
}
