//! What an administrator wants of the master, as it comes over the wire: a verb and an argument in JSON.

use crate::{master_server::MasterServer, status::Status};
use copal_master::WantedMove;
use copal_proto::messages::failure::Code;
use copal_volume::group::GroupId;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Boost {
    group: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    name: String,
    undo: bool,
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    name: String,
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Maintenance {
    name: String,
    for_ms: u64,
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    group: u32,
    from: String,
    to: String,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelMove {
    group: u32,
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Apply {
    moves: Vec<Move>,
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    dry_run: bool,
}

impl Move {
    fn wanted(self) -> WantedMove {
        WantedMove { group: GroupId(self.group), from: self.from, to: self.to }
    }
}

pub(crate) fn wanted<T: DeserializeOwned>(argument: &str) -> Result<T, Status> {
    let wanted = serde_json::from_str(argument);
    wanted.map_err(|error| Status::new(Code::Invalid, format!("an order that cannot be read: {error}")))
}

impl MasterServer {
    /// Carries an order out; `None`: it is no order.
    pub(crate) fn order(&self, verb: &str, argument: &str) -> Result<Option<Value>, Status> {
        let now_ms = self.now_ms();
        let told = match verb {
            "boost" => {
                let order: Boost = wanted(argument)?;
                self.master.boost(GroupId(order.group), now_ms)
            }
            "drain" => {
                let order: Drain = wanted(argument)?;
                self.master.drain(&order.name, order.undo, order.dry_run, now_ms)
            }
            "remove" => {
                let order: Remove = wanted(argument)?;
                self.master.remove(&order.name, order.dry_run, now_ms)
            }
            "maintenance" => {
                let order: Maintenance = wanted(argument)?;
                self.master.announce(&order.name, order.for_ms, order.dry_run, now_ms)
            }
            "move" => {
                let order: Move = wanted(argument)?;
                let dry_run = order.dry_run;
                self.master.move_group(&order.wanted(), dry_run, now_ms)
            }
            "cancel_move" => {
                let order: CancelMove = wanted(argument)?;
                self.master.cancel_move(GroupId(order.group), order.dry_run, now_ms)
            }
            "rebalance_plan" => Ok(self.master.rebalance_plan()),
            "rebalance_apply" => {
                let order: Apply = wanted(argument)?;
                let moves: Vec<WantedMove> = order.moves.into_iter().map(Move::wanted).collect();
                self.master.rebalance_apply(&moves, order.dry_run, now_ms)
            }
            "rebalance_pause" => {
                let order: Pause = wanted(argument)?;
                self.master.rebalance_pause(order.dry_run, now_ms)
            }
            _ => return Ok(None),
        };
        Ok(told.map(Some)?)
    }
}
