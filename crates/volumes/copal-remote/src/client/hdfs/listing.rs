//! Lists of objects: a walk through the directories below a prefix, in the order of the keys.
//!
//! The name node gives a directory in pages. The library begins each list at the first entry, so a page of ours costs one
//! request for each page of the name node (1,000 entries) before it.

use super::{
    HdfsState,
    paths::{name_of, prefix_in},
    tag_of,
};
use crate::service::{ListedObject, ListedPage, ServiceError};
use hdfs_native::client::{FileStatus, ListStatusIterator};

/// Most objects of one page.
const MOST_LISTED: usize = 1000;

/// A directory that is being listed.
struct OpenDirectory {
    entries: ListStatusIterator,
    /// The keys in it begin with this.
    prefix: String,
}

impl HdfsState {
    /// See [`crate::service::ObjectService::list`].
    pub(super) async fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListedPage, ServiceError> {
        let limit = limit.clamp(1, MOST_LISTED);
        let (path, of_path) = self.root.of_prefix(prefix);
        let mut open =
            vec![OpenDirectory { entries: self.hdfs.list_status_iter(&path, false), prefix: of_path }];
        let mut page = ListedPage { objects: Vec::new(), is_last: true };
        while let Some(directory) = open.last() {
            let Some(entry) = self.next(&directory.entries).await? else {
                open.pop();
                continue;
            };
            let name = name_of(&entry.path);
            let below = match entry.isdir {
                true => prefix_in(&directory.prefix, name),
                false => Some(format!("{}{name}", directory.prefix)),
            };
            let Some(below) = below else { continue };
            let is_beyond = below.as_str() > prefix && !below.starts_with(prefix);
            if is_beyond {
                // So are all that follow here.
                open.pop();
            } else if entry.isdir {
                let has_wanted = below.starts_with(prefix) || prefix.starts_with(&below);
                if has_wanted && after.is_none_or(|after| below.as_str() > after || after.starts_with(&below))
                {
                    let entries = self.hdfs.list_status_iter(&entry.path, false);
                    open.push(OpenDirectory { entries, prefix: below });
                }
            } else if below.starts_with(prefix) && after.is_none_or(|after| below.as_str() > after) {
                page.objects.push(ListedObject {
                    bytes: entry.length as u64,
                    tag: tag_of(&entry),
                    key: below,
                });
                if page.objects.len() == limit {
                    page.is_last = false;
                    break;
                }
            }
        }
        Ok(page)
    }

    /// See [`crate::service::ObjectService::groups`].
    pub(super) async fn groups(&self, prefix: &str) -> Result<Vec<String>, ServiceError> {
        let (path, of_path) = self.root.of_prefix(prefix);
        let directories = self.entries(&path).await?.into_iter().filter(|entry| entry.isdir);
        let prefixes = directories.filter_map(|entry| prefix_in(&of_path, name_of(&entry.path)));
        Ok(prefixes.filter(|prefix| prefix.ends_with('/')).collect())
    }

    /// All entries of a directory; none if it is missing.
    pub(super) async fn entries(&self, path: &str) -> Result<Vec<FileStatus>, ServiceError> {
        let listed = self.hdfs.list_status_iter(path, false);
        let mut entries = Vec::new();
        while let Some(entry) = self.next(&listed).await? {
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The next entry; the directory may be removed meanwhile.
    async fn next(&self, entries: &ListStatusIterator) -> Result<Option<FileStatus>, ServiceError> {
        match self.step(async { entries.next().await.transpose() }).await {
            Err(ServiceError::NotFound) => Ok(None),
            entry => entry,
        }
    }
}
