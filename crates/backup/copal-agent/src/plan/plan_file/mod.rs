//! Plan file: the VMs that a host backs up, and the sources of their disks.
//!
//! JSON:
//! `{"v":1,"vms":[{"vm":"vm1","disks":{"sda":"set/vm1/day0.raw"}},{"vm":"db1","qmp":"db1.qmp","nodes":{"sda":"vm0"}}]}`.
//! `disks` are files that are read as they are; `qmp` and `nodes` name a running QEMU's socket and its block
//! nodes, and `nbd` the socket of its NBD server if it runs one. With `"freeze":"agent"` the guest agent
//! freezes the guest's file systems at the point in time. `agent_socket` names the socket of the guest agent
//! if QEMU does not. `"format":"raw"`, `"allow_smaller":true` and `"full_every":"30d"` are the options of `copal
//! backup` of these names.
//! Relative paths are relative to the working directory.
//!
//! Invariants
//! - An unknown field is refused, since an ignored field would be an option without effect.
//! - Every error is one sentence with the file, the fault, and the remedy.

mod error;

pub use error::{MAX_DISKS, MAX_PLAN_BYTES, MAX_VMS, PlanError, VmInTwoPlans};

use copal_backup::retention::parse_within;
use copal_backup::scheme_of;
use copal_live::FreezeMethod;
use error::MAX_NAME_BYTES;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

const VERSION: u64 = 1;

/// The plan of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupPlan {
    /// The file of the plan.
    pub path: PathBuf,
    /// VMs with distinct names. Without any, the agent only answers.
    pub vms: Vec<PlannedVm>,
}

/// A VM of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedVm {
    /// UUID or name, as in other commands.
    pub vm: String,
    /// Its disks.
    pub source: PlannedSource,
    /// Options of its backup.
    pub options: PlannedOptions,
}

/// Options of a VM's backup; see `copal_backup::BackupRequest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedOptions {
    /// Content that looks like another format is the raw disk of a guest.
    pub is_raw: bool,
    /// A disk may be smaller than before.
    pub allow_smaller: bool,
    /// Longest time between full reads of a disk.
    pub full_every: Option<Duration>,
}

