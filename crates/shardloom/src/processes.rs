//! Runs that several processes share.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardloom_cluster::{Cluster, MeasuredOn, NodeGroup, Profile};
use shardloom_fabric::{Engine, MessagePassing, Transport};
use shardloom_plan::Plan;
use shardloom_profile::{Effort, Scope, Sites, Timed, measure_among, this_machine};
use shardloom_train::{Contribution, Processes};

use crate::local_profile::{has_all_formats, write_whole};
use crate::session::Run;
use crate::{Error, LocalProfile, Result, model};

/// Variables that launchers set for each process they start, with the number of these: Open MPI's `mpirun`,
/// those that speak PMI (MPICH, Intel MPI), and Slurm's `srun`.
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// Variables with the number of a process among these.
const NUMBERS: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

/// Whether a launcher started this process before others, or nothing started it beside others.
pub fn is_first_of_launched() -> bool {
    let number = |variable| std::env::var(variable).ok();
    NUMBERS.into_iter().find_map(number).is_none_or(|number| number == "0")
}

/// The processes that `mpirun` or `srun` started beside this one, if there are any.
///
/// # Errors
/// If there are, and this program was built without MPI, or MPI does not see them or cannot start.
pub fn launched() -> Result<Option<Launched>> {
    let size = |variable| Some((variable, std::env::var(variable).ok()?.parse::<u32>().ok()?));
    match SIZES.into_iter().find_map(size) {
        Some((variable, started)) if started > 1 => join(variable, started).map(Some),
        _ => Ok(None),
    }
}

#[cfg(feature = "mpi")]
fn join(variable: &str, started: u32) -> Result<Launched> {
    let mpi = shardloom_fabric::Mpi::start().map_err(shardloom_train::Error::from)?;
    let seen = mpi.processes();
    if seen != started {
        let reason = format!(
            "but MPI sees {seen}: they were started by a launcher of another MPI library; use that \
             library's mpirun, or srun --mpi=pmix"
        );
        return Err(Error::Launched { variable: variable.to_owned(), started, reason });
    }
    Launched::over(Box::new(mpi))
}

#[cfg(not(feature = "mpi"))]
fn join(variable: &str, started: u32) -> Result<Launched> {
    let reason = "but this program was built without MPI; build it with --features mpi, or start it once: \
                  ranks are threads then";
    Err(Error::Launched { variable: variable.to_owned(), started, reason: reason.to_owned() })
}

/// Processes that a launcher started, of which the first leads: what it decides, the others
/// [follow](Launched::follow).
pub struct Launched {
    processes: Arc<Processes>,
    engine: Arc<MessagePassing>,
    /// By process: what it runs on.
    measured_on: Vec<MeasuredOn>,
}

/// What the process that leads has the others do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Measure their machines.
    Measure { thorough: bool, fp16: bool },
    /// Train.
    Run(Box<Run>),
    /// Nothing more.
    End,
}

impl Launched {
    /// Processes that a transport connects, once all have come.
    ///
    /// # Errors
    /// If one is gone, or a system does not say what it runs on.
    pub fn over(transport: Box<dyn Transport>) -> Result<Launched> {
        let engine = MessagePassing::over(transport).map_err(shardloom_train::Error::from)?;
        let engine = Arc::new(engine);
        let connecting: Arc<dyn Engine<Contribution>> = Arc::clone(&engine) as _;
        let processes = Arc::new(Processes::join(connecting)?);
        // Why one cannot, the others hear.
        let own = this_machine().inspect_err(|error| processes.leave(&error.to_string()))?;
        let measured_on = processes.bring_together(own)?;
        Ok(Launched { processes, engine, measured_on })
    }

    /// How they talk.
    pub fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    /// Whether this process leads.
    pub fn leads(&self) -> bool {
        self.processes.leads()
    }

    /// Refuses a plan whose ranks cannot be shared out: neither has each device a process of its number, nor have
    /// all processes as many ranks.
    ///
    /// # Errors
    /// With both numbers.
    pub fn require_shares(&self, plan: &Plan) -> Result<()> {
        let colocated = if plan.sync.has_colocated_servers() { plan.pipeline.len() } else { 0 };
        let (ranks, processes) = (plan.device_count() + colocated, self.processes.process().of);
        let is_by_device = plan.least_devices() <= processes as usize;
        match is_by_device || ranks.is_multiple_of(processes as usize) {
            true => Ok(()),
            false => Err(Error::Uneven { ranks, processes }),
        }
    }

    /// Has all processes measure their machines and the links between these, one device for each process: the
    /// machines as a cluster, devices in order of the processes. Equal machines are measured as one kind.
    ///
    /// # Errors
    /// If processes of one machine do not follow each other, or measuring fails.
    pub fn measure(&self, scope: Scope, progress: &mut dyn FnMut(&str, f64)) -> Result<Cluster> {
        let Scope { effort, fp16 } = scope;
        self.processes.tell(&Order::Measure { thorough: effort == Effort::Thorough, fp16 })?;
        let profiles = self.measure_together(scope, progress)?;
        self.machines(&profiles)
    }

    /// The file that machines measured for this are kept in, beside this machine's profile.
    ///
    /// # Errors
    /// If there is no place for that.
    pub fn file(&self, local: &LocalProfile) -> Result<PathBuf> {
        let mut digest = blake3::Hasher::new();
        for host in self.processes.hosts() {
            digest.update(host.as_bytes()).update(b"\n");
        }
        let digest = digest.finalize().to_hex();
        Ok(local.path()?.with_file_name(format!("machines-{}.toml", &digest[..16])))
    }

