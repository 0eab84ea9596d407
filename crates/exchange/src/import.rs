//! x
use shardloom_graph::ModelSpec; use shardloom_plan::Plan;
/// x
pub struct Given;
/// x
pub struct Imported { /// x
pub plan: Plan, /// x
pub spec: ModelSpec, /// x
pub notes: Vec<String>}
/// x
pub fn import() {}
/// x
pub fn project_of() {}
