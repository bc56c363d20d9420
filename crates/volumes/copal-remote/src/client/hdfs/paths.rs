//! Paths of objects below the directory of a repository.
//!
//! A key may be both an object and the beginning of other keys, and a file cannot be a directory. So names of directories
//! end with a suffix, which no component of a key has: keys are of letters, digits and slashes.
//!
//! | in a directory | meaning |
//! |---|---|
//! | `NAME` | object whose key ends with this component |
//! | `NAME.d` | keys that go on with a slash |
//! | `NAME.x` | keys that go on in this component: NAME has [`COMPONENT_BYTES`] |
//!
//! Invariant: the order of names in a directory, dot before digits and letters, is the order of the keys.

/// Longest part of a component of a key. HDFS takes names of 255 bytes, unless its administrator says otherwise.
const COMPONENT_BYTES: usize = 240;
const DIRECTORY: &str = ".d";
const CONTINUED: &str = ".x";
/// Files that are being written.
const UNFINISHED: &str = "t";

/// Directory of a repository.
#[derive(Clone, Debug)]
pub(super) struct RepositoryRoot(String);

impl RepositoryRoot {
    pub(super) fn new(prefix: &str) -> RepositoryRoot {
        RepositoryRoot(format!("/{prefix}"))
    }

    /// Directory of files that are being written.
    pub(super) fn unfinished(&self) -> String {
        format!("{}/{UNFINISHED}", self.0)
    }

    /// Path of an object.
    pub(super) fn of_key(&self, key: &str) -> String {
        let (directories, name) = key.rsplit_once('/').map_or(("", key), |(before, name)| (before, name));
        let mut path = self.of_components(directories);
        push_component(&mut path, name, "");
        path
    }

    /// The deepest directory that has all keys with this prefix, and the prefix that its keys have.
    pub(super) fn of_prefix(&self, prefix: &str) -> (String, String) {
        let (directories, mut rest) =
            prefix.rsplit_once('/').map_or(("", prefix), |(before, rest)| (before, rest));
        let mut path = self.of_components(directories);
        while let Some((part, after)) =
            rest.split_at_checked(COMPONENT_BYTES).filter(|(_, after)| !after.is_empty())
        {
            path = format!("{path}/{part}{CONTINUED}");
            rest = after;
        }
        (path, prefix[..prefix.len() - rest.len()].to_owned())
    }

    fn of_components(&self, components: &str) -> String {
        let mut path = self.0.clone();
        for component in components.split('/').filter(|component| !component.is_empty()) {
            push_component(&mut path, component, DIRECTORY);
        }
        path
    }

    /// Directories above a path, the deepest first, without that of the repository.
    pub(super) fn parents<'a>(&self, path: &'a str) -> impl Iterator<Item = &'a str> {
        let root_bytes = self.0.len();
        std::iter::successors(parent_of(path), |path| parent_of(path))
            .take_while(move |path| path.len() > root_bytes)
    }
}

fn push_component(path: &mut String, component: &str, suffix: &str) {
    let mut rest = component;
    while let Some((part, after)) =
        rest.split_at_checked(COMPONENT_BYTES).filter(|(_, after)| !after.is_empty())
    {
        *path = format!("{path}/{part}{CONTINUED}");
        rest = after;
    }
    *path = format!("{path}/{rest}{suffix}");
}

/// Directory of a path.
pub(super) fn parent_of(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent).filter(|parent| !parent.is_empty())
}

/// Last component of a path.
pub(super) fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The prefix of the keys in a directory of this name, in a directory whose keys begin with `prefix`; `None`: the
/// directory is not of the store.
pub(super) fn prefix_in(prefix: &str, name: &str) -> Option<String> {
    if let Some(name) = name.strip_suffix(DIRECTORY) {
        return Some(format!("{prefix}{name}/"));
    }
    name.strip_suffix(CONTINUED).map(|name| format!("{prefix}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> RepositoryRoot {
        RepositoryRoot::new("vms/office")
    }

    #[test]
    fn an_object_and_keys_below_it_have_different_paths() {
        assert_eq!(root().of_key("n/61"), "/vms/office/n.d/61");
        assert_eq!(root().of_key("n/61/62"), "/vms/office/n.d/61.d/62");
        let long = "a".repeat(500);
        let path = root().of_key(&format!("f/{long}"));
        let parts: Vec<usize> = path.split('/').map(str::len).collect();
        assert_eq!(parts, [0, 3, 6, 3, 242, 242, 20]);
        let full = "b".repeat(COMPONENT_BYTES);
        assert_eq!(root().of_key(&full), format!("/vms/office/{full}"));
        assert_eq!(parent_of("/vms"), None);
        let above: Vec<&str> = root().parents("/vms/office/n.d/61.d/62").map(name_of).collect();
        assert_eq!(above, ["61.d", "n.d"]);
    }

    #[test]
    fn a_prefix_leads_to_its_directory() {
        let found = |prefix: &str| root().of_prefix(prefix);
        assert_eq!(found(""), ("/vms/office".to_owned(), String::new()));
        assert_eq!(found("n/"), ("/vms/office/n.d".to_owned(), "n/".to_owned()));
        assert_eq!(found("f/07/61"), ("/vms/office/f.d/07.d".to_owned(), "f/07/".to_owned()));
        let long = "c".repeat(COMPONENT_BYTES);
        assert_eq!(found(&long), ("/vms/office".to_owned(), String::new()));
        assert_eq!(found(&format!("{long}d")), (format!("/vms/office/{long}.x"), long.clone()));
        assert_eq!(prefix_in("f/", "07.d"), Some("f/07/".to_owned()));
        assert_eq!(prefix_in("f/07/", &format!("{long}.x")), Some(format!("f/07/{long}")));
        assert_eq!(prefix_in("", "t"), None);
    }

    #[test]
    fn names_are_ordered_as_the_keys_are() {
        let full = "6".repeat(COMPONENT_BYTES);
        let mut keys =
            vec!["61".to_owned(), "61/62".to_owned(), "6162".to_owned(), "6162/1".to_owned(), full.clone()];
        keys.extend([format!("{full}/1"), format!("{full}1"), format!("{full}1/2"), "7".to_owned()]);
        keys.sort();
        let paths: Vec<String> = keys.iter().map(|key| root().of_key(key)).collect();
        let by_components = |path: &String| path.split('/').map(str::to_owned).collect::<Vec<_>>();
        assert!(paths.iter().map(by_components).is_sorted(), "{paths:?}");
    }
}