/// Source of a VM's disks; names of disks are distinct and in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedSource {
    /// Name and file of each disk.
    Files(Vec<(String, PathBuf)>),
    /// A running QEMU.
    Qmp {
        /// Its control socket.
        socket: PathBuf,
        /// Name and block node of each disk.
        nodes: Vec<(String, String)>,
        /// Socket of its NBD server, if one already runs.
        nbd: Option<PathBuf>,
        /// Method of freezing its guest, if any.
        freeze: Option<FreezeMethod>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanJson {
    v: u64,
    vms: Vec<VmJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VmJson {
    vm: String,
    disks: Option<NamedEntries<PathBuf>>,
    qmp: Option<PathBuf>,
    nodes: Option<NamedEntries<String>>,
    nbd: Option<PathBuf>,
    freeze: Option<FreezeWord>,
    agent_socket: Option<PathBuf>,
    format: Option<FormatWord>,
    #[serde(default)]
    allow_smaller: bool,
    full_every: Option<PlanPeriod>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum FormatWord {
    Auto,
    Raw,
}

/// A time such as `30d`.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct PlanPeriod(Duration);

impl TryFrom<String> for PlanPeriod {
    type Error = String;

    fn try_from(text: String) -> Result<PlanPeriod, String> {
        parse_within(&text).map(|period| PlanPeriod(period.unsigned_abs()))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum FreezeWord {
    Agent,
}

/// A JSON object in its own order, with distinct names.
struct NamedEntries<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for NamedEntries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for EntryVisitor<T> {
            type Value = NamedEntries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a member for each disk")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<NamedEntries<T>, M::Error> {
                let mut named = Vec::new();
                let mut seen = HashSet::new();
                while let Some((name, value)) = map.next_entry::<String, T>()? {
                    if !seen.insert(name.clone()) {
                        let shown: String = name.chars().take(64).collect();
                        return Err(M::Error::custom(format_args!("the disk {shown:?} is listed twice")));
                    }
                    named.push((name, value));
                }
                Ok(NamedEntries(named))
            }
        }
        deserializer.deserialize_map(EntryVisitor(std::marker::PhantomData))
    }
}

impl BackupPlan {
    /// Reads a plan file.
    /// # Errors
    /// See [`PlanError`].
    pub fn read(path: &Path) -> Result<BackupPlan, PlanError> {
        let failed = |source| PlanError::Read { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(failed)?;
        file.take(MAX_PLAN_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        BackupPlan::parse(path, &bytes)
    }

    /// Parses the bytes of a plan file; errors name it by `path`.
    /// # Errors
    /// All of [`PlanError`] but `Read`.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<BackupPlan, PlanError> {
        let path = path.to_owned();
        if bytes.len() as u64 > MAX_PLAN_BYTES {
            return Err(PlanError::TooLong { path });
        }
        let json: PlanJson = match serde_json::from_slice(bytes) {
            Ok(json) => json,
            Err(source) => return Err(PlanError::Json { path, source }),
        };
        if json.v != VERSION {
            return Err(PlanError::Version { path, found: json.v });
        }
        if json.vms.len() > MAX_VMS {
            let found = json.vms.len();
            return Err(PlanError::Vms { path, found });
        }
        let mut seen = HashSet::new();
        let mut vms = Vec::with_capacity(json.vms.len());
        for vm in json.vms {
            let vm = planned(&path, vm)?;
            if !seen.insert(vm.vm.clone()) {
                return Err(PlanError::VmTwice { path, vm: vm.vm });
            }
            vms.push(vm);
        }
        Ok(BackupPlan { path, vms })
    }
}

fn planned(path: &Path, json: VmJson) -> Result<PlannedVm, PlanError> {
    let vm = json.vm;
    let options = PlannedOptions {
        is_raw: matches!(json.format, Some(FormatWord::Raw)),
        allow_smaller: json.allow_smaller,
        full_every: json.full_every.map(|PlanPeriod(period)| period),
    };
    check_name(path, &vm)?;
    let of_qemu = json.nbd.is_some() || json.freeze.is_some() || json.agent_socket.is_some();
    let source = match (json.disks, json.qmp, json.nodes) {
        (Some(NamedEntries(disks)), None, None) if !of_qemu => PlannedSource::Files(disks),
        (None, Some(socket), Some(NamedEntries(nodes))) => {
            let freeze = match (json.freeze, json.agent_socket) {
                (Some(FreezeWord::Agent), named) => Some(FreezeMethod::Agent(named)),
                (None, None) => None,
                (None, Some(_)) => {
                    let path = path.to_owned();
                    return Err(PlanError::AgentSocket { path, vm });
                }
            };
            let nbd = json.nbd;
            PlannedSource::Qmp { socket, nodes, nbd, freeze }
        }
        _ => {
            let path = path.to_owned();
            return Err(PlanError::Source { path, vm });
        }
    };
    let (disks, paths): (Vec<&String>, Vec<&PathBuf>) = match &source {
        PlannedSource::Files(disks) => {
            (disks.iter().map(|(disk, _)| disk).collect(), disks.iter().map(|(_, file)| file).collect())
        }
        PlannedSource::Qmp { socket, nodes, nbd, freeze } => {
            nodes.iter().try_for_each(|(_, node)| check_name(path, node))?;
            let disks = nodes.iter().map(|(disk, _)| disk).collect();
            let agent = freeze.as_ref().and_then(|FreezeMethod::Agent(named)| named.as_ref());
            let paths = [Some(socket), nbd.as_ref(), agent].into_iter().flatten();
            (disks, paths.collect())
        }
    };
    if disks.is_empty() || disks.len() > MAX_DISKS {
        let (path, found) = (path.to_owned(), disks.len());
        return Err(PlanError::Disks { path, vm, found });
    }
    disks.into_iter().try_for_each(|disk| check_name(path, disk))?;
    if paths.iter().any(|file| file.as_os_str().is_empty()) {
        let path = path.to_owned();
        return Err(PlanError::EmptyPath { path, vm });
    }
    let address = paths.iter().find_map(|file| file.to_str().filter(|word| scheme_of(word).is_some()));
    if let Some(word) = address {
        let (path, word) = (path.to_owned(), word.to_owned());
        return Err(PlanError::Scheme { path, vm, word });
    }
    Ok(PlannedVm { vm, source, options })
}

fn check_name(path: &Path, name: &str) -> Result<(), PlanError> {
    match !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(PlanError::Name { path: path.to_owned(), name: name.chars().take(64).collect() }),
    }
}

/// The first VM that is in two plans.
pub fn vm_in_two_plans(plans: &[BackupPlan]) -> Option<VmInTwoPlans<'_>> {
    let mut seen: HashMap<&str, &Path> = HashMap::new();
    for plan in plans {
        for vm in &plan.vms {
            if let Some(first) = seen.insert(&vm.vm, &plan.path) {
                return Some(VmInTwoPlans { vm: &vm.vm, first, second: &plan.path });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<BackupPlan, PlanError> {
        BackupPlan::parse(Path::new("h1.json"), json.as_bytes())
    }

    fn refused(json: &str) -> String {
        parse(json).unwrap_err().to_string()
    }

    #[test]
    fn files_and_running_vms_are_read_in_their_order() {
        let plan = parse(
            r#"{"v":1,"vms":[{"vm":"vm1","disks":{"sdb":"b.raw","sda":"set/vm1/day0.raw"}},
                             {"vm":"db1","qmp":"db1.qmp","nodes":{"sda":"vm0"}},
                             {"vm":"db2","qmp":"q","nodes":{"sda":"n"},"nbd":"nbd.sock","freeze":"agent"},
                             {"vm":"db3","qmp":"q","nodes":{"sda":"n"},"freeze":"agent","agent_socket":"qga.sock"}]}"#,
        );
        let plan = plan.unwrap();
        let disks = vec![("sdb".into(), "b.raw".into()), ("sda".into(), "set/vm1/day0.raw".into())];
        assert_eq!(plan.vms[0].source, PlannedSource::Files(disks));
        let socket = "db1.qmp".into();
        let nodes = vec![("sda".into(), "vm0".into())];
        assert_eq!(plan.vms[1].source, PlannedSource::Qmp { socket, nodes, nbd: None, freeze: None });
        let freezes = [(2, Some("nbd.sock"), None), (3, None, Some("qga.sock"))];
        for (at, wanted, socket) in freezes {
            let PlannedSource::Qmp { nbd, freeze, .. } = &plan.vms[at].source else { panic!("{plan:?}") };
            assert_eq!(nbd, &wanted.map(PathBuf::from));
            assert_eq!(freeze, &Some(FreezeMethod::Agent(socket.map(PathBuf::from))));
        }
    }

    #[test]
    fn options_of_a_vm_are_those_of_a_backup() {
        let plan = parse(
            r#"{"v":1,"vms":[{"vm":"a","disks":{"sda":"f"},"format":"raw","allow_smaller":true,"full_every":"30d"},
                             {"vm":"b","disks":{"sda":"f"}}]}"#,
        );
        let plan = plan.unwrap();
        let options = PlannedOptions {
            is_raw: true,
            allow_smaller: true,
            full_every: Some(Duration::from_secs(30 * 86_400)),
        };
        assert_eq!(plan.vms[0].options, options);
        assert_eq!(plan.vms[1].options, PlannedOptions::default());
        for fields in [r#""format":"vmdk""#, r#""full_every":"soon""#, r#""allow_smaller":1"#] {
            refused(&format!(r#"{{"v":1,"vms":[{{"vm":"a","disks":{{"sda":"f"}},{fields}}}]}}"#));
        }
    }

    #[test]
    fn a_wrong_plan_is_one_sentence_that_names_the_file() {
        let vm = |fields: &str| refused(&format!(r#"{{"v":1,"vms":[{{"vm":"a"{fields}}}]}}"#));
        let either = "the plan file h1.json must say of the VM \"a\" either \"disks\", or both \"qmp\" and \"nodes\" with what else \
                      there is of QEMU; write one of the two";
        for fields in [
            "",
            r#","qmp":"q""#,
            r#","nodes":{"sda":"n"}"#,
            r#","disks":{"sda":"f"},"nodes":{"sda":"n"}"#,
            r#","disks":{"sda":"f"},"qmp":"q""#,
            r#","disks":{"sda":"f"},"qmp":"q","nodes":{"sda":"n"}"#,
            r#","disks":{"sda":"f"},"nbd":"s""#,
            r#","disks":{"sda":"f"},"freeze":"agent""#,
            r#","disks":{"sda":"f"},"agent_socket":"s""#,
        ] {
            assert_eq!(vm(fields), either, "{fields}");
        }
        let twice = vm(r#","disks":{"sda":"f","sda":"g"}"#);
        assert!(
            twice.starts_with(
                "the plan file h1.json is not a plan: the disk \"sda\" is listed twice at line 1"
            )
        );
        assert!(vm(r#","disks":{"sda":"f"},"bitmap":"b""#).contains("unknown field `bitmap`"));
        assert!(vm(r#","disks":{}"#).contains("0 disks; list 1 to 128"));
        assert!(vm(r#","disks":{"sda":""}"#).contains("empty path"));
        for fields in [
            r#","disks":{"sda":"a.raw","sdb":"s3://b/x"}"#,
            r#","disks":{"sda":"NBD://h/x"}"#,
            r#","qmp":"tcp:/q","nodes":{"sda":"n"}"#,
            r#","qmp":"q","nodes":{"sda":"n"},"nbd":"nbd+unix:///x""#,
        ] {
            assert!(vm(fields).contains("no addresses"), "{fields}");
        }
        let path = r#"{"v":1,"vms":[{"vm":"a","disks":{"sda":"./s3:/x"}}]}"#;
        assert!(parse(path).is_ok());
        for socket in ["nbd", "agent_socket"] {
            let empty = format!(r#","qmp":"q","nodes":{{"sda":"n"}},"freeze":"agent","{socket}":"""#);
            assert!(vm(&empty).contains("empty path"), "{empty}");
        }
        let qmp = r#","qmp":"q","nodes":{"sda":"n"}"#;
        assert_eq!(
            vm(&format!(r#"{qmp},"agent_socket":"s""#)),
            "the plan file h1.json gives the VM \"a\" an \"agent_socket\" that is not used; add \"freeze\":\"agent\", or leave it out"
        );
        assert!(vm(&format!(r#"{qmp},"freeze":"yes""#)).contains("unknown variant `yes`, expected `agent`"));
        assert!(vm(r#","disks":{"s\nda":"f"}"#).contains("control characters"));
        assert!(vm(r#","qmp":"q","nodes":{"sda":""}"#).contains("has the name \"\""));
        assert!(refused("{").contains("is not a plan: EOF"));
        assert!(refused(r#"{"v":2,"vms":[]}"#).contains("has version 2, and this build reads 1"));
        assert!(BackupPlan::parse(Path::new("p"), br#"{"v":1,"vms":[]}"#).unwrap().vms.is_empty());
        assert!(refused(r#"{"v":1,"vms":[],"more":0}"#).contains("unknown field `more`"));
        let disks = r#""disks":{"sda":"f"}"#;
        let two = refused(&format!(r#"{{"v":1,"vms":[{{"vm":"a",{disks}}},{{"vm":"a",{disks}}}]}}"#));
        assert_eq!(two, "the plan file h1.json lists the VM \"a\" twice; remove one");
    }

    #[test]
    fn sizes_and_counts_are_bounded() {
        let long = " ".repeat(MAX_PLAN_BYTES as usize + 1);
        assert!(matches!(parse(&long), Err(PlanError::TooLong { .. })));
        let disks: Vec<String> = (0..=MAX_DISKS).map(|disk| format!(r#""d{disk}":"f""#)).collect();
        let many = format!(r#"{{"v":1,"vms":[{{"vm":"a","disks":{{{}}}}}]}}"#, disks.join(","));
        assert!(matches!(parse(&many), Err(PlanError::Disks { found: 129, .. })));
        let vms = vec![r#"{"vm":"a"}"#; MAX_VMS + 1].join(",");
        assert!(matches!(parse(&format!(r#"{{"v":1,"vms":[{vms}]}}"#)), Err(PlanError::Vms { .. })));
        let missing = BackupPlan::read(Path::new("/nowhere/plan.json")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read the plan file /nowhere/plan.json: "));
    }

    #[test]
    fn a_vm_of_two_plans_is_found() {
        let plan = |path: &str, vm: &str| {
            let json = format!(r#"{{"v":1,"vms":[{{"vm":"{vm}","disks":{{"sda":"f"}}}}]}}"#);
            BackupPlan::parse(Path::new(path), json.as_bytes()).unwrap()
        };
        let plans = [plan("h1.json", "a"), plan("h2.json", "b"), plan("h3.json", "a")];
        assert_eq!(vm_in_two_plans(&plans[..2]), None);
        assert_eq!(
            vm_in_two_plans(&plans).unwrap().to_string(),
            "the plan files h1.json and h3.json both list the VM \"a\"; remove it from one"
        );
    }
}
