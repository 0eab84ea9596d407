//! Whether servers can hold the weights of workers, or sum their gradients.

use std::collections::BTreeSet;

use crate::{
    Mesh, Optimizer, ParameterGroup, Plan, PlanError, Precision, Push, SendOrder, ServerSet,
    Servers, Share, Staleness, Summation, Updates,
};

impl Plan {
    /// Checks that what servers do for workers is all that keeps replicas equal.
    pub(super) fn validate_servers(&self, devices: usize) -> Result<(), PlanError> {
        let (key, count, colocated) = match (self.sync.servers, self.sync.summation) {
            (None, None) => return Ok(()),
            (Some(servers), None) => ("sync.servers.count", servers.count, servers.colocated),
            (None, Some(summation)) => {
                ("sync.summation.servers", summation.servers, summation.colocated)
            }
            (Some(_), Some(summation)) => {
                let rule = "servers hold the weights (sync.servers) or sum gradients (sync.summation), and \
                            not both";
                return Err(PlanError::field("sync.summation.servers", summation.servers, rule));
            }
        };
        if count == 0 && !colocated {
            let rule = "at least 1, or colocated = true for servers on the workers' devices";
            return Err(PlanError::field(key, 0, rule));
        }
        if self.least_devices() > devices {
            let least = self.least_devices();
            let rule = format!(
                "with servers each has a device after those of the workers, {least} in all; the cluster has \
                 {devices}"
            );
            return Err(PlanError::field(key, count, rule));
        }
        self.validate_workers()?;
        match (self.sync.servers, self.sync.summation) {
            (Some(servers), _) => self.validate_held(servers),
            (_, Some(summation)) => self.validate_summation(summation),
            (None, None) => Ok(()),
        }
    }

    /// Checks that each pipeline is a worker that does one step after another.
    fn validate_workers(&self) -> Result<(), PlanError> {
        let refuse = |key: &str, value: String, rule: &str| {
            Err(PlanError::field(key, value, format!("with servers {rule}")))
        };
        if let Some(pipeline) = self.pipeline.iter().find(|pipeline| pipeline.stage.len() != 1) {
            let rule = "each pipeline is one stage, a worker with the whole model";
            return refuse("pipeline.stage", pipeline.stage.len().to_string(), rule);
        }
        if let Some((_, stage)) = self.stages().find(|(_, stage)| stage.mesh != Mesh::SINGLE) {
            let rule = "each worker is one device: what splits or copies it is not built";
            return refuse("pipeline.stage.mesh", stage.mesh.to_string(), rule);
        }
        let devices: BTreeSet<u32> =
            self.stages().flat_map(|(_, stage)| stage.devices.0.iter().copied()).collect();
        if devices.len() < self.pipeline.len() {
            let rule = "each worker has a device of its own";
            return refuse(
                "pipeline",
                format!("{} on {} devices", self.pipeline.len(), devices.len()),
                rule,
            );
        }
        if let Some(sync) = self.syncs().find(|sync| sync.zero > 0) {
            let rule = "nothing is sharded over workers";
            return refuse("sync.zero", sync.zero.to_string(), rule);
        }
        if !self.flushes() {
            let rule = "a worker has one set of weights in a step, so flush";
            return refuse("weights.rule", self.weights.name().into(), rule);
        }
        if self.updates != Updates::Step {
            let rule = "a worker sends its gradients once a step, so step";
            return refuse("updates", self.updates.name().into(), rule);
        }
        Ok(())
    }

