//! Modules of a crate and their imports, read from the sources without a compiler: words, paths and imports.
//!
//! Output of macros is not seen, and a method is not a path: both need a type that is imported.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

/// Greatest number of re-exports that are followed.
const HOPS: usize = 8;

/// One file of a crate.
struct Module {
    /// Its path from the crate's root; empty for the root.
    path: Vec<String>,
    /// Paths it names, each from this module.
    named: Vec<Vec<String>>,
    /// Re-exports: public name and the path it stands for. A path that ends in `*` re-exports a whole module.
    offered: Vec<(String, Vec<String>)>,
    /// Items that it defines.
    defined: BTreeSet<String>,
    /// Submodules that exist for tests only.
    tests: BTreeSet<String>,
}

/// All modules of a crate that are files of their own.
pub(crate) struct Crate {
    modules: Vec<Module>,
    by_path: BTreeMap<Vec<String>, usize>,
}

impl Crate {
    /// Reads every source below `sources`, tests left out.
    pub(crate) fn read(sources: &Path) -> io::Result<Crate> {
        let mut files = Vec::new();
        walk(sources, &mut Vec::new(), &mut files)?;
        Ok(Crate::of(files.iter().map(|(path, text)| (path.clone(), text.as_str()))))
    }

    fn of<'a>(files: impl Iterator<Item = (Vec<String>, &'a str)>) -> Crate {
        let modules: Vec<Module> = files.map(|(path, text)| Module::read(path, text)).collect();
        let is_test = |module: &Module| {
            modules.iter().any(|other| {
                let child = module.path.get(other.path.len());
                module.path.starts_with(&other.path) && child.is_some_and(|child| other.tests.contains(child))
            })
        };
        let kept: Vec<bool> = modules.iter().map(|module| !is_test(module)).collect();
        let modules = modules.into_iter().zip(kept).filter(|(_, kept)| *kept);
        let mut modules: Vec<Module> = modules.map(|(module, _)| module).collect();
        modules.sort_by(|a, b| a.path.cmp(&b.path));
        let by_path = modules.iter().enumerate().map(|(at, module)| (module.path.clone(), at)).collect();
        Crate { modules, by_path }
    }

    pub(crate) fn len(&self) -> usize {
        self.modules.len()
    }

    pub(crate) fn name(&self, at: usize) -> String {
        match &self.modules[at].path[..] {
            [] => "(root)".into(),
            path => path.join("::"),
        }
    }

    /// Imports of each module.
    pub(crate) fn needs(&self) -> Vec<Vec<usize>> {
        let of = |at: usize| {
            let named = self.modules[at].named.iter();
            let needed: BTreeSet<usize> = named.filter_map(|path| self.resolve(at, path, HOPS)).collect();
            needed.into_iter().filter(|&needed| needed != at).collect()
        };
        (0..self.modules.len()).map(of).collect()
    }

    /// The module that defines `path` as written in module `at`; none for items of other crates.
    fn resolve(&self, at: usize, path: &[String], hops: usize) -> Option<usize> {
        let mut base = self.modules[at].path.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => drop(base.pop()?),
            first => {
                let mut child = base.clone();
                child.push(first.to_owned());
                let is_own = self.by_path.contains_key(&child)
                    || self.modules[at].offered.iter().any(|(name, _)| name == first);
                if !is_own {
                    return None;
                }
                return self.descend(base, rest, hops);
            }
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|word| word == "super") {
            base.pop()?;
            rest = &rest[1..];
        }
        self.descend(base, rest, hops)
    }

    fn descend(&self, mut base: Vec<String>, mut rest: &[String], hops: usize) -> Option<usize> {
        while let Some(next) = rest.first() {
            base.push(next.clone());
            if !self.by_path.contains_key(&base) {
                base.pop();
                break;
            }
            rest = &rest[1..];
        }
        let at = *self.by_path.get(&base)?;
        let module = &self.modules[at];
        let Some(name) = rest.first().filter(|name| hops > 0 && !module.defined.contains(*name)) else {
            return Some(at);
        };
        let by_name = module.offered.iter().find(|(offered, _)| offered == name);
        let target = by_name.and_then(|(_, path)| self.resolve(at, path, hops - 1));
        let by_glob = || {
            let globs = module.offered.iter().filter(|(offered, _)| offered == "*");
            let mut all = globs.filter_map(|(_, path)| self.resolve(at, path, hops - 1));
            all.find(|&there| self.modules[there].defined.contains(name))
        };
        Some(target.or_else(by_glob).unwrap_or(at))
    }
}

