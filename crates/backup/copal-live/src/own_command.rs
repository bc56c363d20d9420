//! Command line of this program with other arguments, which a guardian runs after its connection has ended.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

/// The command line `copal WORD SOCKET [ARGUMENT]` with absolute paths; empty if the path of this program is
/// unknown.
pub(crate) fn own_command(word: &str, socket: &Path, argument: Option<&OsStr>) -> Vec<OsString> {
    let (Ok(program), Ok(socket)) = (std::env::current_exe(), std::path::absolute(socket)) else {
        return Vec::new();
    };
    let mut words = vec![program.into(), word.into(), socket.into()];
    words.extend(argument.map(OsStr::to_owned));
    words
}
