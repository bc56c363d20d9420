//! Tests of the probabilities that the design assumes (T4), of the page format, and of damage.

mod damage;
mod golden;
mod numbers;
mod support;
