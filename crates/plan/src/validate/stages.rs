//! Whether stages tile the model, each on devices of its own or all of another's.

use shardloom_graph::Graph;

use crate::{Plan, PlanError, Stage};

impl Plan {
    /// Checks that the stages of each pipeline tile the model, and each stage by itself.
    pub(super) fn validate_stages(&self, graph: &Graph, devices: usize) -> Result<(), PlanError> {
        let mut owners: Vec<Option<&Stage>> = vec![None; devices];
        for (pipeline, each) in self.pipeline.iter().enumerate() {
            let mut next = 0;
            for (index, stage) in each.stage.iter().enumerate() {
                let key = |field: &str| format!("pipeline[{pipeline}].stage[{index}].{field}");
                let (first, end) = stage.blocks;
                if first != next || end <= first {
                    let rule = format!(
                        "stages follow each other and hold at least one block; this one begins at {next}"
                    );
                    return Err(PlanError::field(key("blocks"), format!("[{first}, {end}]"), rule));
                }
                next = end;
                validate_devices(stage, &mut owners, &key)?;
                self.validate_stage(graph, stage, &key)?;
            }
            let blocks = graph.blocks().len();
            if next != blocks {
                let key = format!("pipeline[{pipeline}].stage");
                let rule = format!("the stages must end at the model's {blocks} blocks");
                return Err(PlanError::field(key, format!("end at block {next}"), rule));
            }
        }
        Ok(())
    }

    /// Checks that a stage has a mesh of its devices, and a layout that its mesh splits.
    fn validate_stage(
        &self,
        graph: &Graph,
        stage: &Stage,
        key: &dyn Fn(&str) -> String,
    ) -> Result<(), PlanError> {
        let mesh = stage.mesh;
        self.validate_mesh(&mesh, key)?;
        if let Some(own) = &stage.layout {
            self.validate_layout(graph, own, &key("layout"))?;
        }
        let mut widths = mesh.axes().map(|axis| mesh.width(axis));
        let size = widths.try_fold(1usize, |product, width| product.checked_mul(width));
        if size != Some(stage.devices.0.len()) {
            let count = stage.devices.0.len();
            let rule =
                format!("the mesh ({mesh}) must have as many devices as are listed, {count}");
            return Err(PlanError::field(key("devices"), listed(stage), rule));
        }
        self.validate_split(graph, stage, key)
    }
}

/// Checks that the devices of a stage exist, are named once, and belong to no other stage unless that
/// has the very same devices in the same mesh.
fn validate_devices<'p>(
    stage: &'p Stage,
    owners: &mut [Option<&'p Stage>],
    key: &dyn Fn(&str) -> String,
) -> Result<(), PlanError> {
    let refuse = |device: u32, rule: String| {
        let rule = format!("device {device}: {rule}");
        Err(PlanError::field(key("devices"), listed(stage), rule))
    };
    let count = owners.len();
    let owner = |device: &u32| owners.get(*device as usize).copied().flatten();
    if let Some(other) = stage.devices.0.first().and_then(owner)
        && other.devices == stage.devices
        && other.mesh == stage.mesh
    {
        return Ok(());
    }
    for &device in &stage.devices.0 {
        match owners.get_mut(device as usize) {
            Some(owner @ None) => *owner = Some(stage),
            Some(Some(owner)) if std::ptr::eq(*owner, stage) => {
                return refuse(device, "each device once".into());
            }
            Some(Some(_)) => {
                let rule = "stages share either all of their devices, in the same mesh, or none";
                return refuse(device, rule.into());
            }
            None => {
                return refuse(device, format!("the cluster has {count} devices, numbered from 0"));
            }
        }
    }
    Ok(())
}

/// The devices of a stage as a plan lists them.
fn listed(stage: &Stage) -> String {
    let text = String::from(stage.devices.clone());
    let shown: String = text.chars().take(60).collect();
    let rest = if shown.len() < text.len() { ".." } else { "" };
    format!("\"{shown}{rest}\"")
}
