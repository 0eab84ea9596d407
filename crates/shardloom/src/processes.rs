//! Runs that several processes share.

use std::sync::Arc;

use shardloom_train::Processes;

use crate::{Error, Result};

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
pub fn launched() -> Result<Option<Arc<Processes>>> {
    let size = |variable| Some((variable, std::env::var(variable).ok()?.parse::<u32>().ok()?));
    match SIZES.into_iter().find_map(size) {
        Some((variable, started)) if started > 1 => join(variable, started).map(Some),
        _ => Ok(None),
    }
}

#[cfg(feature = "mpi")]
fn join(variable: &str, started: u32) -> Result<Arc<Processes>> {
    use shardloom_fabric::{Engine, MessagePassing, Mpi};
    use shardloom_train::Contribution;

    let engine = Mpi::start().and_then(|mpi| MessagePassing::over(Box::new(mpi)));
    let engine: Arc<dyn Engine<Contribution>> =
        Arc::new(engine.map_err(shardloom_train::Error::from)?);
    let seen = engine.process().of;
    if seen != started {
        let reason = format!(
            "but MPI sees {seen}: they were started by a launcher of another MPI library; use that \
             library's mpirun, or srun --mpi=pmix"
        );
        return Err(Error::Launched { variable: variable.to_owned(), started, reason });
    }
    Ok(Arc::new(Processes::join(engine)?))
}

#[cfg(not(feature = "mpi"))]
fn join(variable: &str, started: u32) -> Result<Arc<Processes>> {
    let reason = "but this program was built without MPI; build it with --features mpi, or start it once: \
                  ranks are threads then";
    Err(Error::Launched { variable: variable.to_owned(), started, reason: reason.to_owned() })
}
