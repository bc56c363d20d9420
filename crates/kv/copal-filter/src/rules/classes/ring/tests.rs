//! The ring against a plain vector of queues.

use super::{BELOW, ClassRing, WIDTH};
use crate::rules::tests::Random;
use std::collections::VecDeque;

/// Queues of all classes that ever existed, from the lowest.
struct Model {
    base: i64,
    queues: VecDeque<VecDeque<u32>>,
}

impl Model {
    fn hang(&mut self, node: u32, class: Option<i64>, mru: bool) {
        self.queues.iter_mut().for_each(|queue| queue.retain(|&other| other != node));
        let Some(class) = class else { return };
        let queue = &mut self.queues[(class.clamp(self.base, self.base + WIDTH - 1) - self.base) as usize];
        if mru {
            queue.push_back(node);
        } else {
            queue.push_front(node);
        }
    }

    fn follow(&mut self, half_lives: i64) {
        while self.base < half_lives - BELOW {
            let lowest = self.queues.pop_front().unwrap();
            for node in lowest.into_iter().rev() {
                self.queues[0].push_front(node);
            }
            self.queues.push_back(VecDeque::new());
            self.base += 1;
        }
    }
}

#[test]
fn nodes_stand_in_the_order_of_their_classes_for_hundreds_of_half_lives() {
    for seed in 0..10 {
        let mut random = Random::new(seed);
        let mut ring = ClassRing::new();
        let mut model = Model { base: -BELOW, queues: vec![VecDeque::new(); WIDTH as usize].into() };
        let mut age = 0;
        for _ in 0..3000 {
            let node = random.below(50) as u32;
            match random.below(10) {
                0 => {
                    age += random.below(8) as i64;
                    ring.follow(age);
                    model.follow(age);
                }
                1 => {
                    ring.hang(node, None, true);
                    model.hang(node, None, true);
                }
                _ => {
                    // Also classes far beyond both ends.
                    let class = age - 90 + random.below(180) as i64;
                    let mru = random.below(3) > 0;
                    ring.hang(node, Some(class), mru);
                    model.hang(node, Some(class), mru);
                }
            }
            let expected: Vec<u32> = model.queues.iter().flatten().copied().collect();
            assert_eq!(ring.nodes_upwards().collect::<Vec<_>>(), expected);
            assert_eq!(ring.bottom(), expected.first().copied());
            assert_eq!(ring.top(), expected.last().copied());
        }
        assert!(age > 500, "{age} half-lives are too few");
    }
}
