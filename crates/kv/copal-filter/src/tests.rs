//! The numbers the design stands on (T4), the page format, and damage.

mod damage;
mod golden;
mod numbers;
mod support;
