//! The repository to copy to: its arguments, and its opening.

use super::super::{CommandContext, EXPORT_WAIT};
use crate::{
    arguments::{CommonArgs, CopyArgs},
    failure::{Failure, Outcome},
    pins::ExportPins,
    place::{ClusterPlace, RepositoryPlace},
    repository::{self, OpenRepository, RemoteView},
};
use copal_node::Access;

/// The common options as they hold for the repository to copy to.
/// # Errors
/// Two clusters and one profile.
pub(super) fn target(common: &CommonArgs, copy: &CopyArgs) -> Outcome<CommonArgs> {
    let mut target = CommonArgs {
        repo: Some(copy.to.clone()),
        // These are for the repository that is read.
        record_gets: None,
        accept_tail_loss: false,
        ..common.clone()
    };
    if copy.to_password_file.is_some() || copy.to_key.is_some() {
        target.password_file.clone_from(&copy.to_password_file);
        target.key.clone_from(&copy.to_key);
        target.insecure_no_password = false;
    }
    if copy.to_credentials.is_some() {
        target.credentials.clone_from(&copy.to_credentials);
    }
    let Some(RepositoryPlace::Cluster(to)) = RepositoryPlace::shared(&copy.to)? else {
        return Ok(target);
    };
    match (&to.profile, ClusterPlace::parse(common.repository()?)) {
        // The profile of the address counts, and not that of the cluster to copy from.
        (Some(_), _) => target.cluster = None,
        (None, Ok(Some(from))) if from.master != to.master => {
            return Err(Failure::usage(format!(
                "which profile has the cluster to copy to? --cluster and COPAL_CLUSTER name that of the cluster to copy from; \
                 give --to '{}?profile=FILE'",
                copy.to.display()
            )));
        }
        (None, _) => {}
    }
    Ok(target)
}

/// Refuses a target that is the source. The ids of the repositories show the rest.
pub(super) fn refuse_same(from: &CommonArgs, to: &CommonArgs) -> Outcome<()> {
    let same = match (RepositoryPlace::find(from), RepositoryPlace::find(to)) {
        (Ok(RepositoryPlace::Store(from)), Ok(RepositoryPlace::Store(to))) => from.holds(to.path()),
        _ => false,
    };
    match same {
        true => Err(Failure::usage(
            "the repository to copy to is the one to copy from; name another one with --to",
        )),
        false => Ok(()),
    }
}

/// Opens the repository to copy to; exports that read from it close within moments.
pub(super) fn open(context: &CommandContext<'_>, to: &CommonArgs) -> Outcome<OpenRepository> {
    let pins = ExportPins::look(&RepositoryPlace::find(to)?);
    let limit = match pins.may_be_reading() {
        true => context.wait.max(EXPORT_WAIT),
        false => context.wait,
    };
    repository::open(to, Access::Write, RemoteView::AtStart, &context.patience_of(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{CopalArgs, CopalCommand};
    use clap::Parser;
    use std::path::Path;

    fn target_of(line: &str) -> Outcome<CommonArgs> {
        let arguments = CopalArgs::try_parse_from(line.split(' ')).unwrap();
        let CopalCommand::Copy(copy) = &arguments.command else { panic!("not a copy") };
        target(&arguments.common, copy)
    }

    #[test]
    fn options_of_the_source_do_not_reach_the_target() {
        let to = target_of(
            "copal copy --repo /a --key k --insecure-no-password --accept-tail-loss --all --to /b --to-password-file f",
        );
        let to = to.unwrap();
        assert_eq!((to.repo.as_deref(), to.key), (Some(Path::new("/b")), None));
        assert_eq!(to.password_file.as_deref(), Some(Path::new("f")));
        assert!(!to.insecure_no_password && !to.accept_tail_loss);
        let to = target_of("copal copy --repo /a --password-file p --all --to /b --to-key k").unwrap();
        assert_eq!((to.key.as_deref(), to.password_file), (Some(Path::new("k")), None));
        let to = target_of("copal copy --repo /a --password-file p --all --to /b").unwrap();
        assert_eq!(to.password_file.as_deref(), Some(Path::new("p")));
    }

    #[test]
    fn a_cluster_to_copy_to_has_its_own_profile() {
        let (from, to) = ("--repo copal://one:7400/vms --cluster c.json --all", "copal://two:7400/vms");
        let own = target_of(&format!("copal copy {from} --to {to}?profile=d.json")).unwrap();
        assert_eq!(own.cluster, None);
        let refused = target_of(&format!("copal copy {from} --to {to}")).unwrap_err();
        assert!(refused.sentence.contains("?profile=FILE"), "{}", refused.sentence);
        let same = target_of(&format!("copal copy {from} --to copal://one:7400/other")).unwrap();
        assert_eq!(same.cluster.as_deref(), Some(Path::new("c.json")));
        let only = target_of(&format!("copal copy --repo /a --cluster c.json --all --to {to}")).unwrap();
        assert_eq!(only.cluster.as_deref(), Some(Path::new("c.json")));
    }
}
