//! Every collective algorithm once, as a pure list of steps: who sends which
//! range to whom, and who adds.
//!
//! [`plan`] turns a [`Kind`] (what has to hold afterwards) and an [`Algorithm`]
//! (how to get there) into a [`StepList`]. A communication engine executes the
//! list, a cluster model times it, and [`StepList::apply`] interprets it, so all
//! three agree on every byte. [`rounds`], [`bytes_sent_per_member`] and
//! [`bottleneck_bytes`] are the same counts as closed forms.
//!
//! ```
//! use shardloom_collectives::{plan, Algorithm, Kind, Reduction};
//!
//! let list = plan(Kind::AllReduce, Algorithm::Ring, 3, 6)?;
//! let mut buffers = vec![vec![1.0; 6], vec![2.0; 6], vec![4.0; 6]];
//! list.apply(&mut buffers, Reduction::Sum)?;
//! assert_eq!(buffers, vec![vec![7.0; 6]; 3]);
//! # Ok::<(), shardloom_collectives::CollectiveError>(())
//! ```
//!
//! # Buffers
//!
//! Every member holds one logical buffer of `elements`, cut by [`chunk`] where a
//! kind speaks of chunks. What is valid before and after is said at [`Kind`].
//!
//! # Which algorithm exists for which kind
//!
//! | | direct | ring | halving-doubling | binary-tree | double-binary-tree | hierarchical |
//! |---|---|---|---|---|---|---|
//! | all-reduce | yes | yes | yes | yes | yes | yes |
//! | reduce-scatter | yes | yes | yes | | | yes |
//! | all-gather | yes | yes | yes | | | yes |
//! | all-to-all | yes | | | | | yes |
//! | broadcast, reduce | yes | yes | | yes | | |
//!
//! [`all_to_all_v`] is an all-to-all of unequal parts, whose [`Counts`] are said when it is called.
//!
//! Every algorithm takes any number of members; hierarchical needs a whole number
//! of inner groups. After any all-reduce all members hold bitwise the same
//! values, because each element is summed once, in one order, and then copied.

mod algorithm;
mod all_to_all_v;
mod apply;
mod binary_tree;
mod chunk;
mod closed_form;
mod direct;
mod double_binary_tree;
mod error;
mod halving_doubling;
mod hierarchical;
mod kind;
mod plan;
mod ring;
mod step_list;

pub use algorithm::Algorithm;
pub use all_to_all_v::{Counts, all_to_all_v};
pub use apply::{Element, Reduction};
pub use chunk::chunk;
pub use closed_form::{bottleneck_bytes, bytes_sent_per_member, rounds};
pub use error::CollectiveError;
pub use kind::{Kind, Member};
pub use plan::{pairs, plan};
pub use step_list::{Combine, StepList, Transfer};
