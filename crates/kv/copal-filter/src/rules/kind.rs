//! Rules by name: options, tools and benches use a name such as `classes` instead of a type.

use super::{Classes, Fixed, Monkey, PaperMq, Rule};
use std::{fmt, str::FromStr};

/// A rule by its name: `fixed` or `fixed:N`, `monkey`, `paper`, `classes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RuleKind {
    /// The same number of units everywhere: at most this many, and as many as the budget holds.
    Fixed {
        /// Most units of a partition; 255 means that only the budget limits them, and is written `fixed`.
        units: u8,
    },
    /// The best number of units for each run under uniform access.
    Monkey,
    /// The paper's Multi-Queue with expiry; `lifeTime` is 0.4 x the number of partitions, as in its
    /// evaluation.
    Paper,
    /// Marginal benefit per byte.
    #[default]
    Classes,
}

impl RuleKind {
    /// One rule of each kind, for comparisons.
    pub const ALL: [RuleKind; 4] =
        [RuleKind::Fixed { units: u8::MAX }, RuleKind::Monkey, RuleKind::Paper, RuleKind::Classes];

    /// A rule of this kind without partitions, with a budget of 0 until its first step.
    pub fn build(self) -> Box<dyn Rule> {
        match self {
            RuleKind::Fixed { units } => Box::new(Fixed::new(units)),
            RuleKind::Monkey => Box::new(Monkey::new()),
            RuleKind::Paper => Box::new(PaperMq::default()),
            RuleKind::Classes => Box::new(Classes::default()),
        }
    }
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleKind::Fixed { units: u8::MAX } => f.write_str("fixed"),
            RuleKind::Fixed { units } => write!(f, "fixed:{units}"),
            RuleKind::Monkey => f.write_str("monkey"),
            RuleKind::Paper => f.write_str("paper"),
            RuleKind::Classes => f.write_str("classes"),
        }
    }
}

/// An unknown rule name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no adjusting rule is called {name:?}; there are fixed, fixed:N, monkey, paper and classes")]
pub struct UnknownRule {
    /// The name given.
    pub name: String,
}

impl FromStr for RuleKind {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<RuleKind, UnknownRule> {
        let unknown = || UnknownRule { name: name.to_owned() };
        Ok(match name {
            "fixed" => RuleKind::Fixed { units: u8::MAX },
            "monkey" => RuleKind::Monkey,
            "paper" => RuleKind::Paper,
            "classes" => RuleKind::Classes,
            _ => {
                let units = name.strip_prefix("fixed:").ok_or_else(unknown)?;
                RuleKind::Fixed { units: units.parse().map_err(|_| unknown())? }
            }
        })
    }
}