fn walk(folder: &Path, path: &mut Vec<String>, files: &mut Vec<(Vec<String>, String)>) -> io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(folder)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            path.push(name);
            walk(&entry.path(), path, files)?;
            path.pop();
        } else if let Some(stem) = name.strip_suffix(".rs") {
            let mut of_file = path.clone();
            if !matches!(stem, "mod" | "lib" | "main") {
                of_file.push(stem.to_owned());
            }
            files.push((of_file, std::fs::read_to_string(entry.path())?));
        }
    }
    Ok(())
}

impl Module {
    fn read(path: Vec<String>, text: &str) -> Module {
        let words = words(text);
        let mut module = Module {
            path,
            named: Vec::new(),
            offered: Vec::new(),
            defined: BTreeSet::new(),
            tests: BTreeSet::new(),
        };
        let mut at = 0;
        while at < words.len() {
            at = module.step(&words, at);
        }
        module
    }

    /// Reads the item that begins at word `at`; returns the first word behind it.
    fn step(&mut self, words: &[&str], at: usize) -> usize {
        const ITEMS: [&str; 9] =
            ["fn", "struct", "enum", "trait", "const", "static", "type", "union", "macro_rules"];
        let word = words[at];
        if is_test_mark(&words[at..]) {
            return self.skip_test(words, at + TEST_MARK.len());
        }
        if word == "use" {
            let is_offered = at > 0 && matches!(words[at - 1], "pub" | ")");
            let mut found = Vec::new();
            let end = tree(words, at + 1, &mut Vec::new(), &mut found);
            for (name, path) in found {
                if is_offered {
                    self.offered.push((name, path.clone()));
                } else {
                    self.named.push(path);
                }
            }
            return end;
        }
        if ITEMS.contains(&word)
            && let Some(name) = words.get(at + 1)
        {
            self.defined.insert((*name).to_owned());
        }
        let is_path = matches!(word, "crate" | "super") && words.get(at + 1) == Some(&"::");
        if !is_path {
            return at + 1;
        }
        let mut path = vec![word.to_owned()];
        let mut end = at + 1;
        while words.get(end) == Some(&"::") && words.get(end + 1).is_some_and(|word| is_name(word)) {
            path.push(words[end + 1].to_owned());
            end += 2;
        }
        self.named.push(path);
        end
    }

    /// Skips the item behind `#[cfg(test)]`.
    fn skip_test(&mut self, words: &[&str], mut at: usize) -> usize {
        let mut depth = 0;
        while let Some(word) = words.get(at) {
            if *word == "mod"
                && depth == 0
                && let Some(name) = words.get(at + 1)
            {
                self.tests.insert((*name).to_owned());
            }
            match *word {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if depth == 0 {
                        return at + 1;
                    }
                }
                ";" | "," if depth == 0 => return at + 1,
                _ => {}
            }
            at += 1;
        }
        at
    }
}

const TEST_MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

fn is_test_mark(words: &[&str]) -> bool {
    // Strings are no words: the feature's name is left out.
    let any = ["#", "[", "cfg", "(", "any", "(", "test", ",", "feature", "=", ")", ")", "]"];
    words.starts_with(&TEST_MARK) || words.starts_with(&any)
}

