//! Every collective algorithm once, as a pure list of steps: who sends which
//! range to whom, and who adds.
//!
//! [`plan`] turns a [`Kind`] (what has to hold afterwards) and an [`Algorithm`]
//! (how to get there) into a [`StepList`]. A communication engine executes the
//! list, a cluster model times it, and [`StepList::apply`] interprets it, so all
//! three agree on every byte. [`sent_elements`] and [`sent_elements_by_all`] are its counts without the
//! list, [`rounds`], [`bytes_sent_per_member`] and [`bottleneck_bytes`] closed forms of them.
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
//! | | direct | ring | halving-doubling | binary-tree | double-binary-tree | hierarchical | stars |
//! |---|---|---|---|---|---|---|---|
//! | all-reduce | yes | yes | yes | yes | yes | yes | yes |
//! | reduce-scatter | yes | yes | yes | | | yes | |
//! | all-gather | yes | yes | yes | | | yes | |
//! | all-to-all | yes | | | | | yes | |
//! | broadcast, reduce | yes | yes | | yes | | | |
//!
//! Stars are star, two-level-star, multi-star, binary-tree-star and multi-binary-tree-star.
//!
//! [`all_to_all_v`] is an all-to-all of unequal parts, whose [`Counts`] are said when it is called.
//!
//! Every algorithm takes any number of members; those that are written with the size of
//! inner groups need a whole number of these. After any all-reduce all members hold bitwise the same
//! values, because each element is summed once, in one order, and then copied.
//!
//! # KungFu's strategies
//!
//! An all-reduce in KungFu (Mai et al., OSDI 2020; `srcs/go/kungfu/session/strategy.go`) is a set of pairs of
//! graphs, one to reduce and one to broadcast, each with its share of the buffer. With I members in each node:
//!
//! | KungFu | here | |
//! |---|---|---|
//! | `STAR` | `star` | |
//! | `CLIQUE` | `direct` | a star around every member, with an equal chunk each |
//! | `RING` | `ring` | a chain into every member and another out of it |
//! | `TREE` | `two-level-star:I` | |
//! | `MULTI_STAR` | `multi-star:I` | |
//! | `BINARY_TREE` | `binary-tree` | whose tree is at most a level deeper |
//! | `BINARY_TREE_STAR` | `binary-tree-star:I` | |
//! | `MULTI_BINARY_TREE_STAR` | `multi-binary-tree-star:I` | |
//!
//! `AUTO` is the choice between `STAR` on one node and `BINARY_TREE_STAR` on several, and no graph of its own.
//! KungFu begins to broadcast a piece of the buffer when that is reduced; lists here reduce all of it first.

mod algorithm;
mod all_to_all_v;
mod apply;
mod binary_tree;
mod chunk;
mod closed_form;
mod direct;
mod double_binary_tree;
mod error;
mod fusion;
mod halving_doubling;
mod hierarchical;
mod kind;
mod plan;
mod ring;
mod sent;
mod star_tree;
mod step_list;
mod tree;

pub use algorithm::Algorithm;
pub use all_to_all_v::{Counts, all_to_all_v};
pub use apply::{Element, Reduction};
pub use chunk::{chunk, chunk_of};
pub use closed_form::{bottleneck_bytes, bytes_sent_per_member, rounds};
pub use error::CollectiveError;
pub use fusion::fused;
pub use kind::{Kind, Member};
pub use plan::{pairs, plan};
pub use sent::{sent_elements, sent_elements_by_all};
pub use star_tree::StarTree;
pub use step_list::{Combine, StepList, Transfer};