    /// Checks what servers that hold the weights cannot have.
    fn validate_held(&self, servers: Servers) -> Result<(), PlanError> {
        let refuse = |key: &str, value: String, rule: &str| {
            Err(PlanError::field(key, value, format!("with servers {rule}")))
        };
        if let Some(key) = self.norm_key() {
            let rule = "each updates what it holds by itself, so no update can be made smaller, or left out, \
                        by what all gradients come to";
            return refuse(key, "set".into(), rule);
        }
        if self.precision != Precision::FP32 {
            let rule =
                "everything is in fp32 so far: compute and gradients = \"fp32\", master = false";
            return refuse("precision", self.precision.words(), rule);
        }
        let adds_up =
            servers.staleness == Staleness::SYNCHRONOUS && servers.push == Push::Gradients;
        let Servers { count, colocated, replicas, lost, .. } = servers;
        if colocated && (replicas > 0 || !lost.is_empty()) {
            let rule = "those on the workers' devices have no replicas and are not lost alone: colocated = false, or \
                        neither replicas nor lost";
            return refuse("sync.servers.colocated", "true".into(), rule);
        }
        if replicas > 0 && !adds_up {
            let rule = "that have staleness, or are pushed deltas, what each worker pushes is taken in by itself, and \
                        replicas are sent only what was added up: staleness = 0 and push = \"gradients\", or no \
                        replicas";
            return refuse("sync.servers.replicas", replicas.to_string(), rule);
        }
        if colocated && servers.own_part(self.pipeline.len()) >= 1.0 {
            let rule = format!(
                "{count} on machines of their own, which are as many as workers, or more, leave nothing to others: \
                 colocated = false, or a smaller count"
            );
            return refuse("sync.servers.colocated", "true".into(), &rule);
        }
        if replicas >= count && !colocated {
            let rule =
                format!("each replica of a range is on another one: fewer than count = {count}");
            return refuse("sync.servers.replicas", replicas.to_string(), &rule);
        }
        if replicas > 0 && count > ServerSet::MOST {
            let rule = format!("that have replicas there are at most {}", ServerSet::MOST);
            return refuse("sync.servers.count", count.to_string(), &rule);
        }
        if servers.left(self.pipeline.len()).next().is_none()
            || lost.iter().any(|server| server >= count)
        {
            let rule = format!("some of {count}, numbered from 0, are lost, and not all");
            return refuse("sync.servers.lost", lost.to_string(), &rule);
        }
        if let (false, Optimizer::Sgd { reference_batch: Some(batch), .. }) =
            (adds_up, self.optimizer)
        {
            let rule = "that have staleness, or are pushed deltas, an update is made for each worker's part of a step, \
                        and none for so many samples";
            return refuse("optimizer.reference_batch", batch.to_string(), rule);
        }
        Ok(())
    }

    /// Checks what servers that sum gradients can have.
    fn validate_summation(&self, summation: Summation) -> Result<(), PlanError> {
        if let Share::Part(part) = summation.share
            && !(part > 0.0 && part <= 1.0)
        {
            let rule =
                "above 0 and up to 1, or \"balanced\"; without sync.summation workers sum all";
            return Err(PlanError::field("sync.summation.share", part, rule));
        }
        let Summation { servers, colocated, share, .. } = summation;
        if colocated && summation.own_part(self.pipeline.len()) >= 1.0 {
            let rule = format!(
                "with share = {share}, the {servers} servers on machines of their own leave nothing to others: \
                 colocated = false, or a smaller share"
            );
            return Err(PlanError::field("sync.summation.colocated", true, rule));
        }
        if let (SendOrder::Backward, Some(credits)) = (summation.order, summation.credits) {
            let rule = "pieces that are sent in the order of the backward pass wait for no turn: order = \"next-use\", or \
                        no credits";
            return Err(PlanError::field("sync.summation.credits", credits, rule));
        }
        let to_servers = |group: &ParameterGroup| group.sync(self.sync).summation.is_some();
        let groups = self.parameters.iter().enumerate();
        let mut groups = groups.filter(|(_, group)| to_servers(group));
        if let Some((index, algorithm)) =
            groups.find_map(|(index, it)| Some((index, it.algorithm?)))
        {
            let rule = "workers sum what servers leave by direct all-reduces: leave it out, or let workers sum \
                        all (servers = [])";
            return Err(PlanError::field(
                format!("parameters[{index}].algorithm"),
                algorithm,
                rule,
            ));
        }
        Ok(())
    }
}