/// Reads a tree of imports from `at` to its end and appends each name with its path to `found`. Returns the
/// first word behind it.
fn tree(
    words: &[&str],
    mut at: usize,
    prefix: &mut Vec<String>,
    found: &mut Vec<(String, Vec<String>)>,
) -> usize {
    let depth = prefix.len();
    loop {
        match words.get(at) {
            Some(&"{") => {
                at += 1;
                while words.get(at).is_some_and(|word| *word != "}") {
                    let begin = at;
                    at = tree(words, at, prefix, found);
                    // A word that begins no name, such as `$` in a macro, is passed over.
                    at += usize::from(at == begin || words.get(at) == Some(&","));
                }
                at += 1;
                break;
            }
            Some(&"*") => {
                found.push(("*".into(), prefix.clone()));
                at += 1;
                break;
            }
            Some(word) if is_name(word) => {
                prefix.push((*word).to_owned());
                at += 1;
                if words.get(at) == Some(&"::") {
                    at += 1;
                    continue;
                }
                let mut name = prefix.last().cloned().unwrap_or_default();
                if words.get(at) == Some(&"as") {
                    name = words.get(at + 1).copied().unwrap_or_default().to_owned();
                    at += 2;
                }
                let mut path = prefix.clone();
                if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                    path.pop();
                    name = path.last().cloned().unwrap_or_default();
                }
                found.push((name, path));
                break;
            }
            _ => break,
        }
    }
    prefix.truncate(depth);
    at
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words and marks of a source; comments, strings and characters are left out.
pub(crate) fn words(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let Some(first) = rest.chars().next() else { break };
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(len) = raw_string(rest) {
            len
        } else if first == '"' {
            string(rest)
        } else if first == '\'' {
            character(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            words.push(&rest[..len]);
            len
        } else if rest.starts_with("::") {
            words.push("::");
            2
        } else {
            if !first.is_whitespace() {
                words.push(&rest[..first.len_utf8()]);
            }
            first.len_utf8()
        };
        at += len;
    }
    words
}

fn raw_string(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let open = rest.len() - body.len() + hashes + 1;
    body[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len()))
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Skips a character literal, or the mark of a lifetime.
fn character(rest: &str) -> usize {
    let mut inside = rest.char_indices().skip(1);
    match (inside.next(), inside.next()) {
        (Some((_, '\\')), _) => rest[3..].find('\'').map_or(rest.len(), |end| 3 + end + 1),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::Crate;

    fn needs(files: &[(&str, &str)]) -> Vec<String> {
        let path = |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let modules = Crate::of(files.iter().map(|(name, text)| (path(name), *text)));
        let needs = modules.needs();
        let pairs = needs.iter().enumerate().flat_map(|(from, all)| all.iter().map(move |to| (from, *to)));
        pairs.map(|(from, to)| format!("{} {}", modules.name(from), modules.name(to))).collect()
    }

    /// Symptom: `layers --modules` did not end on an import inside a macro. Cause: a list of imports went on
    /// at a word that begins no name without passing over it. Fix: such a word is passed over.
    #[test]
    fn an_import_inside_a_macro_ends() {
        let files = [
            ("", "macro_rules! m { ($($r:ident,)*) => { pub use crate::a::{$($r,)* Thing}; } }"),
            ("a", "pub struct Thing;"),
        ];
        assert_eq!(needs(&files), Vec::<String>::new());
    }

    #[test]
    fn imports_are_followed_to_the_file_that_defines_the_thing() {
        let files = [
            ("", "mod a; mod b; #[cfg(test)] mod tests; pub use b::{Thing as T, inner};"),
            ("a", "use crate::{T, b::inner::{self, deep}}; fn f() { super::c::g() } // use crate::no\n"),
            ("b", "pub(crate) mod inner; pub(crate) use inner::*; pub struct Thing;"),
            ("b::inner", "pub fn deep() {} const S: &str = \"use crate::a;\";"),
            ("c", "use crate::b::deep; #[cfg(test)] mod t { use crate::a::f; } pub fn g() {}"),
            ("tests", "use crate::a;"),
        ];
        assert_eq!(needs(&files), ["a b", "a b::inner", "a c", "c b::inner"]);
    }
}
