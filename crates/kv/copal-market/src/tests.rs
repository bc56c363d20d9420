//! The market against a slow twin, and its invariants under random work.

use crate::*;
use copal_testkit::Random;

/// One look, as the twin keeps it for ever.
struct Seen {
    gets: u64,
    events: [PoolEvents; 3],
}

/// Sums everything anew at each question.
#[derive(Default)]
struct Twin {
    /// Signed bytes of each grant and return, by pool; the last are the claims.
    moves: [Vec<i64>; 5],
    seen: Vec<Seen>,
    /// Bytes of each cache at the last look.
    used_then: [u64; 3],
    columns: ByteWorth,
}

impl Twin {
    fn used(&self, of: usize) -> u64 {
        self.moves[of].iter().sum::<i64>() as u64
    }

    fn all(&self) -> u64 {
        (0..5).map(|of| self.used(of)).sum()
    }

    fn decayed(&self, number: impl Fn(&Seen) -> u64) -> f64 {
        let last = self.seen.len();
        self.seen
            .iter()
            .enumerate()
            .map(|(at, seen)| number(seen) as f64 * 0.96875f64.powi((last - 1 - at) as i32))
            .sum()
    }

    fn worth(&self, pool: PoolKind, quantum: u64) -> ByteWorth {
        let at = pool as usize;
        if pool == PoolKind::Columns || self.seen.is_empty() {
            return if pool == PoolKind::Columns { self.columns } else { ByteWorth::default() };
        }
        let gets = self.decayed(|seen| seen.gets).max(1.0);
        let ghost = self.decayed(|seen| seen.events[at].ghost_hits);
        let tail = self.decayed(|seen| seen.events[at].tail_hits);
        let window = 8 * quantum;
        let tail_bytes = window.min(self.used_then[at]).max(1) as f64;
        let gain = (ghost - 0.5 * ghost.sqrt()).max(0.0) / gets / window as f64;
        ByteWorth { gain, loss: ((tail + 0.5 * tail.sqrt()) / gets / tail_bytes).max(gain) }
    }
}

fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

#[test]
fn the_market_answers_as_its_slow_twin_does() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let total = 1 << (18 + seed);
        let (mut market, mut twin) = (MemoryMarket::new(total), Twin::default());
        let quantum = market.quantum();
        let (mut granted, mut refused, mut paid) = (0, 0, 0);
        let mut gets = 0;
        // Pools have different rates of events, which change now and then.
        let mut rates = [(1, 1); 3];
        for step in 0..8_000 {
            if random.one_in(2_000) {
                rates = [(); 3].map(|()| (1 + random.below(40), 1 + random.below(2_000)));
            }
            let bytes = 1 + random.below(total / 40);
            let pool = PoolKind::ALL[random.index(4)];
            match random.below(10) {
                0..7 => {
                    let answer =
                        if pool == PoolKind::Columns { market.buy(bytes) } else { market.ask(pool, bytes) };
                    let is_room = twin.all() + bytes <= total;
                    assert_eq!(answer == MarketAnswer::Granted, is_room, "step {step}");
                    match answer {
                        MarketAnswer::Granted => {
                            granted += 1;
                            twin.moves[pool as usize].push(bytes as i64);
                        }
                        MarketAnswer::Refused => refused += 1,
                        MarketAnswer::Evict(payer) => {
                            let (gain, loss) =
                                (twin.worth(pool, quantum).gain, twin.worth(payer, quantum).loss);
                            if payer != pool && pool != PoolKind::Columns {
                                paid += 1;
                                assert!(gain > FACTOR * loss * (1.0 - 1e-9), "{gain} for {loss}");
                            }
                            if payer != pool {
                                for other in PoolKind::CACHES {
                                    let is_asked = other != pool && twin.used(other as usize) > 0;
                                    let least = twin.worth(other, quantum).loss;
                                    assert!(!is_asked || least >= loss || close(least, loss));
                                }
                            }
                            let left = twin.used(payer as usize).min(bytes);
                            market.give_back(payer, left);
                            twin.moves[payer as usize].push(-(left as i64));
                        }
                    }
                }
                7 => match market.claim(bytes) {
                    MarketAnswer::Granted => twin.moves[4].push(bytes as i64),
                    MarketAnswer::Evict(payer) => {
                        let left = twin.used(payer as usize).min(bytes);
                        market.give_back(payer, left);
                        twin.moves[payer as usize].push(-(left as i64));
                    }
                    MarketAnswer::Refused => assert!((0..4).all(|of| twin.used(of) == 0)),
                },
                8 => {
                    let left = twin.used(4).min(bytes);
                    market.end_claim(left);
                    twin.moves[4].push(-(left as i64));
                }
                _ => {
                    let since = random.below(5_000);
                    gets += since;
                    let events = rates.map(|(tail, ghost)| PoolEvents {
                        tail_hits: random.below(tail),
                        ghost_hits: random.below(ghost),
                    });
                    let columns = ByteWorth { gain: random.unit() * 1e-6, loss: random.unit() * 1e-6 };
                    market.look(gets, events, columns);
                    twin.seen.push(Seen { gets: since, events });
                    twin.used_then = [0, 1, 2].map(|of| twin.used(of));
                    twin.columns = columns;
                }
            }
            assert!(twin.all() <= total, "step {step}");
            assert_eq!(market.free_bytes(), total - twin.all());
            if step % 64 == 0 {
                for pool in PoolKind::ALL {
                    assert_eq!(market.used(pool), twin.used(pool as usize));
                    let (ours, theirs) = (market.worth(pool), twin.worth(pool, quantum));
                    assert!(close(ours.gain, theirs.gain) && close(ours.loss, theirs.loss), "step {step}");
                }
            }
        }
        assert!(granted > 1_000 && refused > 0 && paid > 20, "{granted} {refused} {paid}");
    }
}