    /// These machines as they were measured before, if they were and are the same.
    ///
    /// # Errors
    /// If the file cannot be read or holds no machines.
    pub fn measured_before(&self, local: &LocalProfile) -> Result<Option<Cluster>> {
        let file = self.file(local)?;
        if !file.try_exists().map_err(Error::io("look at", &file))? {
            return Ok(None);
        }
        let cluster = Cluster::read(&model::read(&file)?, None, &file.display().to_string());
        let cluster = cluster.map_err(|source| Error::Profile { source: Box::new(source) })?;
        let is_whole = cluster.groups().iter().all(|group| has_all_formats(&group.profile));
        Ok(Some(cluster).filter(|cluster| is_whole && self.are(cluster)))
    }

    /// Measures the machines and keeps what was measured.
    ///
    /// # Errors
    /// As [`Launched::measure`]; if the file cannot be written.
    pub fn measure_and_keep(
        &self,
        local: &LocalProfile,
        scope: Scope,
        progress: &mut dyn FnMut(&str, f64),
    ) -> Result<Cluster> {
        let cluster = self.measure(scope, progress)?;
        write_whole(&self.file(local)?, &cluster.to_toml()?)?;
        Ok(cluster)
    }

    /// Has the others end, where they were not told to train.
    ///
    /// # Errors
    /// If one is gone.
    pub fn end(&self) -> Result<()> {
        Ok(self.processes.tell(&Order::End)?)
    }

    /// Measures as the process that leads says, until it ends or trains; what to train, then.
    ///
    /// # Errors
    /// As [`Launched::measure`].
    pub(crate) fn next_run(&self) -> Result<Option<Run>> {
        loop {
            match self.processes.hear(0)? {
                Order::Measure { thorough, fp16 } => {
                    let effort = if thorough { Effort::Thorough } else { Effort::Quick };
                    self.measure_together(Scope { effort, fp16 }, &mut |_, _| {})?;
                }
                Order::Run(run) => return Ok(Some(*run)),
                Order::End => return Ok(None),
            }
        }
    }

    /// Measures as the process that leads says, until it ends.
    ///
    /// # Errors
    /// As [`Launched::measure`]; if it trains.
    pub fn follow(&self) -> Result<()> {
        match self.next_run()? {
            None => Ok(()),
            Some(_) => Err(Error::OtherProcess {
                process: self.processes.process().number,
                what: "the command",
            }),
        }
    }

    /// Whether `cluster` was measured on these machines as they are now.
    pub fn are(&self, cluster: &Cluster) -> bool {
        let nodes = cluster.groups().iter().flat_map(|group| {
            (0..group.nodes).map(|_| (group.devices_per_node, &group.profile.measured_on))
        });
        self.sites().is_ok_and(|sites| {
            let own = sites
                .nodes()
                .map(|(first, ranks, _)| (ranks, Some(&self.measured_on[first as usize])));
            own.eq(nodes.map(|(devices, measured_on)| (devices, measured_on.as_ref())))
        })
    }

    fn sites(&self) -> Result<Sites> {
        let hosts = self.processes.hosts().iter().map(String::as_str);
        let ranks: Vec<(&str, &MeasuredOn)> = hosts.zip(&self.measured_on).collect();
        Ok(Sites::of(&ranks)?)
    }

    /// The profile of the machine of each process.
    fn measure_together(
        &self,
        scope: Scope,
        progress: &mut dyn FnMut(&str, f64),
    ) -> Result<Vec<Profile>> {
        let engine: &dyn Engine<Timed> = &*self.engine;
        let sites = self.sites()?;
        // Some come from reading their data.
        self.processes.bring_together(())?;
        let own = measure_among(engine, &sites, scope, progress)?;
        Ok(self.processes.bring_together(own)?)
    }

    /// Machines by the profiles that their processes measured.
    fn machines(&self, profiles: &[Profile]) -> Result<Cluster> {
        let sites = self.sites()?;
        let nodes: Vec<(u32, u32, usize)> = sites.nodes().collect();
        let kinds = nodes.iter().map(|&(_, _, kind)| kind).max().map_or(0, |last| last + 1);
        let mut groups: Vec<(usize, NodeGroup)> = vec![];
        for &(_, devices_per_node, kind) in &nodes {
            if let Some((last, group)) = groups.last_mut()
                && *last == kind
            {
                group.nodes += 1;
                continue;
            }
            // What all of the kind have.
            let alike = nodes.iter().filter(|&&(_, _, other)| other == kind);
            let alike: Vec<&Profile> =
                alike.map(|&(rank, _, _)| &profiles[rank as usize]).collect();
            let memory = alike.iter().map(|it| it.device.memory_bytes).min();
            let mut profile = alike[0].clone();
            profile.device.memory_bytes = memory.unwrap_or(profile.device.memory_bytes);
            if kinds > 1 {
                profile.device.name = format!("local-{}", kind + 1);
            }
            // Machines are measured in pairs, on the clock of the first of two.
            let of_kind = |at: usize| nodes.get(at).is_some_and(|&(_, _, other)| other == kind);
            let has_link = (0..nodes.len().saturating_sub(1)).step_by(2).any(of_kind);
            if !has_link && nodes.len() > 1 {
                let own = nodes.iter().position(|&(_, _, other)| other == kind).unwrap_or(0);
                // The last of an odd number is in no pair.
                let pair = if own % 2 == 1 { own - 1 } else { 0 };
                let measured = &profiles[nodes[pair].0 as usize].node;
                profile.source = profiles[nodes[pair].0 as usize].source.clone();
                profile.node.inter = measured.inter.clone();
                profile.node.uplink_bytes_per_second = measured.uplink_bytes_per_second;
            }
            groups.push((kind, NodeGroup { profile, nodes: 1, devices_per_node }));
        }
        Ok(Cluster::new(groups.into_iter().map(|(_, group)| group).collect())?)
    }
}
