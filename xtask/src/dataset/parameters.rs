//! Parameters of a data set, from `KEY=VALUE` words: `VMS=4 DAYS=3 SIZE=1G ROLES=base,web,db SEED=1`.
//!
//! All other properties of a VM (role, clone or built alone, seeds) follow from these.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::path::PathBuf;

/// Roles a VM can have; each is a set of Debian packages.
pub const ROLES: [&str; 6] = ["base", "web", "db", "py", "mail", "build"];

/// Parameters of one data set. Defaults are the smoke size.
#[derive(Clone, Debug, Serialize)]
pub struct Parameters {
    /// Target directory.
    #[serde(skip)]
    pub directory: PathBuf,
    /// Number of VMs.
    pub vms: u32,
    /// Number of images of each VM, day 0 included.
    pub days: u32,
    /// Size of each disk.
    pub size_bytes: u64,
    /// Roles, assigned to the VMs in turn.
    pub roles: Vec<String>,
    /// Seed of all content outside of packages.
    pub seed: u64,
    /// Share of the VMs that are copies of their role's template; their duplicates are aligned.
    pub clone_ratio: f64,
    /// Private files of each VM on day 0.
    pub private_bytes: u64,
    /// Private files replaced each day.
    pub churn_bytes: u64,
    /// Size of each VM's database file.
    pub database_bytes: u64,
    /// Number of 8 KiB pages rewritten in it each day.
    pub database_pages_day: u64,
    /// The second VM's disk and private files are this many times larger.
    pub skew: u64,
    /// Partition table around the file system.
    pub partition: Partition,
    /// Write each image as qcow2 too.
    pub qcow2: bool,
}

/// Partition table of a disk; the file system then starts at 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Partition {
    /// No table: the file system fills the disk.
    None,
    /// DOS label.
    Mbr,
    /// GUID label.
    Gpt,
}

/// One VM of the set.
#[derive(Clone, Debug)]
pub struct VmPlan {
    /// Number from 0.
    pub index: u32,
    /// Directory and VM name.
    pub name: String,
    /// Role: its set of packages.
    pub role: String,
    /// Whether day 0 is a copy of the role's template.
    pub clone: bool,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Private files on day 0.
    pub private_bytes: u64,
}

impl Parameters {
    /// Reads `KEY=VALUE` words over the defaults.
    ///
    /// # Errors
    /// An unknown key, a value that is no number, or a set that cannot be built.
    pub fn parse(words: &[String]) -> Result<Parameters> {
        let mut given = Parameters {
            directory: PathBuf::from(".cache/dataset"),
            vms: 4,
            days: 3,
            size_bytes: 1 << 30,
            roles: ["base", "web", "db"].map(str::to_owned).to_vec(),
            seed: 1,
            clone_ratio: 0.5,
            private_bytes: 0,
            churn_bytes: 0,
            database_bytes: 0,
            database_pages_day: 0,
            skew: 1,
            partition: Partition::None,
            qcow2: false,
        };
        let (mut private, mut churn, mut database, mut pages) = (None, None, None, None);
        for word in words {
            let (key, value) = word.split_once('=').with_context(|| format!("`{word}` is not KEY=VALUE"))?;
            let wrong = || format!("`{value}` is no value for {key}");
            match key {
                "DIR" => given.directory = PathBuf::from(value),
                "VMS" => given.vms = value.parse().with_context(wrong)?,
                "DAYS" => given.days = value.parse().with_context(wrong)?,
                "SIZE" => given.size_bytes = size(value).with_context(wrong)?,
                "ROLES" => given.roles = value.split(',').map(str::to_owned).collect(),
                "SEED" => given.seed = value.parse().with_context(wrong)?,
                "CLONE_RATIO" => given.clone_ratio = value.parse().with_context(wrong)?,
                "PRIVATE_MB" => private = Some(value.parse::<u64>().with_context(wrong)? << 20),
                "CHURN_MB" => churn = Some(value.parse::<u64>().with_context(wrong)? << 20),
                "DB_MB" => database = Some(value.parse::<u64>().with_context(wrong)? << 20),
                "DB_PAGES_DAY" => pages = Some(value.parse().with_context(wrong)?),
                "SKEW" => given.skew = value.parse().with_context(wrong)?,
                "PART" => {
                    given.partition = match value {
                        "none" => Partition::None,
                        "mbr" => Partition::Mbr,
                        "gpt" => Partition::Gpt,
                        _ => bail!(wrong()),
                    }
                }
                "FMT" => {
                    given.qcow2 = match value {
                        "raw" => false,
                        "qcow2" => true,
                        _ => bail!(wrong()),
                    }
                }
                _ => bail!("there is no parameter {key}"),
            }
        }
        given.private_bytes = private.unwrap_or(given.size_bytes / 25);
        given.churn_bytes = churn.unwrap_or(given.private_bytes / 4);
        given.database_bytes = database.unwrap_or(given.size_bytes / 32) / 8192 * 8192;
        given.database_pages_day = pages.unwrap_or(given.database_bytes / 8192 / 10);
        given.validate()?;
        Ok(given)
    }