#[test]
fn free_memory_is_lent_to_each_asker() {
    let mut market = MemoryMarket::new(1 << 20);
    for pool in PoolKind::ALL {
        let answer = if pool == PoolKind::Columns { market.buy(1 << 18) } else { market.ask(pool, 1 << 18) };
        assert_eq!(answer, MarketAnswer::Granted);
    }
    assert_eq!(market.free_bytes(), 0);
    // Nobody knows its worth yet: each pays for itself.
    assert_eq!(market.ask(PoolKind::Blocks, 4_096), MarketAnswer::Evict(PoolKind::Blocks));
}

#[test]
fn a_claim_takes_at_once_from_the_cache_that_loses_least() {
    let mut market = MemoryMarket::new(1 << 20);
    assert_eq!(market.ask(PoolKind::Rows, 1 << 19), MarketAnswer::Granted);
    assert_eq!(market.ask(PoolKind::Blocks, 1 << 19), MarketAnswer::Granted);
    let events = |tail_hits| PoolEvents { tail_hits, ghost_hits: 0 };
    market.look(1_000, [events(90), events(10), events(0)], ByteWorth::default());
    assert_eq!(market.claim(4_096), MarketAnswer::Evict(PoolKind::Blocks));
    market.give_back(PoolKind::Blocks, 1 << 19);
    assert_eq!(market.claim(1 << 19), MarketAnswer::Granted);
    assert_eq!(market.claim(4_096), MarketAnswer::Evict(PoolKind::Rows));
    market.give_back(PoolKind::Rows, 1 << 19);
    assert_eq!(market.claim(1 << 19), MarketAnswer::Granted);
    assert_eq!(market.claim(1), MarketAnswer::Refused);
    market.end_claim(1 << 20);
    assert_eq!(market.free_bytes(), 1 << 20);
}

#[test]
fn a_look_is_due_when_a_quantum_was_read() {
    let mut market = MemoryMarket::new(64 << 20);
    assert_eq!(market.quantum(), 1 << 20);
    assert!(!market.read((1 << 20) - 1));
    assert!(market.read(1));
    market.look(10, Default::default(), ByteWorth::default());
    assert!(!market.read(1));
}

/// Budgets of any size work: nothing divides by zero, and nothing overflows.
#[test]
fn extreme_totals_are_markets_too() {
    for total in [0, 1, 4 << 20, 1 << 63] {
        let mut market = MemoryMarket::new(total);
        let answer = market.ask(PoolKind::Rows, 1 << 21);
        assert_eq!(answer == MarketAnswer::Granted, total >= 1 << 21);
        market.look(
            1 << 62,
            [PoolEvents { tail_hits: 1 << 62, ghost_hits: 1 << 62 }; 3],
            ByteWorth::default(),
        );
        market.look(u64::MAX, Default::default(), ByteWorth::default());
        assert!(
            market.worth(PoolKind::Rows).gain.is_finite() && market.worth(PoolKind::Rows).loss.is_finite()
        );
        assert!(market.offer().free_bytes <= total);
        assert_eq!(
            market.claim(total),
            if answer == MarketAnswer::Granted {
                MarketAnswer::Evict(PoolKind::Rows)
            } else {
                MarketAnswer::Granted
            }
        );
    }
}
