//! Plans as configuration of other projects, and back.
//!
//! [`export`] writes what a plan says as another project takes it; [`import`] reads what another project
//! trains under as a plan. Between them lies a `Recipe`: what the configurations of frameworks have in
//! common. A project is one file of `export` and one of `import`, which know its words and nothing else.
//!
//! What makes a plan what it is, and cannot be said elsewhere, is refused; what does not, is returned as
//! [`Unsaid`] and written into what is exported.

mod actions;
mod error;
mod experts;
mod export;
mod import;
mod project;
mod recipe;
mod transformer;

pub use error::ExchangeError;
pub use export::{Exported, File, Machines, cuts_itself, export, own_cuts, takes};
pub use import::{Given, Imported, import, project_of};
pub use project::Project;
pub(crate) use recipe::{RankOrder, Recipe, StagePlace};
pub(crate) use transformer::Transformer;

/// Something that a plan says and an exported configuration does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaid {
    /// The key of the plan.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What happens instead.
    pub reason: String,
}
