//! What strategies are for: the variables of a model, and how a cluster's devices may be workers and servers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardloom_cluster::{Cluster, DeviceId};
use shardloom_graph::{Extents, Graph};

use super::strategy::Variable;
use crate::MethodError;

/// A model on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Problem {
    /// The version that made the trials: another may find other times for the same plans.
    pub version: String,
    /// The model, as plans write it.
    pub model: String,
    /// The cluster, as plans write it.
    pub cluster: String,
    /// The software that drives the machines.
    pub software: String,
    /// Whether trials are measured, and not simulated.
    pub measured: bool,
    /// What the plans of all strategies say alike, as a plan says it: formats, optimizer, clipping and others.
    pub settings: String,
    /// Samples of a step.
    pub global_batch: usize,
    /// Bytes of an element of a gradient.
    pub gradient_bytes: usize,
    /// The trained parameters, in the order of the model.
    pub variables: Vec<Variable>,
    /// Numbers of workers and servers to choose from.
    pub shapes: Vec<Shape>,
}

/// So many workers, and so many servers at most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Shape {
    /// Workers, each of one device, the first of the cluster.
    pub workers: u32,
    /// Micro-batches of a step, over all workers.
    pub microbatches: usize,
    /// What workers compute in a step, in seconds.
    pub compute_seconds: f64,
    /// The least bandwidth between two workers that follow each other on a ring, in bytes per second; none for one.
    pub ring_bandwidth: Option<f64>,
    /// For each server, on the devices after the workers', the bandwidth between it and the workers farthest from
    /// it.
    pub server_bandwidths: Vec<f64>,
    /// The time before the first byte of a message between workers, or of one to a server, arrives, the longest of
    /// them.
    pub latency_seconds: f64,
    /// Of the tables whose rows go to servers and back one by one, where servers sum them, the share of its rows that
    /// a worker looks up in a step, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub looked_up: BTreeMap<String, f64>,
}

impl Problem {
    /// The trained parameters of a model.
    pub fn variables(graph: &Graph) -> Vec<Variable> {
        let extents = Extents::global(graph, 1);
        let variable = |value: &shardloom_graph::Value| {
            let elements = extents.elements(&value.axes);
            let rows = value.axes.first().map_or(1, |&axis| extents.get(axis));
            Variable { name: value.name.clone(), rows, columns: elements / rows.max(1) }
        };
        graph.parameters().map(|(_, value)| variable(value)).collect()
    }

    /// Bytes of all gradients.
    pub fn bytes(&self) -> f64 {
        let elements: usize = self.variables.iter().map(Variable::elements).sum();
        (elements * self.gradient_bytes) as f64
    }
}

impl Shape {
    /// How fast workers and servers reach each other on a cluster.
    ///
    /// # Errors
    /// If it lacks a device.
    pub fn of(
        cluster: &Cluster,
        (workers, servers): (u32, u32),
        (microbatches, compute_seconds): (usize, f64),
    ) -> Result<Shape, MethodError> {
        let mut latency_seconds: f64 = 0.0;
        let mut bandwidth = |from: u32, to: u32| -> Result<f64, MethodError> {
            let path = cluster.link(DeviceId(from), DeviceId(to))?;
            Ok(path.map_or(f64::INFINITY, |path| {
                latency_seconds = latency_seconds.max(path.link.latency_seconds);
                let own = path.link.reachable_bytes_per_second();
                path.shared_bytes_per_second.map_or(own, |shared| own.min(shared))
            }))
        };
        let mut ring: Option<f64> = None;
        for worker in 1..workers {
            let next = bandwidth(worker - 1, worker)?;
            ring = Some(ring.map_or(next, |known| known.min(next)));
        }
        let mut server_bandwidths = vec![];
        for server in workers..workers + servers {
            let mut least = f64::INFINITY;
            for worker in 0..workers {
                least = least.min(bandwidth(worker, server)?);
            }
            server_bandwidths.push(least);
        }
        let ring_bandwidth = ring;
        Ok(Shape {
            workers,
            microbatches,
            compute_seconds,
            ring_bandwidth,
            server_bandwidths,
            latency_seconds,
            looked_up: BTreeMap::new(),
        })
    }

    /// The share of what servers sum of a variable that goes to and from them.
    pub fn share(&self, variable: &Variable) -> f64 {
        self.looked_up.get(&variable.name).copied().unwrap_or(1.0)
    }
}
