//! Forward decay: new probes get more weight, instead of old ones less, so that ageing touches no state.
//!
//! A probe at age `a` (in half-lives) weighs `2^(a - origin)`. Heats are then comparable as stored, and the
//! present value of one is `heat / weight(now)`. Doubles are exact enough: they have 53 bits below the
//! largest heat of a partition. Their exponent lasts for 512 half-lives; then all heats are scaled by
//! `2^-512`, which loses nothing.
//! Invariant: age never falls, even if the given time does.

/// Half-lives after which all heats are scaled down.
const EPOCH: u32 = 512;
/// Steps in which a half-life is counted.
const STEPS: usize = 64;

/// Age in half-lives; a half-life is a number of Gets that may change with the number of partitions.
pub(super) struct DecayClock {
    gets: u64,
    age: f64,
    origin: f64,
    /// 2^(i / 64), by multiplication: the same bits on every machine.
    powers: [f64; STEPS],
}

impl DecayClock {
    pub(super) fn new() -> DecayClock {
        const STEP: f64 = 1.010_889_286_051_700_5;
        let mut powers = [1.0; STEPS];
        for i in 1..STEPS {
            powers[i] = powers[i - 1] * STEP;
        }
        DecayClock { gets: 0, age: 0.0, origin: 0.0, powers }
    }

    /// Advances the time to `gets`. True: an epoch has ended, so multiply all heats by [`DecayClock::SCALE`].
    pub(super) fn advance(&mut self, gets: u64, half_life: f64) -> bool {
        self.age = self.age_at(gets, half_life);
        self.gets = self.gets.max(gets);
        let over = self.age - self.origin >= f64::from(EPOCH);
        if over {
            self.origin += f64::from(EPOCH);
            // More than one epoch without a call: no heat survives that, and the exponent must stay small.
            self.age = self.age.min(self.origin + f64::from(EPOCH) - 1.0);
        }
        over
    }

    /// Factor for all heats at the end of an epoch: 2^-512.
    pub(super) const SCALE: f64 = f64::from_bits((1023 - EPOCH as u64) << 52);

    fn age_at(&self, gets: u64, half_life: f64) -> f64 {
        self.age + gets.saturating_sub(self.gets) as f64 / half_life.max(1.0)
    }

    /// Weight of a probe now.
    pub(super) fn weight(&self) -> f64 {
        self.weight_of(self.age)
    }

    /// Weight of a probe at a later time.
    pub(super) fn weight_at(&self, gets: u64, half_life: f64) -> f64 {
        self.weight_of(self.age_at(gets, half_life))
    }

    fn weight_of(&self, age: f64) -> f64 {
        let steps = ((age - self.origin).clamp(0.0, 1000.0) * STEPS as f64) as usize;
        self.powers[steps % STEPS] * power_of_two((steps / STEPS) as u64)
    }

    /// Age in whole half-lives.
    pub(super) fn half_lives(&self) -> i64 {
        self.age as i64
    }

    /// Origin of the present epoch, in half-lives: the age at which a probe weighs 1.
    pub(super) fn origin(&self) -> i64 {
        self.origin as i64
    }
}

fn power_of_two(exponent: u64) -> f64 {
    f64::from_bits((1023 + exponent) << 52)
}

/// `floor(log2(x))` of a positive number; far below any class for zero.
pub(super) fn floor_log2(x: f64) -> i64 {
    ((x.to_bits() >> 52) & 0x7ff) as i64 - 1023
}
