//! Creating, reading and deleting in fixed proportions.

use super::{Done, Limit};
use crate::{
    engine::Engine,
    keys::{Random, fill_value, key},
    protocol::{Churn, Request},
};
use anyhow::{Result, bail};
use std::time::Instant;

/// Kind of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Read,
    Delete,
}

/// The steps of one turn, spread evenly. After any number of turns the steps have exactly the requested
/// proportions.
fn turn(churn: &Churn) -> Vec<Step> {
    let kinds = [(Step::Create, churn.creates), (Step::Read, churn.reads), (Step::Delete, churn.deletes)];
    let mut steps: Vec<(f64, Step)> = Vec::new();
    for (step, times) in kinds {
        steps.extend((0..times).map(|i| ((f64::from(i) + 0.5) / f64::from(times), step)));
    }
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Existing ids, to draw from.
struct Ids {
    /// For blind draws: the number of loaded ids, existing or deleted.
    drawn_from: u64,
    there: Vec<u64>,
    next: u64,
    random: Random,
}

impl Ids {
    fn new(churn: &Churn) -> Ids {
        Ids {
            drawn_from: if churn.blind { churn.keys } else { 0 },
            there: if churn.blind { Vec::new() } else { (0..churn.keys).collect() },
            next: churn.keys,
            random: Random::new(churn.seed),
        }
    }

    /// The id for this step, and whether it is known to exist; `None`: no id is left.
    fn draw(&mut self, step: Step) -> Option<(u64, bool)> {
        if self.drawn_from > 0 {
            return Some((self.random.below(self.drawn_from), false));
        }
        if step == Step::Create {
            let id = self.next;
            self.next += 1;
            self.there.push(id);
            return Some((id, false));
        }
        if self.there.is_empty() {
            return None;
        }
        let at = self.random.below(self.there.len() as u64) as usize;
        let id = if step == Step::Delete { self.there.swap_remove(at) } else { self.there[at] };
        Some((id, true))
    }
}

pub(super) fn perform(engine: &dyn Engine, request: &Request) -> Result<Done> {
    let Request::Churn(churn) = request else {
        bail!("not a churn: {request:?}");
    };
    let steps = turn(churn);
    let mut ids = Ids::new(churn);
    let mut value = vec![0; churn.value_bytes];
    let limit = Limit::new(0.0, churn.turns * steps.len() as u64);
    let mut done = Done::new();
    let mut now = Instant::now();
    while !limit.reached(done.ops, now) {
        let step = steps[(done.ops % steps.len() as u64) as usize];
        let Some((id, is_there)) = ids.draw(step) else {
            bail!("the churn deletes more ids than it creates and loads");
        };
        match step {
            Step::Create => {
                fill_value(id, &mut value);
                engine.put(&key(id), &value, churn.safety)?;
            }
            Step::Read => {
                let found = engine.get(&key(id))?.is_some();
                if is_there && !found {
                    bail!("id {id} was lost");
                }
                done.found += u64::from(found);
            }
            Step::Delete => engine.delete(&key(id), churn.safety)?,
        }
        let end = Instant::now();
        let times = if step == Step::Read { &mut done.latencies } else { &mut done.write_latencies };
        times.add(end - now);
        now = end;
        done.ops += 1;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Safety;

    #[test]
    fn a_turn_has_the_requested_number_of_each_step() {
        let churn = Churn {
            keys: 10,
            creates: 4,
            reads: 2,
            deletes: 3,
            blind: false,
            value_bytes: 8,
            turns: 1,
            safety: Safety::Bulk,
            seed: 1,
        };
        let steps = turn(&churn);
        let count = |step| steps.iter().filter(|other| **other == step).count();
        let counts = [Step::Create, Step::Read, Step::Delete].map(count);
        assert_eq!((steps.len(), counts), (9, [4, 2, 3]));
        let mut ids = Ids::new(&churn);
        let mut gone: Vec<u64> = (0..10).filter_map(|_| ids.draw(Step::Delete)).map(|(id, _)| id).collect();
        gone.sort_unstable();
        assert_eq!(gone, (0..10).collect::<Vec<_>>(), "each once");
        assert_eq!(ids.draw(Step::Delete), None);
        assert_eq!(ids.draw(Step::Create), Some((10, false)));
    }
}
