//! Conversion of ids, views and answers of the group protocol to messages and back.
//!
//! Input from the network is checked: roles must be known, and the members of a view must ascend.

use crate::messages::{self, Failure, failure::Code};
use copal_volume::{
    FileId,
    group::{DiskId, Epoch, GroupId, MAX_GROUP, MemberAnswer, Role, View},
};

/// An id as a message.
pub fn of_id(id: u128) -> messages::Id {
    messages::Id { high: (id >> 64) as u64, low: id as u64 }
}

/// The id in a message; 0 if the field is absent.
pub fn id(message: Option<messages::Id>) -> u128 {
    message.map_or(0, |id| u128::from(id.high) << 64 | u128::from(id.low))
}

/// A role as a message.
pub fn role_of(role: Role) -> messages::Role {
    match role {
        Role::Normal => messages::Role::Normal,
        Role::Recovering => messages::Role::Recovering,
        Role::Failed => messages::Role::Failed,
        Role::Joining => messages::Role::Joining,
    }
}

/// The role in a message; `None`: this release does not know it.
pub fn role(message: i32) -> Option<Role> {
    match messages::Role::try_from(message).ok()? {
        messages::Role::Unspecified => None,
        messages::Role::Normal => Some(Role::Normal),
        messages::Role::Recovering => Some(Role::Recovering),
        messages::Role::Failed => Some(Role::Failed),
        messages::Role::Joining => Some(Role::Joining),
    }
}

/// Whether the role in a message is in sync. An unknown role is not.
pub fn is_in_sync(message: i32) -> bool {
    role(message).is_some_and(Role::is_in_sync)
}

/// A view as a message.
pub fn of_view(view: &View) -> messages::View {
    let member = |&(disk, role): &(DiskId, Role)| messages::Member {
        disk: disk.0,
        role: role_of(role).into(),
        missed: 0,
        source: 0,
    };
    messages::View {
        group: view.group.0,
        epoch: view.epoch.0,
        members: view.members.iter().map(member).collect(),
        replicas: view.replicas.into(),
        min_ack: view.min_ack.into(),
    }
}

/// The view in a message; `None`: the view is not valid.
pub fn view_of(message: &messages::View) -> Option<View> {
    let mut members = Vec::with_capacity(message.members.len().min(16));
    for member in &message.members {
        let disk = DiskId(member.disk);
        if members.last().is_some_and(|&(before, _)| before >= disk) {
            return None;
        }
        members.push((disk, role(member.role)?));
    }
    if message.group == 0 || message.group > MAX_GROUP {
        return None;
    }
    Some(View {
        group: GroupId(message.group),
        epoch: Epoch(message.epoch),
        members,
        replicas: message.replicas.try_into().ok()?,
        min_ack: message.min_ack.try_into().ok()?,
    })
}

/// A replica's refusal as a message. `Ok` has its own message.
pub fn failure_of(answer: &MemberAnswer) -> Failure {
    let plain = |code: Code| Failure { code: code.into(), ..Failure::default() };
    match answer {
        MemberAnswer::Ok { .. } => plain(Code::Internal),
        MemberAnswer::Exists { fid } => Failure { fid: Some(of_id(fid.0)), ..plain(Code::Exists) },
        MemberAnswer::Deleted => plain(Code::Buried),
        MemberAnswer::TooOld => plain(Code::TooOld),
        MemberAnswer::ClockSkew => plain(Code::ClockSkew),
        MemberAnswer::VolumeGone => plain(Code::VolumeGone),
        MemberAnswer::NoSpace => plain(Code::NoSpace),
        MemberAnswer::QuotaExceeded { quota, used, wanted } => {
            Failure { numbers: vec![*quota, *used, *wanted], ..plain(Code::Quota) }
        }
        MemberAnswer::Missing => plain(Code::Missing),
        MemberAnswer::OtherFile => Failure {
            text: "the file's id belongs to another name or volume; draw a new one".to_owned(),
            ..plain(Code::NotFound)
        },
        MemberAnswer::Busy => plain(Code::Busy),
    }
}

/// The replica's answer in a failure; `None`: a failure of another kind.
pub fn answer_of(failure: &Failure) -> Option<MemberAnswer> {
    let number = |at: usize| failure.numbers.get(at).copied().unwrap_or(0);
    Some(match Code::try_from(failure.code).ok()? {
        Code::Exists => MemberAnswer::Exists { fid: FileId(id(failure.fid)) },
        Code::Buried => MemberAnswer::Deleted,
        Code::TooOld => MemberAnswer::TooOld,
        Code::ClockSkew => MemberAnswer::ClockSkew,
        Code::VolumeGone => MemberAnswer::VolumeGone,
        Code::NoSpace => MemberAnswer::NoSpace,
        Code::Quota => MemberAnswer::QuotaExceeded { quota: number(0), used: number(1), wanted: number(2) },
        Code::Missing => MemberAnswer::Missing,
        // Only of an operation; reads evaluate this code themselves.
        Code::NotFound => MemberAnswer::OtherFile,
        Code::Busy => MemberAnswer::Busy,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_conversion() {
        let fid = FileId::new(1, 2, 3);
        let quota = MemberAnswer::QuotaExceeded { quota: 1, used: 2, wanted: 3 };
        for answer in [
            MemberAnswer::Exists { fid },
            MemberAnswer::Deleted,
            MemberAnswer::TooOld,
            MemberAnswer::ClockSkew,
            MemberAnswer::VolumeGone,
            MemberAnswer::NoSpace,
            quota,
            MemberAnswer::Missing,
            MemberAnswer::OtherFile,
            MemberAnswer::Busy,
        ] {
            assert_eq!(answer_of(&failure_of(&answer)), Some(answer));
        }
        assert_eq!(answer_of(&Failure::default()), None);
    }

    #[test]
    fn a_view_survives_the_conversion_and_an_invalid_one_is_refused() {
        let view = View {
            group: GroupId(3),
            epoch: Epoch(9),
            members: vec![(DiskId(1), Role::Normal), (DiskId(4), Role::Joining)],
            replicas: 3,
            min_ack: 2,
        };
        let message = of_view(&view);
        assert_eq!(view_of(&message), Some(view));
        let changed = |change: &dyn Fn(&mut messages::View)| {
            let mut message = message.clone();
            change(&mut message);
            view_of(&message)
        };
        assert_eq!(changed(&|view| view.group = 0), None);
        assert_eq!(changed(&|view| view.group = MAX_GROUP + 1), None);
        assert_eq!(changed(&|view| view.members.reverse()), None);
        assert_eq!(changed(&|view| view.members[0].role = 0), None);
        assert_eq!(changed(&|view| view.replicas = 256), None);
    }
}
