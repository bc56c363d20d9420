//! The master's tables in a relational database: SQLite, or MySQL and MariaDB.
//!
//! `meta_store` is the interface that the master uses. `store` has every statement once, and `rows` converts the
//! rows. `sql` is the interface to a database, with the words in which the dialects differ. `sqlite` and `mysql`
//! open their database and run statements. `metadata_backup` copies and restores tables in SQLite.

pub(crate) mod cluster_map;
#[cfg(test)]
pub(crate) mod conformance;
pub(crate) mod meta_store;
pub(crate) mod metadata_backup;
mod mysql;
mod rows;
pub(crate) mod server_state;
mod sql;
mod sqlite;
mod store;

pub use mysql::MysqlStore;
pub(crate) use sqlite::SCHEMA_VERSION;
pub use sqlite::SqliteStore;