    fn validate(&self) -> Result<()> {
        if self.vms == 0 || self.days == 0 || self.skew == 0 {
            bail!("VMS, DAYS and SKEW are at least 1");
        }
        if self.size_bytes < 768 << 20 || !self.size_bytes.is_multiple_of(1 << 20) {
            bail!("SIZE is at least 768M and a whole number of MiB: a Debian system has to fit");
        }
        if let Some(role) = self.roles.iter().find(|role| !ROLES.contains(&role.as_str())) {
            bail!("there is no role `{role}`; roles are {}", ROLES.join(", "));
        }
        if !(0.0..=1.0).contains(&self.clone_ratio) {
            bail!("CLONE_RATIO lies between 0 and 1");
        }
        Ok(())
    }

    /// Roles of at least one VM, each once.
    pub fn used_roles(&self) -> Vec<&str> {
        let mut used: Vec<&str> = Vec::new();
        for role in self.roles.iter().take(self.vms as usize) {
            if !used.contains(&role.as_str()) {
                used.push(role);
            }
        }
        used
    }

    /// Plan of VM `index`.
    pub fn vm(&self, index: u32) -> VmPlan {
        let clones_up_to = |count: u32| (f64::from(count) * self.clone_ratio) as u32;
        let factor = if index == 1 { self.skew } else { 1 };
        VmPlan {
            index,
            name: format!("vm{index}"),
            role: self.roles[index as usize % self.roles.len()].clone(),
            clone: clones_up_to(index + 1) > clones_up_to(index),
            size_bytes: self.size_bytes * factor,
            private_bytes: self.private_bytes * factor,
        }
    }
}

/// `4G`, `512M` or a number of bytes.
fn size(text: &str) -> Result<u64> {
    let (digits, shift) = match text.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 30),
        None => text.strip_suffix(['M', 'm']).map_or((text, 0), |digits| (digits, 20)),
    };
    digits.parse::<u64>()?.checked_mul(1 << shift).context("too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Parameters> {
        Parameters::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn half_of_the_vms_are_clones_and_roles_take_turns() {
        let set = parse("VMS=4 SIZE=2G ROLES=base,web,db SKEW=3").expect("valid");
        let plans: Vec<_> = (0..4).map(|index| set.vm(index)).collect();
        assert_eq!(plans.iter().map(|p| p.role.as_str()).collect::<Vec<_>>(), ["base", "web", "db", "base"]);
        assert_eq!(plans.iter().map(|p| p.clone).collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(plans[1].size_bytes, 6 << 30);
        assert_eq!(set.used_roles(), ["base", "web", "db"]);
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        for line in ["VMS", "COLOUR=red", "SIZE=big", "ROLES=king", "VMS=0", "CLONE_RATIO=2", "SIZE=10M"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
