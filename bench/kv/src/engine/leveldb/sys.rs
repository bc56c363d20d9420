//! Bindings to the used part of `leveldb/c.h`, and a safe handle over them.
#![expect(unsafe_code, reason = "LevelDB is reached through its C API")]

use anyhow::{Context, Result, bail};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_uchar, c_void},
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr,
};

#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_open(options: *const c_void, name: *const c_char, error: *mut *mut c_char) -> *mut c_void;
    fn leveldb_close(db: *mut c_void);
    fn leveldb_put(
        db: *mut c_void,
        options: *const c_void,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_write(db: *mut c_void, options: *const c_void, batch: *mut c_void, error: *mut *mut c_char);
    fn leveldb_get(
        db: *mut c_void,
        options: *const c_void,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_compact_range(
        db: *mut c_void,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );
    fn leveldb_property_value(db: *mut c_void, name: *const c_char) -> *mut c_char;
    fn leveldb_create_iterator(db: *mut c_void, options: *const c_void) -> *mut c_void;
    fn leveldb_iter_destroy(iterator: *mut c_void);
    fn leveldb_iter_valid(iterator: *const c_void) -> c_uchar;
    fn leveldb_iter_seek(iterator: *mut c_void, key: *const c_char, key_len: usize);
    fn leveldb_iter_next(iterator: *mut c_void);
    fn leveldb_iter_key(iterator: *const c_void, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iterator: *const c_void, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iterator: *const c_void, error: *mut *mut c_char);
    fn leveldb_writebatch_create() -> *mut c_void;
    fn leveldb_writebatch_destroy(batch: *mut c_void);
    fn leveldb_writebatch_put(
        batch: *mut c_void,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn leveldb_writebatch_delete(batch: *mut c_void, key: *const c_char, key_len: usize);
    fn leveldb_options_create() -> *mut c_void;
    fn leveldb_options_destroy(options: *mut c_void);
    fn leveldb_options_set_create_if_missing(options: *mut c_void, on: c_uchar);
    fn leveldb_options_set_filter_policy(options: *mut c_void, policy: *mut c_void);
    fn leveldb_options_set_cache(options: *mut c_void, cache: *mut c_void);
    fn leveldb_options_set_write_buffer_size(options: *mut c_void, bytes: usize);
    fn leveldb_options_set_max_file_size(options: *mut c_void, bytes: usize);
    fn leveldb_options_set_max_open_files(options: *mut c_void, files: c_int);
    fn leveldb_options_set_compression(options: *mut c_void, kind: c_int);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> *mut c_void;
    fn leveldb_filterpolicy_destroy(policy: *mut c_void);
    fn leveldb_cache_create_lru(bytes: usize) -> *mut c_void;
    fn leveldb_cache_destroy(cache: *mut c_void);
    fn leveldb_readoptions_create() -> *mut c_void;
    fn leveldb_readoptions_destroy(options: *mut c_void);
    fn leveldb_writeoptions_create() -> *mut c_void;
    fn leveldb_writeoptions_destroy(options: *mut c_void);
    fn leveldb_writeoptions_set_sync(options: *mut c_void, on: c_uchar);
    fn leveldb_free(memory: *mut c_void);
    fn leveldb_major_version() -> c_int;
    fn leveldb_minor_version() -> c_int;
}

/// Chosen options; all others are LevelDB's defaults.
#[derive(Debug)]
pub(super) struct Settings {
    /// 0: no filter.
    pub(super) bloom_bits: i32,
    pub(super) cache_bytes: u64,
    pub(super) write_buffer_bytes: u64,
    /// 0: the default, 2 MiB.
    pub(super) max_file_bytes: u64,
    pub(super) max_open_files: i32,
}

/// An open database and the objects its options point to.
pub(super) struct Db {
    db: *mut c_void,
    options: *mut c_void,
    policy: *mut c_void,
    cache: *mut c_void,
    read: *mut c_void,
    write: *mut c_void,
    write_synced: *mut c_void,
}

// SAFETY: leveldb/db.h: "Multiple threads can invoke const methods ... without external synchronization", and
// so for all methods of DB; the option objects are not changed after `open`.
unsafe impl Send for Db {}
// SAFETY: as for `Send`.
unsafe impl Sync for Db {}

/// Version of the linked library.
pub(super) fn version() -> String {
    // SAFETY: no arguments, no state.
    let major = unsafe { leveldb_major_version() };
    // SAFETY: no arguments, no state.
    let minor = unsafe { leveldb_minor_version() };
    format!("{major}.{minor}")
}

/// Takes over an error text of the library; `what` names the failed call.
fn check(error: *mut c_char, what: &str) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is a terminated string that the library allocated.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: it was allocated by the library and is not used again.
    unsafe { leveldb_free(error.cast()) };
    bail!("LevelDB, {what}: {text}")
}

impl Db {
    pub(super) fn open(directory: &Path, settings: &Settings) -> Result<Db> {
        let name = CString::new(directory.as_os_str().as_bytes()).context("a path with a zero byte")?;
        // SAFETY: constructors without preconditions; the results are owned by the handle made below.
        let (options, read, write, write_synced, cache) = unsafe {
            (
                leveldb_options_create(),
                leveldb_readoptions_create(),
                leveldb_writeoptions_create(),
                leveldb_writeoptions_create(),
                leveldb_cache_create_lru(settings.cache_bytes as usize),
            )
        };
        let policy = if settings.bloom_bits > 0 {
            // SAFETY: as above.
            unsafe { leveldb_filterpolicy_create_bloom(settings.bloom_bits) }
        } else {
            ptr::null_mut()
        };
        let mut handle = Db { db: ptr::null_mut(), options, policy, cache, read, write, write_synced };
        // SAFETY: all pointers were made above; policy and cache live as long as the handle.
        unsafe {
            leveldb_options_set_create_if_missing(options, 1);
            leveldb_options_set_compression(options, 0);
            leveldb_options_set_cache(options, cache);
            leveldb_options_set_write_buffer_size(options, settings.write_buffer_bytes as usize);
            leveldb_options_set_max_open_files(options, settings.max_open_files);
            leveldb_writeoptions_set_sync(write_synced, 1);
        }
        if !policy.is_null() {
            // SAFETY: as above.
            unsafe { leveldb_options_set_filter_policy(options, policy) };
        }
        if settings.max_file_bytes > 0 {
            // SAFETY: as above.
            unsafe { leveldb_options_set_max_file_size(options, settings.max_file_bytes as usize) };
        }
        let mut error = ptr::null_mut();
        // SAFETY: `options` and `name` are valid; `error` starts as null.
        handle.db = unsafe { leveldb_open(options, name.as_ptr(), &raw mut error) };
        check(error, "opening")?;
        Ok(handle)
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8], sync: bool) -> Result<()> {
        let options = if sync { self.write_synced } else { self.write };
        let mut error = ptr::null_mut();
        // SAFETY: the handle is open; key and value are valid for their lengths and copied by the library.
        unsafe {
            leveldb_put(
                self.db,
                options,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &raw mut error,
            );
        }
        check(error, "writing")
    }

    pub(super) fn write<'a>(
        &self,
        entries: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        sync: bool,
    ) -> Result<()> {
        let batch = WriteBatch::new();
        for (key, value) in entries {
            // SAFETY: the batch is alive; it copies key and value.
            unsafe {
                leveldb_writebatch_put(
                    batch.0,
                    key.as_ptr().cast(),
                    key.len(),
                    value.as_ptr().cast(),
                    value.len(),
                );
            }
        }
        self.commit(&batch, sync)
    }

    pub(super) fn delete<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, sync: bool) -> Result<()> {
        let batch = WriteBatch::new();
        for key in keys {
            // SAFETY: the batch is alive; it copies the key.
            unsafe { leveldb_writebatch_delete(batch.0, key.as_ptr().cast(), key.len()) };
        }
        self.commit(&batch, sync)
    }

    fn commit(&self, batch: &WriteBatch, sync: bool) -> Result<()> {
        let options = if sync { self.write_synced } else { self.write };
        let mut error = ptr::null_mut();
        // SAFETY: handle, options and batch are alive.
        unsafe { leveldb_write(self.db, options, batch.0, &raw mut error) };
        check(error, "writing a batch")
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        let (mut len, mut error) = (0, ptr::null_mut());
        // SAFETY: the handle is open, the key valid for its length, `len` and `error` are places of ours.
        let value = unsafe {
            leveldb_get(self.db, self.read, key.as_ptr().cast(), key.len(), &raw mut len, &raw mut error)
        };
        check(error, "reading")?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: allocated by the library, not used again.
        unsafe { leveldb_free(value.cast()) };
        Ok(Some(len))
    }

    /// Calls `each` with up to `limit` entries, starting at `from`; returns their number.
    pub(super) fn scan(
        &self,
        from: &[u8],
        limit: usize,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        // SAFETY: the handle is open; the iterator is destroyed by its guard, before the handle.
        let cursor = Cursor(unsafe { leveldb_create_iterator(self.db, self.read) });
        // SAFETY: the iterator is alive, the key valid for its length.
        unsafe { leveldb_iter_seek(cursor.0, from.as_ptr().cast(), from.len()) };
        let mut count = 0;
        // SAFETY: the iterator is alive.
        while count < limit && unsafe { leveldb_iter_valid(cursor.0) } != 0 {
            let (mut key_len, mut value_len) = (0, 0);
            // SAFETY: the iterator is valid, so it has a key.
            let key = unsafe { leveldb_iter_key(cursor.0, &raw mut key_len) };
            // SAFETY: and a value.
            let value = unsafe { leveldb_iter_value(cursor.0, &raw mut value_len) };
            // SAFETY: both point to that many bytes until the iterator moves.
            let (key, value) = unsafe {
                (
                    std::slice::from_raw_parts(key.cast::<u8>(), key_len),
                    std::slice::from_raw_parts(value.cast::<u8>(), value_len),
                )
            };
            each(key, value);
            count += 1;
            // SAFETY: the iterator is valid.
            unsafe { leveldb_iter_next(cursor.0) };
        }
        let mut error = ptr::null_mut();
        // SAFETY: the iterator is alive.
        unsafe { leveldb_iter_get_error(cursor.0, &raw mut error) };
        check(error, "iterating")?;
        Ok(count)
    }

    /// Merges the range; `None`: to the last key.
    pub(super) fn compact(&self, start: &[u8], end: Option<&[u8]>) {
        let (end, end_len) = end.map_or((ptr::null(), 0), |end| (end.as_ptr(), end.len()));
        // SAFETY: the handle is open; a null end means "no end".
        unsafe { leveldb_compact_range(self.db, start.as_ptr().cast(), start.len(), end.cast(), end_len) };
    }

    pub(super) fn property(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open, the name terminated.
        let value = unsafe { leveldb_property_value(self.db, name.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: a terminated string allocated by the library.
        let text = unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned();
        // SAFETY: not used again.
        unsafe { leveldb_free(value.cast()) };
        Some(text)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        if !self.db.is_null() {
            // SAFETY: open, and closed once; its threads end here, before the objects they use are destroyed.
            unsafe { leveldb_close(self.db) };
        }
        if !self.policy.is_null() {
            // SAFETY: made in `open`, not used any more.
            unsafe { leveldb_filterpolicy_destroy(self.policy) };
        }
        // SAFETY: all made in `open`, not used any more.
        unsafe {
            leveldb_options_destroy(self.options);
            leveldb_cache_destroy(self.cache);
            leveldb_readoptions_destroy(self.read);
            leveldb_writeoptions_destroy(self.write);
            leveldb_writeoptions_destroy(self.write_synced);
        }
    }
}

struct WriteBatch(*mut c_void);

impl WriteBatch {
    fn new() -> WriteBatch {
        // SAFETY: no preconditions.
        WriteBatch(unsafe { leveldb_writebatch_create() })
    }
}

impl Drop for WriteBatch {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        unsafe { leveldb_writebatch_destroy(self.0) };
    }
}

struct Cursor(*mut c_void);

impl Drop for Cursor {
    fn drop(&mut self) {
        // SAFETY: made by `leveldb_create_iterator`, destroyed once.
        unsafe { leveldb_iter_destroy(self.0) };
    }
}
