//! Lines of product code, of files and of functions.

use super::{percent, product};
use crate::tidy::Tree;

/// A function with more lines counts as long.
const LONG_FUNCTION: usize = 70;

pub(super) fn report(tree: &Tree) -> String {
    let mut code = 0;
    let mut files: Vec<(usize, &str)> = Vec::new();
    let mut functions = Vec::new();
    for (path, source) in product(tree) {
        code += code_lines(source);
        functions.extend(function_lines(source));
        if !path.ends_with("copal-proto/src/messages.rs") {
            files.push((source.lines().count(), path));
        }
    }
    files.sort_unstable();
    let long = functions.iter().filter(|&&lines| lines > LONG_FUNCTION).count();
    let median = files.get(files.len() / 2).map_or(0, |(lines, _)| *lines);
    let (largest, path) = files.last().copied().unwrap_or((0, ""));
    format!(
        "lines: {code} of product code without comments and unit tests\n\
         files: {}, median {median} lines, largest {largest} ({path})\n\
         functions: {}, over {LONG_FUNCTION} lines {long} ({})\n",
        files.len(),
        functions.len(),
        percent(long, functions.len()),
    )
}

/// Lines that are neither blank nor comment, up to the unit tests of the file.
fn code_lines(source: &str) -> usize {
    let product = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    product.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Lines of each function, from its name to the brace below it.
fn function_lines(source: &str) -> Vec<usize> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let is_function = code
            .split_whitespace()
            .take_while(|word| !word.contains(['"', '/', '=']))
            .any(|word| word == "fn");
        if !is_function || line.ends_with(';') || line.ends_with('}') {
            continue;
        }
        let close = format!("{}}}", &line[..line.len() - code.len()]);
        if let Some(end) = lines[at..].iter().position(|line| *line == close) {
            found.push(end + 1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_tests_are_no_code() {
        assert_eq!(code_lines("//! a\nfn f() {\n    // b\n\n}\n#[cfg(test)]\nmod tests {\n}\n"), 2);
    }

    #[test]
    fn a_function_ends_at_the_brace_below_its_name() {
        let source =
            "impl A {\n    pub fn f() {\n        if x {\n        }\n    }\n    fn g();\n}\nfn h() {\n}\n";
        assert_eq!(function_lines(source), [4, 2]);
    }
}
