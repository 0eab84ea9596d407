//! What all ranks of a step do together.

use std::collections::BTreeSet;

use shardloom_collectives::{Algorithm, Kind};

use super::collective::Collective;
use super::parameters::Shared;
use super::pipeline::Instance;
use super::place::Place;
use super::{Candidate, Settings};

/// What holds for the whole step.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    /// Between the last gradient and the first update, where all ranks wait for each other; none if they
    /// do not.
    pub norm: Option<Norm>,
    /// Parameters that several meshes have.
    pub shared: Vec<SharedSum>,
    /// Whether communication runs beside computation.
    pub overlaps: bool,
    /// Whether gradients are reduced after every backward pass and not only the last.
    pub reduces_each: bool,
}

/// How all ranks agree on the norm of all gradients.
#[derive(Clone, Debug)]
pub(super) struct Norm {
    /// By mesh: each of its ranks on that of the gradients that it has.
    pub own_seconds: Vec<f64>,
    /// Their sum.
    pub sum_seconds: f64,
}

/// A parameter that several meshes have.
#[derive(Clone, Debug)]
pub(super) struct SharedSum {
    /// Those meshes.
    pub meshes: BTreeSet<usize>,
    /// Adding up its gradients over them.
    pub sum_seconds: f64,
}

impl Ends {
    /// Of `candidate`, whose stages are those of `pipelines`, where several blocks use the `shared`
    /// parameters.
    pub fn of(
        settings: &Settings,
        place: &Place<'_>,
        candidate: &Candidate,
        pipelines: &[Vec<Instance>],
        shared: &[Shared],
    ) -> Ends {
        let norm = || Norm::of(settings, place, candidate, pipelines);
        let sum = |it: &Shared| SharedSum::of(settings, place, candidate, pipelines, it);
        Ends {
            norm: settings.norm.then(norm),
            shared: shared.iter().map(sum).filter(|it| it.meshes.len() > 1).collect(),
            overlaps: place.overlaps(),
            reduces_each: candidate.zero == 2 && candidate.sharers() > 1,
        }
    }
}

impl Norm {
    fn of(
        settings: &Settings,
        place: &Place<'_>,
        candidate: &Candidate,
        pipelines: &[Vec<Instance>],
    ) -> Norm {
        let world = place.world(candidate.devices());
        let sum = Collective::new(place, Kind::AllReduce, Algorithm::Direct, world, 8);
        let mut elements = vec![0.0; candidate.pp as usize];
        for it in pipelines.iter().flatten() {
            elements[it.device] += it.cost.owned_elements;
        }
        let own = |elements: f64| {
            let bytes = elements * settings.precision.gradients.bytes() as f64;
            place.memory_bound_seconds("norm", elements, bytes)
        };
        let mut own_seconds: Vec<f64> = Vec::with_capacity(elements.len());
        for mesh in 0..elements.len() {
            // Neighbouring meshes mostly have as many.
            let before = mesh.checked_sub(1).filter(|&before| elements[before] == elements[mesh]);
            own_seconds.push(before.map_or_else(|| own(elements[mesh]), |it| own_seconds[it]));
        }
        Norm { own_seconds, sum_seconds: sum.seconds(1.0) }
    }
}

impl SharedSum {
    fn of(
        settings: &Settings,
        place: &Place<'_>,
        candidate: &Candidate,
        pipelines: &[Vec<Instance>],
        shared: &Shared,
    ) -> SharedSum {
        let holders = pipelines.iter().flatten().filter(|it| it.cost.has_one_of(&shared.blocks));
        let meshes: BTreeSet<usize> = holders.map(|it| it.device).collect();
        let (size, devices) = (candidate.mesh_devices(), candidate.devices());
        let shape = place.holders(meshes.len() as u32, size, devices);
        let Settings { algorithm, precision, .. } = *settings;
        let bytes = precision.gradients.bytes();
        let sum = Collective::new(place, Kind::AllReduce, algorithm, shape, bytes);
        let shards = if candidate.zero >= 1 { f64::from(candidate.sharers()) } else { 1.0 };
        SharedSum { meshes, sum_seconds: sum.seconds(shared.parameters.total() / shards) }
    }
}
