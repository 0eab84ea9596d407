//! Training without flush against a serial reference that follows the papers' formulas.

mod comparison;
mod formulas;
mod oracle;
mod passage;
mod reference;
mod taking_turns;
mod threshold;
