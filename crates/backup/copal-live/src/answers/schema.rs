//! Capabilities of this QEMU, from `query-qmp-schema`. The version is not sufficient: distributions add and
//! remove features.

use serde_json::Value;
use std::collections::HashMap;

/// Capabilities of this QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QemuFeatures {
    pub(crate) has_filter: bool,
    pub(crate) has_snapshot_access: bool,
    pub(crate) has_reopen: bool,
    /// A failed copy can break the snapshot instead of the guest's write.
    pub(crate) has_break_snapshot: bool,
    /// A copy that takes too long counts as failed.
    pub(crate) has_timeout: bool,
}

/// Entities of the schema by name.
type Entities<'a> = HashMap<&'a str, &'a Value>;

impl QemuFeatures {
    pub(crate) fn parse(answer: &Value) -> QemuFeatures {
        let listed = answer.as_array().into_iter().flatten();
        let entities: Entities<'_> =
            listed.filter_map(|entity| Some((entity["name"].as_str()?, entity))).collect();
        let drivers = arguments_of(&entities, "blockdev-add");
        let filter = drivers.and_then(|drivers| variant(&entities, drivers, "copy-before-write"));
        let has = |member: &str| {
            let members = filter.and_then(|filter| filter["members"].as_array());
            members.is_some_and(|members| members.iter().any(|known| known["name"] == member))
        };
        QemuFeatures {
            has_filter: filter.is_some(),
            has_snapshot_access: drivers
                .is_some_and(|drivers| variant(&entities, drivers, "snapshot-access").is_some()),
            has_reopen: entities.contains_key("blockdev-reopen"),
            has_break_snapshot: has("on-cbw-error"),
            has_timeout: has("cbw-timeout"),
        }
    }

    /// The first missing capability without which no point in time is possible.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        if !self.has_filter {
            Some("copy-before-write")
        } else if !self.has_snapshot_access {
            Some("snapshot-access")
        } else if !self.has_reopen {
            Some("blockdev-reopen")
        } else {
            None
        }
    }
}

fn arguments_of<'a>(entities: &Entities<'a>, command: &str) -> Option<&'a Value> {
    let command = entities.get(command)?;
    entities.get(command["arg-type"].as_str()?).copied()
}

fn variant<'a>(entities: &Entities<'a>, of: &Value, case: &str) -> Option<&'a Value> {
    let variants = of["variants"].as_array()?;
    let variant = variants.iter().find(|variant| variant["case"] == case)?;
    entities.get(variant["type"].as_str()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn abilities_are_read_from_the_schema() {
        let schema = |members: Value| {
            json!([
                {"name": "blockdev-add", "meta-type": "command", "arg-type": "1"},
                {"name": "blockdev-reopen", "meta-type": "command"},
                {"name": "1", "meta-type": "object", "tag": "driver", "variants": [
                    {"case": "copy-before-write", "type": "2"}, {"case": "snapshot-access", "type": "3"}]},
                {"name": "2", "meta-type": "object", "members": members},
                {"name": "3", "meta-type": "object", "members": []}])
        };
        let new = QemuFeatures::parse(&schema(json!([{"name": "on-cbw-error"}, {"name": "cbw-timeout"}])));
        assert!(new.has_timeout && new.has_break_snapshot && new.missing().is_none());
        let old = QemuFeatures::parse(&schema(json!([{"name": "target"}])));
        assert!(!old.has_timeout && old.missing().is_none());
        assert_eq!(QemuFeatures::parse(&json!(7)).missing(), Some("copy-before-write"));
    }
}
