//! The classes rule within a market: its own worth, and units that are bought and given back at a price.

use super::{Change, Classes, Heat, ListEnd, PartitionId, Shape, marginal};
use copal_market::{ByteWorth, ColumnOffer, FACTOR};

/// Half-lives in which columns that are loaded together save the read of their page. The heat of a partition
/// that was loaded when
/// its first probes came is that of few probes, and grows.
const MIN_HALF_LIVES: f64 = 4.0;

impl Classes {
    /// Reads per byte and Get of a weighted benefit.
    fn per_byte_and_get(&self, weighted: f64, shape: Shape) -> f64 {
        self.saved_reads(weighted) / self.half_life() / f64::from(shape.unit_bytes.max(1))
    }

    fn gain_per_byte(&self, partition: PartitionId) -> f64 {
        self.ledger.get(partition).map_or(0.0, |(shape, units)| {
            self.per_byte_and_get(self.next_gain(partition, shape, units), shape)
        })
    }

    fn loss_per_byte(&self, partition: PartitionId) -> f64 {
        self.ledger.get(partition).map_or(0.0, |(shape, units)| {
            self.per_byte_and_get(self.last_loss(partition, shape, units), shape)
        })
    }

    /// The unit that is worth least.
    fn cheapest(&self) -> Option<PartitionId> {
        self.loss.bottom().map(PartitionId)
    }

    pub(super) fn unit_worth(&self) -> ByteWorth {
        ByteWorth {
            gain: self.gain.top().map_or(0.0, |best| self.gain_per_byte(PartitionId(best))),
            loss: self.cheapest().map_or(f64::INFINITY, |worst| self.loss_per_byte(worst)),
        }
    }

    /// All units while memory is free; later, units that are worth more than [`FACTOR`] times the price.
    pub(super) fn predict_at(&self, price: f64, shape: Shape, heat: Heat, now: u64) -> u8 {
        let weighted = heat.0 * self.clock.weight_at(now, self.half_life());
        let free = self.ledger.free_bytes();
        let price = price.min(self.cheapest().map_or(price, |worst| self.loss_per_byte(worst)));
        let worth = |&units: &u8| {
            let bytes = u64::from(units) * u64::from(shape.unit_bytes.max(1));
            let gain = self.per_byte_and_get(marginal(shape.kind, weighted, units - 1), shape);
            bytes <= free || gain > FACTOR * price
        };
        (1..=shape.units).take_while(worth).last().unwrap_or(0)
    }

    pub(super) fn trade_at(&mut self, offer: &ColumnOffer, now: u64) -> Vec<Change> {
        self.advance(now);
        self.price = Some(offer.price);
        let granted = self.ledger.granted();
        self.ledger.set_budget(granted + offer.free_bytes);
        // Given back: units that are worth less than half of the bid.
        let mut given = 0;
        while given < offer.wanted
            && let Some(worst) = self.cheapest()
            && FACTOR * self.loss_per_byte(worst) < offer.bid
        {
            given += self.ledger.get(worst).map_or(0, |(shape, _)| u64::from(shape.unit_bytes));
            self.release(worst);
        }
        if given > 0 {
            self.ledger.set_budget(self.ledger.granted());
        }
        let mut for_sale = offer.for_sale;
        while let Some(best) = self.gain.top()
            && self.raise(PartitionId(best), offer.price, &mut for_sale)
        {}
        for partition in std::mem::take(&mut self.probed) {
            self.is_probed[partition.0 as usize] = false;
            self.raise(partition, offer.price, &mut for_sale);
        }
        self.ledger.changes()
    }

    /// Loads all units of the partition that are worth their price, if they save a read per half-life
    /// together. True: there was
    /// one.
    fn raise(&mut self, partition: PartitionId, price: f64, for_sale: &mut u64) -> bool {
        let Some((shape, units)) = self.ledger.get(partition) else {
            return false;
        };
        let bytes = u64::from(shape.unit_bytes);
        // Least price of a unit when nothing is free.
        let outside = if *for_sale >= bytes { price } else { f64::INFINITY };
        let inside = self.loss.nodes_upwards().map(PartitionId).find(|&payer| payer != partition);
        let least = inside.map_or(outside, |payer| outside.min(self.loss_per_byte(payer)));
        let free = self.ledger.free_bytes() / bytes;
        let passes = |&after: &u8| {
            let weighted = marginal(shape.kind, self.heat_of(partition), after - 1);
            let is_free = u64::from(after - units) <= free;
            weighted > 0.0 && (is_free || self.per_byte_and_get(weighted, shape) > FACTOR * least)
        };
        let Some(wanted) = (units + 1..=shape.units).take_while(passes).last() else {
            return false;
        };
        let saved = self.heat_of(partition) * (shape.kind.fpr(units) - shape.kind.fpr(wanted));
        if self.saved_reads(saved) * MIN_HALF_LIVES < self.options.min_saved_reads {
            return false;
        }
        let mut raised = false;
        for after in units + 1..=wanted {
            if !self.pay(partition, shape, price, for_sale) {
                break;
            }
            self.set(partition, after, ListEnd::Mru);
            raised = true;
        }
        raised
    }

    /// Finds the bytes of one more unit: free ones, those of a unit worth less, or bought ones.
    fn pay(&mut self, partition: PartitionId, shape: Shape, price: f64, for_sale: &mut u64) -> bool {
        let bytes = u64::from(shape.unit_bytes);
        if self.ledger.free_bytes() >= bytes {
            return true;
        }
        let Some((_, units)) = self.ledger.get(partition) else {
            return false;
        };
        let gain = self.next_gain(partition, shape, units);
        let worth = self.per_byte_and_get(gain, shape);
        let inside = self.loss.nodes_upwards().map(PartitionId).find(|&payer| payer != partition);
        let inside_loss = inside.map_or(f64::INFINITY, |payer| self.loss_per_byte(payer));
        if *for_sale >= bytes && price <= inside_loss && worth > FACTOR * price {
            *for_sale -= bytes;
            self.ledger.set_budget(self.ledger.budget() + bytes);
            return true;
        }
        if !self.find_payers(partition, shape, gain) {
            return false;
        }
        let payers = std::mem::take(&mut self.payers);
        for &payer in &payers {
            self.release(payer);
        }
        self.payers = payers;
        true
    }
}
